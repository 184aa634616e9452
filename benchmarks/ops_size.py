"""The operator's pages of a large gateway: how long a scrape and the dashboard take with 200 deployments.

The gateway runs in its own process, the scraper and the browser in others, as they do for users.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp
from playwright.async_api import Browser, async_playwright

from benchmarks.compare.load import Calls, at_rate
from benchmarks.ops import TOKEN
from benchmarks.processes import Way, started
from benchmarks.rig import gateway
from llm_guard.admin.http.credentials import Credential
from llm_guard.cli.login_command import link

UPSTREAMS, MODELS = 4, 50
PROMISED_SCRAPE_S, PROMISED_PAINT_S = 0.05, 1.0
_SCRAPES, _EVERY_S = 15, 1.0
"""Scrapes and the seconds from one to the next; Prometheus scrapes every 5 s or less often."""
_LOADS = 5
_CALLS_PER_S = 200.0
_CONNECTIONS = 20
_PAINTED = "() => performance.getEntriesByName('first-contentful-paint').map(one => one.startTime)[0]"


@dataclass(frozen=True, slots=True)
class Sized:
    """A finished run; all times in seconds."""

    deployments: int
    page_bytes: int
    """Size of one scrape."""
    scrapes_s: tuple[float, ...]
    """Duration of each scrape of an idle gateway."""
    busy_scrapes_s: tuple[float, ...]
    """The same beside calls to one of the models."""
    paints_s: tuple[float, ...]
    """From the start of a navigation to the first contentful paint."""
    rows_s: tuple[float, ...]
    """From the start of a navigation until the list of models is shown."""
    failed_calls: int = 0

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        found = [
            *_above("a scrape", self.scrapes_s, PROMISED_SCRAPE_S),
            *_above("a scrape beside calls", self.busy_scrapes_s, PROMISED_SCRAPE_S),
            *_above("the first paint", self.paints_s, PROMISED_PAINT_S),
            *_above("the list of models", self.rows_s, PROMISED_PAINT_S),
        ]
        return [*found, *([f"{self.failed_calls} calls failed beside the scrapes"] if self.failed_calls else [])]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "promised": {"scrape_s": PROMISED_SCRAPE_S, "paint_s": PROMISED_PAINT_S}}


def run(say: Callable[[str], None]) -> Sized:
    """Measures a gateway with 200 deployments, each of which has had calls. Raises OSError, NotStartedError."""
    if (program := shutil.which("chromium-headless-shell")) is None:
        raise FileNotFoundError("the dashboard is measured with a browser: apt-get install chromium-headless-shell")
    return asyncio.run(_run(say, program))


def config(upstreams: int = UPSTREAMS, models: int = MODELS) -> str:
    """A config in which each model has a deployment at every upstream; the load calls one of the models."""
    deployments = ", ".join(f"{{upstream: u{number}}}" for number in range(upstreams))
    lines = [
        f"ops: {{token: {TOKEN}}}",
        "defaults: {balance: weighted}",
        "upstreams:",
        *(f'  u{number}: {{dialect: openai, base_url: "{{provider}}/v1"}}' for number in range(upstreams)),
        "models:",
        *(f"  {name}: {{deployments: [{deployments}]}}" for name in _names(models)),
    ]
    return "\n".join([*lines, ""])


def _names(models: int) -> list[str]:
    return ["gpt-4o", *(f"model-{number}" for number in range(1, models))]


async def _run(say: Callable[[str], None], chromium: str) -> Sized:
    with (
        started("benchmarks.relay_peers", "provider", "0") as provider,
        gateway(config(), provider.url) as guarded,
        ThreadPoolExecutor(1) as thread,
    ):
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(guarded.url, headers=headers) as session:
            await _use_all(session)
            say("ops: scrapes of 200 deployments")
            scrapes, size = await _scrapes(session)
            say(f"ops: scrapes of 200 deployments, beside {_CALLS_PER_S:.0f} calls a second")
            way = Way("busy", guarded.url, guarded.process)
            load = asyncio.get_running_loop().run_in_executor(thread, _load, way)
            busy, _ = await _scrapes(session)
            calls = await load
        say("ops: the dashboard with 200 deployments")
        paints, rows = await _dashboard(guarded.url, chromium)
    return Sized(UPSTREAMS * MODELS, size, scrapes, busy, paints, rows, calls.failed)


def _load(way: Way) -> Calls:
    return at_rate(way, _CONNECTIONS, _CALLS_PER_S, _SCRAPES * _EVERY_S)


async def _use_all(session: aiohttp.ClientSession) -> None:
    """Calls each model until each of its deployments is likely to have had a call: their histograms are not empty."""
    for name in _names(MODELS) * UPSTREAMS * 2:
        body = {"model": name, "messages": [{"role": "user", "content": "x"}]}
        async with session.post("/v1/chat/completions", json=body) as response:
            await response.read()


async def _scrapes(session: aiohttp.ClientSession) -> tuple[tuple[float, ...], int]:
    """Returns how long each scrape took, and the size of the last one."""
    found, size = [], 0
    for _ in range(_SCRAPES):
        began_at = time.monotonic()
        async with session.get("/metrics") as response:
            size = len(await response.read())
        found.append(time.monotonic() - began_at)
        await asyncio.sleep(_EVERY_S - found[-1])
    return tuple(found), size


async def _dashboard(url: str, chromium: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        found = [await _shown(browser, url) for _ in range(_LOADS)]
        await browser.close()
    return tuple(paint for paint, _ in found), tuple(rows for _, rows in found)


async def _shown(browser: Browser, url: str) -> tuple[float, float]:
    """Opens the dashboard with a fresh profile, and returns the seconds until the first paint and until its rows."""
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    page = await context.new_page()
    code = link("", Credential.of("any", "operator", TOKEN)).partition("#")[2]
    began_at = time.monotonic()
    await page.goto(f"{url}/dashboard#{code}")
    await page.locator("#models a").first.wait_for()
    rows_s = time.monotonic() - began_at
    paint_ms = await page.evaluate(_PAINTED)
    await context.close()
    return paint_ms / 1e3, rows_s


def _above(what: str, found: Sequence[float], promised: float) -> list[str]:
    """Judged by the median: another process on the machine may delay any one."""
    median = statistics.median(found)
    if median <= promised:
        return []
    return [f"{what} with {UPSTREAMS * MODELS} deployments: {median * 1e3:.0f} ms, against {promised * 1e3:.0f} ms"]
