"""Longer-lived state on the dashboard: engines, probes, degraded modes, the cache, and stored calls."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from llm_guard.config import parse_config
from llm_guard.mock.provider import MockProvider
from tests.browser.conftest import Opens
from tests.chaos.stand import Stand, config_text, standing
from tests.chaos.wire import Reply, ask
from tests.fakes.redis_server import redis_server
from tests.fakes.waiting import eventually
from tests.integration.operating import audit, get
from tests.integration.test_engines import LIGHT, free_port
from tests.integration.test_fleet_operators import fleet

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'
LOUD = f"print({HOSTILE!r}, flush=True)\n{LIGHT}"
PARTS = ("engines", "probes", "fallbacks", "cache", "stored", "replicas")
SORRY = {"static_response": "We are sorry.", "max_wait": "1s"}


async def call(stand: Stand, text: str = "hello") -> Reply:
    body = json.dumps({"model": "gpt", "messages": [{"role": "user", "content": text}]}).encode()
    return await ask(stand.url, "/v1/chat/completions", body)


@asynccontextmanager
async def gateway(provider: MockProvider, folder: Path, **more: Any) -> AsyncIterator[Stand]:
    """Runs a gateway; `rules` are the defaults of all models, `engines` and `probe` (of the upstream `near`)
    sections of their own."""
    near = {"dialect": "openai", "base_url": f"http://127.0.0.1:{more.get('port', 9)}/v1", "probe": more.get("probe")}
    # A busy machine blocks the event loop: that alert would come at any time.
    ops = {"store": str(folder), "alerts": {"loop_lag": "off"}}
    text = json.loads(config_text(provider.url, ops=ops, upstreams={"near": near}))
    text["upstreams"]["one"]["api_key"] = "sk-the-gateways-own"
    text["defaults"] |= more.get("rules", {})
    text["engines"] = more.get("engines", {})
    async with standing(parse_config(json.dumps(text), "test.yaml", {})) as stand:
        yield stand


def engine(argv: Sequence[str]) -> dict[str, Any]:
    restart = {"preset": "demo", "base_delay": "100ms", "max_delay": "200ms", "max_attempts": 2}
    return {"e": {"upstreams": ["near"], "command": {"argv": list(argv)}, "stop_timeout": "1s", "restart": restart}}


def light(port: int) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", LOUD, str(port)]


def part(page: Page, name: str) -> Any:
    return page.locator(f"#{name}-part")


def tile(page: Page, name: str, title: str) -> Any:
    heading = page.locator("h3", has_text=re.compile(f"^{re.escape(title)}$"))
    return page.locator(f"#{name} .tile", has=heading)


async def do(page: Page, reason: str) -> None:
    """Confirms the dialog that requires a reason."""
    await page.get_by_label("Reason").fill(reason)
    await page.locator("#act-do").click()
    await expect(page.locator("#act")).to_be_hidden()


# empty sections


async def test_unused_features_are_not_shown(opens: Opens, tmp_path: Path) -> None:
    async with MockProvider() as provider, gateway(provider, tmp_path) as stand, opens() as window:
        page = await window.open(stand.url)
        await expect(page.locator("#status-state")).to_have_text("Healthy")
        for name in PARTS:
            await expect(part(page, name)).to_be_hidden()
        await expect(page.locator("#degraded")).to_be_hidden()
        snapshot = await get(stand.url, "metrics")
        assert [snapshot[name] for name in ("engines", "probes", "cache", "stored_calls")] == [[], [], None, None]


# engines and probes


async def test_operator_restarts_an_engine_and_reads_its_output(opens: Opens, tmp_path: Path) -> None:
    port = free_port()
    async with (
        MockProvider() as provider,
        gateway(provider, tmp_path, port=port, engines=engine(light(port)), probe={"interval": "100ms"}) as stand,
        opens() as window,
    ):
        page = await window.open(stand.url)
        page.on("dialog", lambda dialog: window.complaints.append(f"alert: {dialog.message}"))
        one = tile(page, "engines", "e")
        await expect(one).to_contain_text("Running")
        await expect(one).to_contain_text("serves near · no restart")
        await expect(one.get_by_role("button", name="Start: e", exact=True)).to_be_hidden()
        await expect(tile(page, "probes", "near")).to_contain_text("Up")
        await expect(tile(page, "probes", "near")).to_contain_text("health endpoint every")

        await one.get_by_role("button", name="Output").click()
        await expect(page.locator("#output-text")).to_have_text(HOSTILE)
        await page.locator("#output [data-close]").click()
        await expect(page.locator("#events")).to_contain_text("e: running")
        assert await page.locator("img").count() == 0

        await one.get_by_role("button", name="Restart").click()
        await expect(page.locator("#act-effect")).to_contain_text("cut off")
        await do(page, "it leaks")
        await expect(one).to_contain_text("serves near · 1 restart")
        await expect(one).to_contain_text("Running")
        await expect(page.locator("#events")).to_contain_text("e: restart by an operator")
        assert ("engines.restart", "e", "it leaks") in [entry[1:] for entry in await audit(stand.url)]

        await one.get_by_role("button", name="Stop").click()
        await do(page, "it costs")
        await expect(one).to_contain_text("Stopped")
        await expect(tile(page, "probes", "near")).to_contain_text("Down")
        await expect(one.get_by_role("button", name="Start: e", exact=True)).to_be_visible()


async def test_engine_that_cannot_start_is_given_up_and_reset(opens: Opens, tmp_path: Path) -> None:
    never = [sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"]
    async with (
        MockProvider() as provider,
        gateway(provider, tmp_path, engines=engine(never), probe={"interval": "100ms"}) as stand,
        opens() as window,
    ):
        page = await window.open(stand.url)
        one = tile(page, "engines", "e")
        await expect(one.locator(".state")).to_contain_text("Given up")
        await expect(one).to_have_attribute("data-state", "bad")
        await expect(page.locator("#engines-count")).to_have_text("1 of 1 engine not running · 0 % available")
        await expect(page.locator("#events")).to_contain_text("e: given up")
        await expect(page.locator("#alerts")).to_contain_text("engine gave up: e")
        await expect(tile(page, "probes", "near")).to_contain_text("its engine was given up: ")
        await expect(tile(page, "tiles", "near")).to_have_attribute("data-state", "bad")
        await one.get_by_role("button", name="Reset").click()
        await do(page, "the disk is back")
        assert ("engines.reset", "e", "the disk is back") in [entry[1:] for entry in await audit(stand.url)]


async def test_next_restart_counts_down_between_answers(opens: Opens, tmp_path: Path) -> None:
    async with MockProvider() as provider, gateway(provider, tmp_path) as stand, opens() as window:
        answers = [waiting_engine]
        await window.page.route("**/admin/metrics", lambda route: answers.pop()(route) if answers else unanswered())
        page = await window.open(stand.url)
        await expect(tile(page, "engines", "e").locator(".next")).to_have_text("restart 3 of 6 in 29\u00a0s")


async def waiting_engine(route: Route) -> None:
    said = await (await route.fetch()).json()
    said["engines"] = [{
        "engine": "e", "kind": "systemd", "target": "vllm.service", "upstreams": ["near"], "state": "restart_failed",
        "since": said["at"], "reason": "it ended", "operation": None, "attempts": 2, "max_attempts": 6,
        "next_attempt_s": 30.0, "start_timeout_left_s": None, "restarts_ok": 0, "restarts_failed": 2,
        "is_standby": False, "auto_provision": "never", "output": [],
    }]  # fmt: skip
    await route.fulfill(json=said)


async def unanswered() -> None:
    await asyncio.sleep(3600)


async def test_upstream_is_probed_on_demand(opens: Opens, tmp_path: Path) -> None:
    probe = {"interval": "1h", "max_failures": 1}
    async with MockProvider() as provider, gateway(provider, tmp_path, probe=probe) as stand, opens() as window:
        page = await window.open(stand.url)
        one = tile(page, "probes", "near")
        await expect(one).to_contain_text("Unknown")
        await one.get_by_role("button", name="Probe now").click()
        await do(page, "is it back?")
        await expect(one).to_contain_text("Down")
        await expect(one).to_contain_text("the last probe failed: ")
        await expect(page.locator("#probes-count")).to_have_text("1 of 1 down")
        await expect(page.locator("#events")).to_contain_text("near is down")


# fallback responses


async def test_degraded_mode_is_entered_and_left(opens: Opens, tmp_path: Path) -> None:
    rules = {"degraded": SORRY}
    async with MockProvider() as provider, gateway(provider, tmp_path, rules=rules) as stand, opens() as window:
        page = await window.open(stand.url)
        one = tile(page, "fallbacks", "gpt")
        await expect(one).to_contain_text("Normal")
        await one.get_by_role("button", name="Enter degraded mode").click()
        await page.get_by_label("Duration", exact=True).select_option("30 minutes")
        await do(page, "the provider is slow")
        await expect(one).to_contain_text("Degraded operator override")
        await expect(one).to_contain_text(
            re.compile(r"the provider is slow \(operator from 127.0.0.1, since .*, until ")
        )
        await expect(page.locator("#degraded")).to_have_text("1 model degraded")
        await expect(page.locator("#status-state")).to_have_text("Degraded")
        await expect(page.locator("#events")).to_contain_text("gpt: entered degraded mode, the provider is slow")
        assert stand.app.gateway.degraded.snapshot().degraded_routes() == ["gpt"]

        await one.get_by_role("button", name="Remove override").click()
        await do(page, "it is fast again")
        await expect(one).to_contain_text("Normal")
        await expect(page.locator("#degraded")).to_be_hidden()
        await expect(page.locator("#events")).to_contain_text("gpt: exited degraded mode")


async def test_whole_gateway_is_degraded_and_one_model_is_not(opens: Opens, tmp_path: Path) -> None:
    rules = {"degraded": SORRY}
    async with MockProvider() as provider, gateway(provider, tmp_path, rules=rules) as stand, opens() as window:
        page = await window.open(stand.url)
        await tile(page, "fallbacks", "Gateway (all models)").get_by_role("button", name="Enter degraded mode").click()
        await do(page, "a rehearsal")
        await expect(page.locator("#degraded")).to_have_text("gateway degraded")
        await expect(tile(page, "fallbacks", "gpt")).to_contain_text("because the gateway is")
        await tile(page, "fallbacks", "gpt").get_by_role("button", name="Exit degraded mode").click()
        await do(page, "not this one")
        await expect(page.locator("#fallbacks-count")).to_have_text("2 of 3 models degraded")


async def test_failed_call_shows_what_its_client_got(opens: Opens, tmp_path: Path) -> None:
    rules = {"degraded": SORRY, "dead_letter": "always"}
    async with MockProvider() as provider, gateway(provider, tmp_path, rules=rules) as stand, opens() as window:
        provider.switch("gpt", "status:500")
        assert "sorry" in (await call(stand)).text
        page = await window.open(stand.url)
        row = page.locator("#calls button")
        await expect(row).to_contain_text("1 attempt: one/gpt · fallback: static response")
        await expect(row.locator(".reason")).to_contain_text("500")
        await row.click()
        facts = page.locator("dialog#call dl.facts")
        await expect(facts).to_contain_text("Fallback responsestatic response")
        await expect(facts).to_contain_text("Dead letter")
        await page.keyboard.press("Escape")
        await expect(tile(page, "fallbacks", "gpt")).to_contain_text("fallback responses: 1 static")


# the response cache


async def test_cache_shows_results_of_calls_and_is_emptied(opens: Opens, tmp_path: Path) -> None:
    rules = {"cache": {"ttl": "1m"}}
    async with MockProvider() as provider, gateway(provider, tmp_path, rules=rules) as stand, opens() as window:
        for _ in range(4):
            await call(stand)
        page = await window.open(stand.url)
        one = tile(page, "cache", "gpt")
        await expect(one.locator(".state")).to_have_text("75\u00a0% hit rate")
        await expect(one).to_contain_text("3 hits · 1 misses")
        await expect(one).to_contain_text(re.compile(r"1 response, \d"))
        await expect(tile(page, "cache", "All routes")).to_contain_text("of 64\u00a0MiB")
        await one.get_by_role("button", name="Purge").click()
        await do(page, "they were wrong")
        await expect(one).to_contain_text("0 responses")
        await expect(one.get_by_role("button", name="Purge")).to_be_hidden()


# stored calls


async def test_dead_letter_is_requeued_and_another_deleted(opens: Opens, tmp_path: Path) -> None:
    rules = {"dead_letter": "always"}
    async with MockProvider() as provider, gateway(provider, tmp_path, rules=rules) as stand, opens() as window:
        page = await window.open(stand.url)
        await expect(tile(page, "stored", "Dead letters")).to_contain_text("0 failed calls")
        provider.switch("gpt", "status:500")
        for _ in range(2):
            assert (await call(stand)).status == 500
        provider.switch("gpt", "")
        letters = tile(page, "stored", "Dead letters")
        await expect(letters).to_contain_text("2 failed calls")
        await expect(page.locator("#events")).to_contain_text("1 call was stored as a dead letter")
        await letters.get_by_role("button", name="Show").click()
        rows = page.locator("#stored-list > li")
        await expect(rows).to_have_count(2)
        await expect(rows.first).to_contain_text("server error: ")
        await expect(page.locator("#stored-summary")).to_have_text("2 dead.")

        await rows.first.get_by_role("button", name="Requeue").click()
        await do(page, "it is back")
        await expect(rows.first).to_contain_text("answered")
        await expect(rows.first.get_by_role("button", name="Requeue")).to_be_hidden()
        await rows.last.get_by_role("button", name="Delete").click()
        await do(page, "nobody wants it")
        await expect(rows).to_have_count(1)
        await page.locator("#stored-dialog [data-close]").click()
        await expect(letters).to_contain_text("1 succeeded since")
        whats = [entry[1] for entry in await audit(stand.url)]
        assert whats == ["dead-letters.delete", "dead-letters.requeue"]


async def test_all_dead_letters_are_requeued_and_lost_ones_are_reported(opens: Opens, tmp_path: Path) -> None:
    rules = {"dead_letter": "always"}
    async with MockProvider() as provider, gateway(provider, tmp_path, rules=rules) as stand, opens() as window:
        provider.switch("gpt", "status:500")
        for _ in range(2):
            await call(stand)
        provider.switch("gpt", "")
        stand.app.deferred.counts.lost["write_failed"] += 3
        page = await window.open(stand.url)
        letters = tile(page, "stored", "Dead letters")
        await expect(letters).to_contain_text("lost, because they could not be stored: 3 write failed")
        await expect(letters).to_have_attribute("data-state", "bad")
        await letters.get_by_role("button", name="Show").click()
        await page.get_by_role("button", name="Requeue all").click()
        await do(page, "it is back")
        await eventually(lambda: sum(stand.app.deferred.counts.rounds.values()) == 2)
        await expect(page.locator("#stored-summary")).to_have_text("2 answered.")


async def test_all_dead_letters_are_deleted_without_an_event(opens: Opens, tmp_path: Path) -> None:
    rules = {"dead_letter": "always"}
    async with MockProvider() as provider, gateway(provider, tmp_path, rules=rules) as stand, opens() as window:
        window.expected = ("net::ERR",)
        provider.switch("gpt", "status:500")
        await call(stand)
        await window.page.route("**/admin/events*", lambda route: route.abort())
        page = await window.open(stand.url)
        await tile(page, "stored", "Dead letters").get_by_role("button", name="Show").click()
        await page.get_by_role("button", name="Delete all").click()
        await do(page, "a test")
        await expect(page.locator("#stored-summary")).to_have_text("None stored.")
        await expect(page.locator("#stored-all")).to_be_hidden()


async def test_one_line_reports_all_dead_letters_between_two_other_events(opens: Opens, tmp_path: Path) -> None:
    async with MockProvider() as provider, gateway(provider, tmp_path) as stand, opens() as window:
        page = await window.open(stand.url)
        for count in (1, 30):
            stand.app.ops.journal.note("dead_letter", event="stored", count=count)
        stand.app.ops.journal.note("dead_letter", event="lost", count=1)
        stand.app.ops.journal.note("dead_letter", event="stored", count=2)
        await expect(page.locator("#events li > span")).to_have_text(
            [
                "2 calls were stored as dead letters",
                "1 call was lost: it could not be stored",
                "31 calls were stored as dead letters",
            ]
        )


async def test_deferred_calls_have_a_list_of_their_own(opens: Opens, tmp_path: Path) -> None:
    rules = {"deferred": {"mode": "always"}}
    async with MockProvider() as provider, gateway(provider, tmp_path, rules=rules) as stand, opens() as window:
        assert (await call(stand)).status == 202
        page = await window.open(stand.url)
        await expect(tile(page, "stored", "Deferred calls")).to_contain_text("1 succeeded")
        await tile(page, "stored", "Deferred calls").get_by_role("button", name="Show").click()
        await expect(page.locator("#stored-dialog-head")).to_have_text("Deferred calls")
        await expect(page.locator("#stored-list > li")).to_contain_text(["gpt"])
        await page.locator("#stored-dialog [data-close]").click()
        await tile(page, "stored", "Dead letters").get_by_role("button", name="Show").click()
        await expect(page.locator("#stored-summary")).to_have_text("None stored.")
        await expect(page.locator("#stored-list > li")).to_have_count(0)


async def test_texts_of_providers_and_engines_are_shown_as_text(opens: Opens, tmp_path: Path) -> None:
    rules = {"dead_letter": "always", "degraded": SORRY, "cache": {"ttl": "1m"}}
    probe = {"interval": "1h"}
    async with (
        MockProvider() as provider,
        gateway(provider, tmp_path, rules=rules, probe=probe) as stand,
        opens() as window,
    ):
        provider.switch("gpt", "status:500")
        await call(stand)
        await window.page.route("**/admin/metrics", spiteful)
        await window.page.route("**/admin/dead-letters?*", hostile_dead_letter)
        page = await window.open(stand.url)
        page.on("dialog", lambda dialog: window.complaints.append(f"alert: {dialog.message}"))
        for name in PARTS:
            await expect(page.locator(f"#{name}")).to_contain_text(HOSTILE)
        await tile(page, "stored", "Dead letters").get_by_role("button", name="Show").click()
        await expect(page.locator("#stored-list .reason")).to_have_text(f"{HOSTILE}: {HOSTILE}")
        await page.locator("#stored-list").get_by_role("button", name="Delete").click()
        await expect(page.locator("#act-head")).to_contain_text(HOSTILE)
        stand.app.ops.journal.note("engine", engine=HOSTILE, state=HOSTILE, event=HOSTILE, reason=HOSTILE, attempt=1)
        await expect(page.locator("#events")).to_contain_text(f"{HOSTILE}: {HOSTILE} (attempt 1), {HOSTILE}")
        assert await page.locator("img").count() == 0
        assert await page.locator("body script").count() == 0


async def spiteful(route: Route) -> None:
    """Inserts hostile text wherever the page may show foreign text."""
    said = await (await route.fetch()).json()
    said["engines"] = [{
        "engine": HOSTILE, "kind": "command", "target": HOSTILE, "upstreams": [HOSTILE], "state": HOSTILE,
        "since": said["at"], "reason": HOSTILE, "operation": None, "attempts": 0, "max_attempts": 1,
        "next_attempt_s": None, "start_timeout_left_s": None, "restarts_ok": 0, "restarts_failed": 0,
        "is_standby": False, "auto_provision": "never", "output": [HOSTILE],
    }]  # fmt: skip
    said["probes"][0] |= {"reason": HOSTILE, "engine_given_up": HOSTILE, "last_result": "failed"}
    said["degraded"]["models"][0] |= {"model": HOSTILE, "reason": HOSTILE}
    said["cache"]["routes"][0] |= {"route": HOSTILE}
    said["stored_calls"]["lost"] = {HOSTILE: 1}
    replica = {
        "id": HOSTILE, "is_this": False, "version": HOSTILE, "config": HOSTILE, "has_same_config": False,
        "has_same_token": False, "up_s": 1, "in_flight": 0, "calls": 1, "open_breakers": 1, "is_draining": False,
        "age_s": 0,
    }  # fmt: skip
    said["fleet"] = {"name": HOSTILE, "is_connected": True, "problem": None, "replicas": [replica]}
    await route.fulfill(json=said)


async def hostile_dead_letter(route: Route) -> None:
    said = await (await route.fetch()).json()
    failure = {"kind": HOSTILE, "detail": HOSTILE, "status": 500}
    said["calls"][0] |= {"model": HOSTILE, "id": HOSTILE, "last_failure": failure}
    await route.fulfill(json=said)


@pytest.mark.parametrize("width", [375, 1280])
async def test_nothing_is_wider_than_the_screen(opens: Opens, tmp_path: Path, width: int) -> None:
    rules = {"dead_letter": "always", "degraded": SORRY, "cache": {"ttl": "1m"}}
    probe = {"interval": "1h"}
    async with (
        MockProvider() as provider,
        gateway(provider, tmp_path, rules=rules, probe=probe) as stand,
        opens(width=width, height=812) as window,
    ):
        provider.switch("gpt", "status:500")
        await call(stand)
        await window.page.route("**/admin/metrics", spiteful)
        page = await window.open(stand.url)
        for name in PARTS:
            await expect(part(page, name)).to_be_visible()
        script = f"document.documentElement.scrollWidth - {width}"
        assert await page.evaluate(script) <= 0
        await tile(page, "stored", "Dead letters").get_by_role("button", name="Show").click()
        await expect(page.locator("#stored-list > li")).to_have_count(1)
        assert await page.evaluate("(() => { const it = document.querySelector('#stored-dialog');"
                                   "return it.scrollWidth - it.clientWidth })()") == 0  # fmt: skip
        await page.keyboard.press("Escape")
        head = await page.evaluate("document.querySelector('#alerts-head').getBoundingClientRect().top")
        assert head < await page.evaluate("document.querySelector('#engines-head').getBoundingClientRect().top")


async def test_gateways_of_a_fleet_are_listed(opens: Opens, tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with fleet(server, 3) as (_provider, apps), opens() as window:
            page = await window.open(apps[0].addresses[0])
            tiles = page.locator("#replicas .tile")
            await expect(page.locator("#replicas-count")).to_have_text("prod: 3 gateways")
            await expect(tiles).to_have_count(3)
            await expect(tiles.nth(0)).to_contain_text("(this one)")
            await expect(tiles.nth(1)).to_contain_text("In the fleet")
            server.freeze()
            await expect(tiles).to_have_count(1)
            await expect(tiles.nth(0)).to_contain_text("the store of the fleet does not answer (TimeoutError)")
            server.thaw()
            await expect(tiles).to_have_count(3)
