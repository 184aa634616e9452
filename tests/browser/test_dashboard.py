"""The dashboard in a real browser, with a real gateway and a misbehaving provider."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from llm_guard.admin.api.history import SavedHistory
from llm_guard.admin.monitor.series_buffer import SavedSeries
from llm_guard.mock.provider import MockProvider
from tests.browser.conftest import Opens, browsing, opening
from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, config_of, facing, standing
from tests.chaos.wire import ask
from tests.fakes.provider import whole
from tests.fakes.waiting import eventually
from tests.tokens import NAMED, VIEWER

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEEN_WITHIN_S = 2.0
OUTAGE_IS_SHOWN = """() => {
  const tile = [...document.querySelectorAll(".tile")].find((one) => one.querySelector("h3").textContent === "one/gpt");
  const shows = (node, text) => node?.textContent.includes(text);
  return shows(tile.querySelector(".state"), "Open") && shows(tile.querySelector(".next"), "trial") &&
    document.querySelector("#status-state").textContent !== "Healthy" &&
    shows(document.querySelector("#events"), "closed → open") &&
    shows(document.querySelector("#calls button"), "gpt");
}"""
"""Checked at each frame; `expect` looks once a second after a while."""
HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'


# a gateway


async def call(stand: Stand, model: str = "gpt") -> int:
    """Makes one call and returns its status."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]}).encode()
    return (await ask(stand.url, "/v1/chat/completions", body)).status


@asynccontextmanager
async def gateway(provider: MockProvider, **sections: Any) -> AsyncIterator[Stand]:
    """Runs a gateway with a state folder of its own."""
    with TemporaryDirectory() as folder:
        # A busy machine blocks the event loop: that alert would come at any time.
        ops = {"store": folder, "alerts": {"loop_lag": "off"}, **sections.pop("ops", {})}
        rules = {"breaker": {"consecutive_failures": 3, "open_for": "60s"}, "ops": ops, **sections}
        async with standing(config_of(provider.url, **rules)) as stand:
            yield stand


@asynccontextmanager
async def traffic(stand: Stand, model: str = "gpt") -> AsyncIterator[None]:
    """Makes fifty calls a second."""

    async def flow() -> None:
        while True:
            await call(stand, model)
            await asyncio.sleep(0.02)

    flowing = asyncio.create_task(flow())
    try:
        yield
    finally:
        flowing.cancel()
        await asyncio.gather(flowing, return_exceptions=True)


def tile(page: Page, label: str) -> Any:
    return page.locator(".tile", has=page.locator("h3", has_text=re.compile(f"^{re.escape(label)}$")))


# display


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_page_loads_without_errors_and_requests_nothing_from_other_hosts(opens: Opens, scheme: str) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens(color_scheme=scheme) as window:
        await call(stand)
        page = await window.open(stand.url)
        await expect(page.locator("#status-state")).to_have_text("Healthy")
        await expect(page).to_have_title("Healthy · llm_guard")
        await expect(tile(page, "one/gpt")).to_contain_text("Closed")
        await expect(page.locator("#models tbody tr")).to_contain_text(["All models", "gpt", "claude"])
        await expect(page.locator(".uplot canvas")).to_have_count(4)
        await expect(page.locator("#events-state")).to_have_text("live")
        light = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert light == ("rgb(246, 246, 243)" if scheme == "light" else "rgb(16, 19, 23)")


