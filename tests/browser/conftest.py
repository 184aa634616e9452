"""A real browser, and a page that records its console errors and its requests.

At the end of a test every page must be free of unexpected errors and of requests to other hosts.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from llm_guard.admin.http.credentials import Credential
from llm_guard.cli.login_command import link
from tests.tokens import SHARED
from tests.tools import need

_QUIETLY = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_PATIENCE_MS = 8000
expect.set_options(timeout=_PATIENCE_MS)


@dataclass
class Window:
    """A page with its recorded errors and requests."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Requested URLs."""
    link: str = ""
    """The link that was opened last."""
    expected: tuple[str, ...] = ()
    """Substrings of errors that the test causes."""

    async def open(self, url: str, token: str | None = SHARED) -> Page:
        """Opens the dashboard of the gateway at `url` with a link as `llm-guard login` prints it; None opens it
        without a code."""
        code = "" if token is None else link("", Credential.of("any", "operator", token)).partition("#")[2]
        self.link = f"{url}/dashboard#{code}"
        await self.page.goto(self.link)
        return self.page

    def unexpected(self) -> list[str]:
        return [complaint for complaint in self.complaints if not any(part in complaint for part in self.expected)]

    def elsewhere(self) -> set[str]:
        """Hosts of requests other than the page's own."""
        hosts = {urlsplit(url).netloc for url in self.asked if urlsplit(url).scheme not in ("data", "blob")}
        return hosts - {urlsplit(self.asked[0]).netloc} if self.asked else set()


Opens = Callable[..., AbstractAsyncContextManager[Window]]


@asynccontextmanager
async def browsing(**environment: str | float | bool) -> AsyncIterator[Browser]:
    path = need("chromium-headless-shell")
    async with async_playwright() as playwright:
        env = {**os.environ, **environment}
        browser = await playwright.chromium.launch(executable_path=path, args=_QUIETLY, env=env)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as browser:
        yield browser


@pytest.fixture
def opens(browser: Browser) -> Opens:
    """Opens windows, like `opening`, in the browser that the tests share."""
    return opening(browser)


def opening(browser: Browser) -> Opens:
    """Opens windows with a profile of their own that must end without errors: `opens(width=375,
    color_scheme="dark")`. Close the window before the gateway."""

    @asynccontextmanager
    async def opened(width: int = 1280, height: int = 900, **settings: Any) -> AsyncIterator[Window]:
        context = await browser.new_context(viewport={"width": width, "height": height}, **settings)
        context.set_default_timeout(_PATIENCE_MS)
        try:
            window = await _window(context)
            yield window
            await window.page.unroute_all(behavior="ignoreErrors")  # handlers may lose their response to the closing
        finally:
            await context.close()
        assert window.unexpected() == []
        assert window.elsewhere() == set()

    return opened


async def _window(context: BrowserContext) -> Window:
    page = await context.new_page()
    window = Window(page)
    page.on("console", lambda said: window.complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: window.complaints.append(str(error)))
    page.on("request", lambda request: window.asked.append(request.url))
    return window
