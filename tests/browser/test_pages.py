"""The pages of models and deployments: route, history, state changes, and the config with its lines."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from llm_guard.admin.api.history import SavedHistory
from llm_guard.admin.monitor.series_buffer import SavedSeries
from llm_guard.mock.provider import MockProvider
from tests.browser.conftest import Opens
from tests.chaos.stand import Stand, config_text
from tests.chaos.wire import ask
from tests.integration.operating import change, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCREEN = {"width": 1440, "height": 900}
KEY = "sk-SHOWN-0123456789"
LONG = "a-model-with-a-long-name/of-the-kind-that-hubs-have-instruct-quantized-v1"
MODELS: dict[str, Any] = {
    "gpt": {
        "deployments": [{"upstream": "one"}, {"upstream": "one", "model": "far", "priority": 1}],
        "fallbacks": ["spare"],
        "timeout": {"total": "4s"},
    },
    "spare": {"deployments": [{"upstream": "three", "model": LONG}]},
}


@asynccontextmanager
async def outage(folder: Path) -> AsyncIterator[tuple[Stand, Path]]:
    """Runs a gateway on a file; the deployments of `gpt` and its fallback fail, but for one that is drained."""
    path = folder / "guard.yaml"
    async with MockProvider() as provider:
        own = {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_key": KEY}
        # A busy machine blocks the event loop: that alert would come at any time.
        ops = {"store": str(folder), "alerts": {"loop_lag": "off"}}
        breaker = {"consecutive_failures": 3, "open_for": "60s"}
        text = config_text(
            provider.url, ops=ops, breaker=breaker, upstreams={"one": own, "three": own}, models=MODELS
        )  # fmt: skip
        path.write_text(json.dumps(json.loads(text), indent=1))
        for model in ("gpt", LONG):
            provider.switch(model, "status:503")
        async with running(path) as stand:
            await change(stand.url, "deployments/drain", deployment="one/far", reason="new GPUs")
            body = json.dumps({"model": "gpt", "messages": [{"role": "user", "content": "hello"}]}).encode()
            for _ in range(8):
                await ask(stand.url, "/v1/chat/completions", body)
            yield stand, path


def line_of(path: Path, text: str) -> int:
    """Returns the number of the only line with this text, from 1."""
    (found,) = [number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line]
    return found


async def test_deployment_has_its_state_changes_and_the_line_of_each_key(opens: Opens, tmp_path: Path) -> None:
    async with outage(tmp_path) as (stand, path), opens(**SCREEN) as window:
        page = await window.open(stand.url)
        await page.locator("#load a", has_text="one/gpt").click()
        dialog = page.locator("dialog#deployment")
        events = dialog.locator(".events")
        await expect(events).to_contain_text("one/gpt: closed → open")
        await expect(events).not_to_contain_text("one/far")
        await change(stand.url, "deployments/drain", deployment="one/gpt", reason="the second reason")
        await expect(events).to_contain_text("deployments.drain, one/gpt: the second reason")

        total = dialog.locator(".keys tr", has_text="timeout.total").first
        await expect(total).to_have_text(f"timeout.total4line {line_of(path, '4s')}")
        idle = dialog.locator(".keys tr", has_text="timeout.idle").first
        await expect(idle).to_have_text(f"timeout.idle5line {line_of(path, 'idle')}, defaults.timeout.idle")
        await expect(dialog.locator(".keys tr", has_text="api_key").first).to_contain_text("***")
        await dialog.locator("summary", has_text="defaults").last.click()
        await expect(dialog.locator(".keys tr", has_text="max_buffered_answer").first).to_contain_text("default")
        assert KEY not in await page.content()


async def test_event_leads_to_the_deployment_that_it_is_about(opens: Opens, tmp_path: Path) -> None:
    async with outage(tmp_path) as (stand, _path), opens(**SCREEN) as window:
        page = await window.open(stand.url)
        opened = page.locator("#events li", has_text="one/gpt: closed → open")
        await opened.get_by_role("link", name="one/gpt").click()
        await expect(page.locator("#deployment-head")).to_have_text("one/gpt")


async def test_model_has_a_page_with_its_route_that_survives_reload_and_back(opens: Opens, tmp_path: Path) -> None:
    async with outage(tmp_path) as (stand, path), opens(**SCREEN) as window:
        page = await window.open(stand.url)
        await page.locator("#models a", has_text="gpt").click()
        assert page.url.endswith("/dashboard#model=gpt")
        await check_route(page)
        await expect(page.locator("dialog#model")).to_contain_text(f"line {line_of(path, '4s')}")

        await page.reload()
        await check_route(page)
        await page.locator("dialog#model .route a", has_text="spare").click()
        await expect(page.locator("#model-head")).to_have_text("spare")
        await expect(page.locator("dialog#model .route > li")).to_have_count(1)
        await page.go_back()
        await expect(page.locator("#model-head")).to_have_text("gpt")
        await check_route(page)
        await page.locator("dialog#model .route a", has_text="one/gpt").click()
        await expect(page.locator("dialog#model")).to_be_hidden()
        await page.locator("dialog#deployment .links a", has_text="gpt").click()
        await check_route(page)
        await page.locator("dialog#model .errors a[href^='#call=']").last.click()
        await expect(page.locator("dialog#call .waterfall")).to_be_visible()
        await page.locator("dialog#call dl a", has_text="gpt").click()
        await check_route(page)
        await page.get_by_role("button", name="Close").click()
        await expect(page.locator("dialog#model")).to_be_hidden()


async def check_route(page: Page) -> None:
    """Checks that the open page shows the route of `gpt` with the state of each deployment."""
    dialog = page.locator("dialog#model")
    steps = dialog.locator(".route > li")
    await expect(steps).to_have_count(2)
    await expect(steps.nth(0).locator("li")).to_contain_text(["one/gpt", "one/far"])
    await expect(steps.nth(0).locator("li").nth(0)).to_contain_text("breaker open")
    await expect(steps.nth(0).locator("li").nth(1)).to_contain_text("drained")
    await expect(steps.nth(1).locator("h4")).to_contain_text("fallback 1")
    await expect(steps.nth(1).locator("li")).to_contain_text(f"three/{LONG}")
    await expect(dialog.locator(".events")).to_contain_text("closed → open")
    await expect(dialog.locator(".uplot")).to_have_count(4)


async def test_names_in_lists_lead_to_their_pages(opens: Opens, tmp_path: Path) -> None:
    async with outage(tmp_path) as (stand, _), opens(**SCREEN) as window:
        page = await window.open(stand.url)
        for place, name, kind in (
            ("#alerts", "one/gpt", "deployment"),
            ("#overrides", "one/far", "deployment"),
            ("#restrictions", "one/gpt", "deployment"),
            ("#load", "one/far", "deployment"),
            ("#incidents", "gpt", "model"),
        ):
            await page.locator(f"{place} a", has_text=name).first.click()
            await expect(page.locator(f"#{kind}-head")).to_have_text(name)
            await page.locator(f"dialog#{kind}").get_by_role("button", name="Close").click()
            await expect(page.locator(f"dialog#{kind}")).to_be_hidden()


async def test_name_that_the_config_lacks_is_reported(opens: Opens, tmp_path: Path) -> None:
    async with outage(tmp_path) as (stand, _), opens(**SCREEN) as window:
        page = await window.open(stand.url)
        window.expected = ("404",)
        await page.goto(f"{stand.url}/dashboard#model=none")
        await expect(page.locator("dialog#model .verdict")).to_have_text(
            "There is no model with this name in the config."
        )


async def test_link_that_is_opened_during_a_login_waits_for_its_cookie(opens: Opens, tmp_path: Path) -> None:
    async with outage(tmp_path) as (stand, _), opens(**SCREEN) as window:
        is_opened = asyncio.Event()

        async def slow(route: Route) -> None:
            await is_opened.wait()
            await route.continue_()

        await window.page.route("**/dashboard/login", slow)
        page = await window.open(stand.url)
        await page.goto(f"{stand.url}/dashboard#deployment=one%2Fgpt")
        is_opened.set()
        await expect(page.locator("dialog#deployment .links a", has_text="gpt")).to_be_visible()


async def test_deployment_has_charts_of_its_attempts(opens: Opens, tmp_path: Path) -> None:
    async with outage(tmp_path) as (stand, _), opens(**SCREEN) as window:
        at, point = time.time() - 7200.0, (73.0, 1.0, 0.5, 0.9, None, None)
        attempts = SavedSeries([at], [point], {"one/gpt": [point]})
        stand.app.ops._history.restore(SavedHistory(SavedSeries([at], [point]), attempts))
        page = await window.open(stand.url)
        await page.goto(f"{stand.url}/dashboard#deployment=one%2Fgpt")
        dialog = page.locator("dialog#deployment")
        await expect(dialog.locator(".uplot canvas")).to_have_count(4)
        rate = dialog.locator("figure").first
        await expect(rate).not_to_contain_text("73")
        await dialog.get_by_role("button", name="24 hours").click()
        await expect(rate).to_contain_text("73")


async def test_pages_follow_the_period_of_the_charts(opens: Opens, tmp_path: Path) -> None:
    async with outage(tmp_path) as (stand, _), opens(**SCREEN) as window:
        await window.open(stand.url)
        page = window.page
        await page.locator("#models a", has_text="gpt").click()
        async with page.expect_response("**/admin/history?span=24h"):
            await page.locator("dialog#model").get_by_role("button", name="24 hours").click()
        for group in ("#span", "dialog#model .span"):
            await expect(page.locator(f"{group} [data-period='24h']")).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1024, 1440])
async def test_nothing_is_cut_off(opens: Opens, tmp_path: Path, width: int, scheme: str) -> None:
    async with outage(tmp_path) as (stand, _), opens(width=width, color_scheme=scheme) as window:
        page = await window.open(stand.url)
        for name, address in (("model", "model=gpt"), ("deployment", "deployment=one%2Fgpt")):
            await page.goto(f"{stand.url}/dashboard#{address}")
            dialog = page.locator(f"dialog#{name}")
            await expect(dialog.locator(".keys").last).to_be_attached()
            await expect(dialog.locator(".events")).to_be_visible()
            await dialog.locator("details").evaluate_all("found => found.forEach((one) => (one.open = true))")
            assert await page.evaluate(OVERFLOWING, name) == []


OVERFLOWING = """name => {
  const dialog = document.getElementById(name);
  const right = dialog.getBoundingClientRect().left + dialog.clientWidth;
  const found = [...dialog.querySelectorAll("*")].filter((node) => !node.closest(".uplot")).filter((node) =>
    node.getBoundingClientRect().right > right + 1 ||
    (getComputedStyle(node).overflowX !== "visible" && node.clientWidth > 1 &&
      node.scrollWidth > node.clientWidth + 1));
  return [...(dialog.scrollWidth > dialog.clientWidth ? [dialog] : []), ...found].map((node) => node.outerHTML);
}"""
"""Returns the elements of a dialog that end outside it, or that are narrower than their content."""