async def test_charts_show_the_last_day(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        at, point = time.time() - 7200.0, (73.0, 1.0, 0.5, 0.9, None, None)
        calls = SavedSeries([at], [point], {"gpt": [point]})
        stand.app.ops._history.restore(SavedHistory(calls, SavedSeries([at], [point])))
        page = await window.open(stand.url)
        await expect(page.locator(".uplot canvas")).to_have_count(4)
        rate = page.locator("#charts figure").first
        await expect(rate).not_to_contain_text("73")
        async with page.expect_response("**/admin/history?span=24h"):
            await page.get_by_role("button", name="24 hours").click()
        await expect(rate).to_contain_text("73")
        await page.get_by_role("button", name="15 minutes").click()
        await expect(rate).not_to_contain_text("73")


async def test_notice_is_a_heading_and_a_list(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        page = await window.open(stand.url)
        await expect(page.locator("#notice")).to_be_hidden()
        stand.app.ops.overview.notice = ["This is the demo:", "one is down", "two are slow"]
        await expect(page.locator("#notice > p")).to_have_text("This is the demo:")
        await expect(page.locator("#notice li")).to_have_text(["one is down", "two are slow"])


async def test_outage_is_seen_within_two_seconds(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, traffic(stand), opens() as window:
        page = await window.open(stand.url)
        await expect(tile(page, "one/gpt")).to_have_attribute("data-breaker", "closed")
        provider.switch("gpt", "status:500")
        await eventually(lambda: stand.breaker("one/gpt").state == "open")
        began_at, lag_s = time.monotonic(), stand.lag_s
        await page.wait_for_function(OUTAGE_IS_SHOWN)
        assert time.monotonic() - began_at < SEEN_WITHIN_S + stand.lag_s - lag_s
        await expect(page.locator("#alerts")).to_contain_text("breaker open: one/gpt")
        await expect(page.locator("#announcement")).to_contain_text("Alert firing: ")


async def test_time_to_the_next_probe_counts_down_between_answers(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        answers = [answered]
        await window.page.route("**/admin/metrics", lambda route: answers.pop()(route) if answers else unanswered())
        page = await window.open(stand.url)
        await expect(tile(page, "one/gpt").locator(".next")).to_have_text("trial call in 29\u00a0s")


async def answered(route: Route) -> None:
    """Responds as if the breaker had just opened."""
    said = await (await route.fetch()).json()
    said["deployments"][0]["breaker"] |= {"state": "open", "next_probe_s": 30}
    await route.fulfill(json=said)


async def unanswered() -> None:
    await asyncio.sleep(3600)


async def test_failed_call_opens_its_waterfall(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider, retry={"max_attempts": 3}) as stand, opens() as window:
        provider.switch("gpt", "status:503")
        assert await call(stand) == 503
        page = await window.open(stand.url)
        row = page.locator("#calls button", has_text="attempts: one/gpt")
        await row.click()
        dialog = page.locator("dialog#call")
        await expect(dialog.locator(".waterfall > li:not(.scale)")).to_have_count(3)
        await expect(dialog.locator(".waterfall .bar")).to_have_count(3)
        await expect(dialog.locator(".waterfall .wait")).to_have_count(2)
        await expect(dialog).to_contain_text("of backoff")
        await expect(dialog).to_contain_text("Then: retry after")
        await expect(dialog).to_contain_text("Then: give up")
        lefts = await dialog.locator(".waterfall .bar").evaluate_all("bars => bars.map(bar => bar.offsetLeft)")
        assert lefts == sorted(set(lefts))
        await dialog.get_by_role("button", name="Close").click()
        await expect(row).to_be_focused()


async def test_text_of_callers_and_providers_is_shown_as_text(opens: Opens) -> None:
    error = json.dumps({"error": {"message": HOSTILE, "type": "server_error"}}).encode()
    models = {HOSTILE: {"deployments": [{"upstream": "one"}]}}
    async with facing([whole(500, error)], models=models) as (stand, _), opens() as window:
        await call(stand, HOSTILE)
        page = await window.open(stand.url)
        page.on("dialog", lambda dialog: window.complaints.append(f"alert: {dialog.message}"))
        await expect(page.locator("#models tbody")).to_contain_text(HOSTILE)
        await expect(tile(page, f"one/{HOSTILE}")).to_be_visible()
        await page.route("**/admin/calls/lg-*", said_by_a_provider)
        await page.locator("#calls button", has_text=HOSTILE).click()
        await expect(page.locator("dialog#call .waterfall .deployment")).to_contain_text(HOSTILE)
        await expect(page.locator("dialog#call .waterfall .reason")).to_have_text(HOSTILE)
        await page.keyboard.press("Escape")
        await tile(page, f"one/{HOSTILE}").get_by_role("button", name="Force open").click()
        await expect(page.locator("#act-head")).to_contain_text(HOSTILE)
        assert await page.locator("img").count() == 0
        assert await page.locator("body script").count() == 0


async def said_by_a_provider(route: Route) -> None:
    """Inserts hostile text wherever the gateway would quote a provider."""
    said = await (await route.fetch()).json()
    for attempt in said["attempts"]:
        attempt |= {"reason": HOSTILE, "next_step": HOSTILE, "outcome": HOSTILE}
    await route.fulfill(json=said)


async def test_fragmented_events_are_read_whole(opens: Opens) -> None:
    script = """async ([text, size]) => {
        const { readEvents } = await import(new URL("dashboard/stream.js", document.baseURI));
        const bytes = new TextEncoder().encode(text);
        const body = new ReadableStream({ start(control) {
            for (let at = 0; at < bytes.length; at += size) control.enqueue(bytes.slice(at, at + size));
            control.close();
        } });
        const events = [];
        for await (const event of readEvents(body, 1000, new AbortController())) events.push(event);
        return events;
    }"""
    lines = [": beat", "", "id: a-1", "event: breaker", 'data: {"x":', 'data: "é"}', "", "data:y", "", "data: cut"]
    whole_ones = [
        {"id": "a-1", "type": "breaker", "data": '{"x":\n"é"}'},
        {"id": None, "type": "message", "data": "y"},
    ]
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        page = await window.open(stand.url)
        for end in ("\n", "\r\n"):
            for size in (1, 2, 3, 1000):
                assert await page.evaluate(script, [end.join(lines), size]) == whole_ones


async def top_of(page: Page, selector: str) -> float:
    return float(await page.evaluate("name => document.querySelector(name).getBoundingClientRect().top", selector))


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1280, 800), (390, 844)])
async def test_alerts_and_failed_calls_are_on_the_first_screen_at_every_width(
    opens: Opens, width: int, height: int
) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens(width=width, height=height) as window:
        provider.switch("gpt", "status:500")
        for _ in range(30):
            await call(stand)
        page = await window.open(stand.url)
        await expect(page.locator("#alerts")).to_contain_text("success rate: gpt")
        await expect(page.locator("#calls button")).not_to_have_count(0)
        await expect(page.locator("#firing")).to_have_text(re.compile(r"\d alerts firing"))
        await expect(page).to_have_title(re.compile(r"^\(\d\) Unhealthy · llm_guard$"))
        assert await top_of(page, "#alerts-head") < height / 2
        assert await top_of(page, "#calls-head") < height - 60
        if width < 1520:
            assert await top_of(page, "#calls-head") < await top_of(page, "#traffic-head")
        await page.locator("#firing").click()
        await expect(page.locator("#alerts-head")).to_be_in_viewport()


async def test_without_an_alert_none_is_counted(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        page = await window.open(stand.url)
        await expect(page.locator("#alerts-count")).to_have_text("none firing")
        await expect(page).to_have_title("Healthy · llm_guard")
        await expect(page.locator("#firing")).to_be_hidden()


WIDER = "[...document.querySelectorAll('.scroll')].map(each => each.scrollWidth - each.clientWidth)"


@pytest.mark.parametrize("width", [1600, 1520, 1440, 1400, 1366])
async def test_no_table_is_wider_than_its_place_on_a_laptop(opens: Opens, width: int) -> None:
    async with full_tables(opens, width) as page:
        assert await page.evaluate(WIDER) == [0, 0]


@pytest.mark.parametrize("fonts", ["dejavu", "liberation", None])
async def test_tables_have_the_same_width_with_any_fonts(tmp_path: Path, fonts: str | None) -> None:
    folder = tmp_path if fonts is None else Path("/usr/share/fonts/truetype", fonts)
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}: apt-get install fonts-{fonts}")
    config = tmp_path / "fonts.conf"
    config.write_text(f"<fontconfig><dir>{folder}</dir><cachedir>{tmp_path}/cache</cachedir></fontconfig>")
    async with browsing(FONTCONFIG_FILE=str(config)) as browser:
        for width in (1440, 1400, 1366):
            async with full_tables(opening(browser), width) as page:
                loaded = "document.fonts.ready.then(fonts => [...fonts].map(each => `${each.family} ${each.status}`))"
                # Chromium loads no web font if the machine has no fallback font.
                assert await page.evaluate(loaded) == ["Inter error" if fonts is None else "Inter loaded"]
                assert await page.evaluate(WIDER) == [0, 0]


@asynccontextmanager
async def full_tables(opens: Opens, width: int) -> AsyncIterator[Page]:
    """Opens the dashboard of a model with a long name, with figures of maximal width."""
    name = "claude-sonnet-4-20250514"
    models = {name: {"deployments": [{"upstream": "one"}]}}
    async with MockProvider() as provider, gateway(provider, models=models) as stand, opens(width=width) as window:
        await window.page.route("**/admin/metrics", busy)
        page = await window.open(stand.url)
        await expect(page.locator("#models tbody")).to_contain_text("12.3\u00a0%")
        yield page
        await page.unroute_all(behavior="ignoreErrors")


async def busy(route: Route) -> None:
    """Responds with figures of maximal width."""
    said = await (await route.fetch()).json()
    times = {"p50_s": 0.888, "p95_s": 12.8, "p99_s": 88.8}
    traffic = {"timeout_rate": 0.1234, "in_flight": 888, "duration": times, "time_to_first_token": times}
    for model in said["models"]:
        model["traffic"] |= traffic | {"success_rate": 0.9888, "calls_per_second": 88.8, "retries_per_call": 0.88}
    load = {"success_rate": 0.9888, "timeout_rate": 0.1234, "duration": times, "attempts": 888_888}
    for one in said["deployments"]:
        one |= load | {"last_success": "2026-01-02T10:30:30.000000Z"}
        one["gate"] |= {"in_flight": 88, "limit": 888, "waiting": 888, "rate": 88.8}
        one["budget"] |= {"tokens": 8888.8, "ratio": 0.88}
    said["at"] = "2026-01-02T11:29:29.000000Z"
    await route.fulfill(json=said)


async def test_pass_through_deployments_are_labelled(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        page = await window.open(stand.url)
        await expect(tile(page, "one")).to_contain_text("Pass-through: /upstreams/one/…")
        await expect(tile(page, "one/gpt")).not_to_contain_text("/upstreams/")


async def test_alert_event_shows_each_detail_once(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        provider.switch("gpt", "status:500")
        for _ in range(3):
            await call(stand)
        page = await window.open(stand.url)
        summary = page.locator("#events li", has_text="alert").locator("span")
        await expect(summary).to_have_text(
            re.compile(r"^breaker open, firing\. one/gpt: its breaker is open \(\d+ failures in a row\)$")
        )


# actions


async def test_operator_forces_a_breaker_open_and_resets_it(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        page = await window.open(stand.url)
        one = tile(page, "one/gpt")
        await one.get_by_role("button", name="Force open").click()
        await page.get_by_label("Reason").fill("the bill is too high")
        await page.get_by_label("Duration").select_option("30 minutes")
        await page.get_by_label("Your name").fill("ada")
        await page.locator("#act-do").click()
        await expect(page.locator("#act-error")).to_contain_text("no deployment is left")
        assert stand.breaker("one/gpt").state == "forced_open"
        for label in ("Reason", "Duration", "Your name"):
            await expect(page.get_by_label(label)).to_be_disabled()
        await page.get_by_role("button", name="Close").click()
        await expect(one.locator(".state")).to_contain_text("Forced open")
        await expect(page.locator("#overrides")).to_contain_text(
            "the bill is too high (operator (ada) from 127.0.0.1, "
        )
        await expect(page.locator("#events")).to_contain_text("operator (ada) from 127.0.0.1")
        assert await call(stand) == 503

        await one.get_by_role("button", name="Reset: ").click()
        await expect(page.get_by_label("Reason")).to_be_enabled()
        await page.get_by_label("Reason").fill("it is paid")
        await page.locator("#act-do").click()
        await expect(one).to_have_attribute("data-breaker", "closed")
        await expect(page.locator("#announcement")).to_contain_text("Done: Reset, one/gpt")
        assert await call(stand) == 200


async def test_refusing_gateway_is_nowhere_green_and_a_restriction_is_reset(opens: Opens) -> None:
    limited = whole(429, b'{"error":{"message":"Rate limit reached"}}', {"retry-after": "50"})
    async with facing([limited], CHAT.ok) as (stand, _), opens() as window:
        for _ in range(30):
            await call(stand)
        page = await window.open(stand.url)
        await expect(page.locator("#status-state")).to_have_text("Unhealthy")
        await expect(page.locator("#status-reason")).to_have_text("No deployment is left for gpt.")
        await expect(page.locator("#status-causes")).to_have_text("2 causes below")
        await expect(page.locator("#incidents")).to_contain_text("its provider responded rate limit")
        await expect(page.locator("#incidents")).to_contain_text("hits 100\u00a0% of the last minute’s calls of gpt")
        await expect(page.locator("#incidents")).to_contain_text("29 calls refused")
        for state in (tile(page, "one/gpt"), page.locator("#status")):
            await expect(state).to_have_attribute("data-state", "bad")
        await expect(tile(page, "one/gpt")).to_contain_text("most calls are refused")
        row = page.locator("#models tr[data-model=gpt] td[data-part=success]")
        await expect(row).to_have_attribute("data-state", "bad")
        await expect(page.locator("#dials")).to_contain_text("96.7\u00a0%")
        found = tile(page, "cooldown: one/gpt, callers’ keys")
        await expect(found).to_contain_text("its provider responded rate limit, with a Retry-After of 50 s")
        await expect(found).to_contain_text("Until ")
        await found.get_by_role("button", name="Lift").click()
        await page.get_by_label("Reason").fill("it is well again")
        await page.locator("#act-do").click()
        await expect(page.locator("#announcement")).to_contain_text("Done: Lift, cooldown: one/gpt, callers’ keys")
        await expect(page.locator("#restrictions-part")).to_be_hidden()
        assert await call(stand) == 200


async def test_operator_drains_a_deployment_and_returns_it(opens: Opens) -> None:
    models = {"gpt": {"deployments": [{"upstream": "one"}, {"upstream": "one", "model": "spare"}]}}
    async with MockProvider() as provider, gateway(provider, models=models) as stand, opens() as window:
        page = await window.open(stand.url)
        one = tile(page, "one/gpt")
        await one.get_by_role("button", name="Drain").click()
        await page.get_by_label("Reason").fill("maintenance")
        await page.locator("#act-do").click()
        await expect(page.locator("#overrides")).to_contain_text("maintenance")
        await expect(one.locator(".state")).to_contain_text("drained")
        await expect(one.get_by_role("button", name="Drain")).to_be_hidden()
        assert await call(stand) == 200
        assert provider.last.model == "spare"
        await one.get_by_role("button", name="Uncordon").click()
        await page.get_by_label("Reason").fill("over")
        await page.locator("#act-do").click()
        await expect(page.locator("#overrides")).to_contain_text("No deployment is drained")


async def test_nothing_is_done_without_a_reason(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        page = await window.open(stand.url)
        await tile(page, "one/gpt").get_by_role("button", name="Force open").click()
        await page.locator("#act-do").click()
        await expect(page.get_by_label("Reason")).to_be_focused()
        await page.get_by_label("Reason").fill("   ")
        await page.locator("#act-do").click()
        await expect(page.locator("#act-error")).to_contain_text("Enter a reason")
        await page.get_by_role("button", name="Cancel").click()
        assert not any("force-open" in url for url in window.asked)
        assert stand.breaker("one/gpt").state == "closed"


async def test_refused_change_is_explained_in_the_dialog(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        window.expected = ("404",)
        page = await window.open(stand.url)
        await page.route("**/admin/breakers/force-open", lambda route: route.continue_(
            post_data=json.dumps({"deployment": "gone", "reason": "x"}),
        ))  # fmt: skip
        await tile(page, "one/gpt").get_by_role("button", name="Force open").click()
        await page.get_by_label("Reason").fill("a reason")
        await page.keyboard.press("Enter")
        await expect(page.locator("#act-error")).to_contain_text("Failed: ")
        await expect(page.get_by_label("Reason")).to_have_value("a reason")


async def test_everything_can_be_done_by_the_keyboard_alone(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        provider.switch("gpt", "status:500")
        await call(stand)
        page = await window.open(stand.url)
        await expect(page.locator("#calls button")).to_have_count(1)

        await tab_to(page, "Skip to main content")
        await tab_to(page, "Dark")
        await page.keyboard.press("Enter")
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        await tab_to(page, "gpt server error")
        await page.keyboard.press("Enter")
        await expect(page.locator("dialog#call .waterfall")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator("dialog#call")).to_be_hidden()
        await tab_to(page, "claude")
        await page.keyboard.press("Enter")
        await expect(page.locator("dialog#model .uplot")).to_have_count(4)
        await page.keyboard.press("Escape")
        await expect(page.locator("dialog#model")).to_be_hidden()

        await tab_to(page, "Force open: one/gpt")
        await page.keyboard.press("Enter")
        await page.keyboard.type("by hand")
        await page.keyboard.press("Escape")
        await expect(page.locator("#act")).to_be_hidden()
        await expect(page.get_by_role("button", name="Force open: one/gpt")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("Reason")).to_be_focused()
        await page.keyboard.type("by hand")
        await page.keyboard.press("Enter")
        await eventually(lambda: stand.breaker("one/gpt").state == "forced_open")
        await page.keyboard.press("Escape")


async def tab_to(page: Page, name: str) -> None:
    """Presses Tab until the focused element has this name; each focused element must show its focus."""
    script = """() => {
        const it = document.activeElement, look = getComputedStyle(it);
        return [it.getAttribute("aria-label") ?? it.innerText ?? "", look.outlineStyle];
    }"""
    for _ in range(80):
        await page.keyboard.press("Tab")
        said, outline = await page.evaluate(script)
        assert outline != "none", f"the focus on {said!r} is not to be seen"
        if re.sub(r"\s+", " ", said).find(name) >= 0:
            return
    raise AssertionError(f"no Tab leads to {name!r}")


async def test_focus_stays_while_the_figures_change(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, traffic(stand), opens() as window:
        page = await window.open(stand.url)
        button = page.get_by_role("button", name="Drain: one/gpt")
        await button.focus()
        await expect(page.locator("#load tbody tr").first.locator("[data-part=attempts]")).not_to_have_text("0")
        before = await page.locator("#load tbody tr").first.locator("[data-part=attempts]").inner_text()
        await expect(page.locator("#load tbody tr").first.locator("[data-part=attempts]")).not_to_have_text(before)
        await expect(button).to_be_focused()


# login and roles


async def test_token_is_requested_and_becomes_a_cookie_that_scripts_cannot_read(opens: Opens) -> None:
    token = "an-operators-token"  # of this test
    async with MockProvider() as provider, gateway(provider, ops={"token": token}) as stand, opens() as window:
        window.expected = ("401",)
        page = await window.open(stand.url, token=None)
        await expect(page.locator("#token")).to_be_visible()
        await expect(page.locator("main")).to_be_hidden()
        await expect(page.locator("#status-state")).to_have_text("Login needed")
        await page.locator("#token-text").fill("another")
        await page.keyboard.press("Enter")
        await expect(page.locator("#token-error")).to_contain_text("Login failed: the token is not valid, or no longer")
        await page.locator("#token-text").fill(token)
        await page.keyboard.press("Enter")
        await expect(page.locator("#status-state")).to_have_text("Healthy")
        await expect(page.locator("#events-state")).to_have_text("live")
        await page.reload()
        await expect(page.locator("#status-state")).to_have_text("Healthy")
        await expect(page.locator("#token")).to_be_hidden()
        assert not any(token in url for url in window.asked)
        assert token not in await page.content()
        assert token not in json.dumps(await page.context.storage_state())  # cookies and local storage
        assert await page.evaluate("document.cookie") == ""
        (cookie,) = await page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)


async def test_link_logs_in_once_and_leaves_no_code_in_the_address(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand:
        async with opens() as window:
            page = await window.open(stand.url)
            await expect(page.locator("#status-state")).to_have_text("Healthy")
            used = window.link
            assert page.url == f"{stand.url}/dashboard"
            assert not any("login=" in url.partition("#")[0] for url in window.asked)
            other = await page.context.new_page()
            await other.goto(f"{stand.url}/dashboard")
            await expect(other.locator("#status-state")).to_have_text("Healthy")
        async with opens() as stranger:
            stranger.expected = ("401",)
            await stranger.page.goto(used)
            await expect(stranger.page.locator("#token-error")).to_contain_text("the link was already used")
            await expect(stranger.page.locator("main")).to_be_hidden()
            # In the same tab: only the fragment changes.
            fresh = (await stranger.open(stand.url)).locator("#status-state")
            await expect(fresh).to_have_text("Healthy")


async def test_cookie_authorizes_event_source_and_web_socket_of_a_page(opens: Opens) -> None:
    listen = """path => new Promise((resolve) => {
        const source = path.startsWith("ws") ? new WebSocket(path) : new EventSource(path);
        source.onerror = () => resolve("error");
        const heard = path.startsWith("ws") ? "message" : "hello";
        source.addEventListener(heard, ({ data }) => resolve(JSON.parse(data).kind));
    })"""
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        window.expected = ("401", "WebSocket")
        page = await window.open(stand.url, token=None)
        paths = ("/admin/events", f"ws{stand.url[4:]}/admin/events/ws")
        assert [await page.evaluate(listen, path) for path in paths] == ["error", "error"]
        await window.open(stand.url)
        await expect(page.locator("#status-state")).to_have_text("Healthy")
        assert [await page.evaluate(listen, path) for path in paths] == ["hello", "hello"]


async def test_cookie_ends_when_the_token_is_another_one(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        window.expected = ("401",)
        page = await window.open(stand.url)
        await expect(page.locator("#events-state")).to_have_text("live")
        stand.app.ops.adopt(config_of(provider.url, ops={"token": "another-t0ken"}))
        await expect(page.locator("#token")).to_be_visible()
        await expect(page.locator("main")).to_be_hidden()


async def test_viewer_is_offered_no_change_and_a_named_token_no_name(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand:
        async with opens() as window:
            page = await window.open(stand.url, token=VIEWER)
            await expect(tile(page, "one/gpt")).to_be_visible()
            await expect(page.get_by_role("button", name="Force open")).to_have_count(0)
        async with opens() as window:
            page = await window.open(stand.url, token=NAMED["ann"])
            await tile(page, "one/gpt").get_by_role("button", name="Force open").click()
            await expect(page.get_by_label("Your name")).to_be_hidden()
            await page.get_by_label("Reason").fill("maintenance")
            await page.locator("#act-do").click()
            await expect(page.locator("#overrides")).to_contain_text("maintenance (ann from 127.0.0.1, since ")


# a gateway that is down


async def test_unreachable_gateway_is_shown_and_page_reconnects_by_itself(opens: Opens) -> None:
    async with MockProvider() as provider, opens() as window:
        window.expected = ("net::ERR",)
        async with gateway(provider) as stand:
            port = int(stand.url.rsplit(":", 1)[1])
            page = await window.open(stand.url)
            await expect(tile(page, "one/gpt")).to_be_visible()
        await expect(page.locator("#unreachable")).to_contain_text("No response from the gateway since", timeout=4000)
        await expect(page).to_have_title("Unreachable · llm_guard")
        await expect(tile(page, "one/gpt")).to_be_visible()
        opacity = await page.evaluate("getComputedStyle(document.querySelector('main')).filter")
        assert opacity == "grayscale(1)"
        async with gateway(provider, server={"port": port}):
            await expect(page.locator("#unreachable")).to_be_hidden()
            await expect(page.locator("#status-state")).to_have_text("Healthy")
            await expect(page.locator("#events-state")).to_have_text("live")


async def test_malformed_response_is_reported_and_the_page_keeps_working(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        window.expected = ("TypeError",)
        await window.page.route("**/admin/metrics", lambda route: route.fulfill(json={"of": "another version"}))
        page = await window.open(stand.url)
        await expect(page.locator("#unreachable")).to_contain_text("unexpected data")
        await page.unroute("**/admin/metrics")
        await expect(page.locator("#unreachable")).to_be_hidden()
        await expect(page.locator("#status-state")).to_have_text("Healthy")


async def test_alert_is_silenced(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        provider.switch("gpt", "status:500")
        for _ in range(3):
            await call(stand)
        page = await window.open(stand.url)
        await page.get_by_role("button", name="Silence: breaker open: one/gpt").click()
        await page.get_by_label("Reason").fill("we know")
        await page.keyboard.press("Enter")
        await expect(page.locator("#alerts")).to_contain_text("firing, silenced since")


# screen sizes and themes


LONG = "a-model-with-a-name-that-has-no-place-to-break-and-goes-on-for-quite-a-while-0123456789-0123456789"


async def test_phone_has_no_sideways_scroll(opens: Opens) -> None:
    models = {LONG: {"deployments": [{"upstream": "one"}]}}
    async with (
        MockProvider() as provider,
        gateway(provider, models=models, retry={"max_attempts": 3}) as stand,
        opens(width=375, height=812, has_touch=True, is_mobile=True) as window,
    ):
        provider.switch(LONG, "status:500")
        await call(stand, LONG)
        page = await window.open(stand.url)
        await expect(page.locator(".uplot canvas")).to_have_count(4)
        await expect(page.locator("#calls button")).to_have_count(1)
        assert await sideways(page) == 0
        await page.locator("#calls button").click()
        await expect(page.locator("dialog#call .waterfall")).to_be_visible()
        assert await sideways(page) == 0
        assert await page.evaluate("(() => { const it = document.querySelector('#call');"
                                   "return it.scrollWidth - it.clientWidth })()") == 0  # fmt: skip
        await page.locator("#call [data-close]").click()
        await tile(page, f"one/{LONG}").get_by_role("button", name="Drain").click()
        assert await sideways(page) == 0


async def sideways(page: Page) -> int:
    """Returns by how many pixels the page is wider than the screen."""
    script = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth) - 375"
    return max(0, int(await page.evaluate(script)))


async def test_chosen_theme_is_remembered(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens(color_scheme="dark") as window:
        page = await window.open(stand.url)
        await page.get_by_role("button", name="Light").click()
        await page.reload()
        await expect(page.locator("html")).to_have_attribute("data-theme", "light")
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(246, 246, 243)"


async def test_hidden_tab_closes_its_event_stream_and_catches_up_later(opens: Opens) -> None:
    async with MockProvider() as provider, gateway(provider) as stand, opens() as window:
        page = await window.open(stand.url)
        await expect(page.locator("#events-state")).to_have_text("live")
        await page.evaluate("""() => {
            Object.defineProperty(document, "hidden", {get: () => true, configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
        }""")
        await expect(page.locator("#events-state")).to_have_text("reconnecting")
        stand.app.ops.journal.note("reload", outcome="while away")
        await page.evaluate("() => { delete document.hidden; document.dispatchEvent(new Event('visibilitychange')); }")
        await expect(page.locator("#events-state")).to_have_text("live")
        stand.app.ops.journal.note("reload", outcome="afterwards")
        await expect(page.locator("#events li")).to_contain_text(["afterwards", "while away"])
