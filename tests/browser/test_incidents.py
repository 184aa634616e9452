"""Ten incidents: the first screen of the dashboard names the cause and the remedy."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from llm_guard.mock.provider import MockProvider
from tests.browser.conftest import Opens
from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, config_of, standing
from tests.chaos.wire import ask
from tests.fakes.waiting import eventually
from tests.integration.operating import change
from tests.integration.test_engines import free_port
from tests.tokens import SHARED, VIEWER

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCREEN = {"width": 1440, "height": 900}
BREAKER = {"consecutive_failures": 5, "open_for": "60s"}


async def call(stand: Stand, model: str = "gpt") -> int:
    """Makes one call and returns its status."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]}).encode()
    return (await ask(stand.url, "/v1/chat/completions", body)).status


@asynccontextmanager
async def gateway(
    url: str, folder: Path, *, upstream: Mapping[str, Any] | None = None, **more: Any
) -> AsyncIterator[Stand]:
    """Runs a gateway that uses a key of its own; `upstream` are further settings of `one`."""
    # A busy machine blocks the event loop: that alert would come at any time.
    ops = {"store": str(folder), "alerts": {"loop_lag": "off"}}
    one = {"dialect": "openai", "base_url": f"{url}/v1", "api_key": "the-key", **(upstream or {})}
    async with standing(config_of(url, ops=ops, upstreams={"one": one}, **{"breaker": BREAKER, **more})) as stand:
        yield stand


# the scenes


@asynccontextmanager
async def faulty(folder: Path, faults: str, calls: int = 30, **sections: Any) -> AsyncIterator[Stand]:
    """A provider with these faults has had some calls."""
    async with MockProvider() as provider, gateway(provider.url, folder, **sections) as stand:
        provider.switch("gpt", faults)
        for _ in range(calls):
            await call(stand)
        yield stand


@asynccontextmanager
async def wrong_base_url(folder: Path) -> AsyncIterator[Stand]:
    async with MockProvider() as provider:
        wrong = {"base_url": f"{provider.url}/api/wrong"}
        async with gateway(provider.url, folder, upstream=wrong) as stand:
            for _ in range(30):
                await call(stand)
            yield stand


@asynccontextmanager
async def provider_down(folder: Path) -> AsyncIterator[Stand]:
    async with gateway(f"http://127.0.0.1:{free_port()}", folder) as stand:
        for _ in range(40):
            await call(stand)
        yield stand


@asynccontextmanager
async def engine_died(folder: Path) -> AsyncIterator[Stand]:
    url = f"http://127.0.0.1:{free_port()}"
    restart = {"preset": "demo", "base_delay": "50ms", "max_delay": "100ms", "max_attempts": 2}
    argv = [sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"]
    engines = {"vllm": {"upstreams": ["one"], "command": {"argv": argv}, "restart": restart}}
    probe = {"probe": {"interval": "50ms", "timeout": "1s", "max_failures": 2}}
    async with gateway(url, folder, upstream=probe, engines=engines) as stand:
        supervisor = stand.app.engines.find("vllm")
        assert supervisor is not None
        await eventually(lambda: supervisor.seen().now.state == "failed", within_s=20)
        yield stand


@asynccontextmanager
async def operator_hold(folder: Path) -> AsyncIterator[Stand]:
    async with MockProvider() as provider, gateway(provider.url, folder) as stand:
        await change(stand.url, "deployments/drain", deployment="one/gpt", reason="new GPUs")
        await call(stand)
        yield stand


@asynccontextmanager
async def disk_full(folder: Path) -> AsyncIterator[Stand]:
    """Other bodies take up the room for large ones."""
    async with MockProvider() as provider, gateway(provider.url, folder, server={"max_spool": "4MiB"}) as stand:
        stand.app.gateway.spool.reserve((4 << 20) - 1000, 0)
        assert (await ask(stand.url, CHAT.path, CHAT.body(prompt="x" * (3 << 20)))).status == 503
        yield stand
        stand.app.gateway.spool.release((4 << 20) - 1000)


@dataclass(frozen=True, slots=True)
class Case:
    """A scene, and what its first card says."""

    scene: Callable[[Path], AbstractAsyncContextManager[Stand]]
    cause: str
    remedy: str


CASES: Mapping[str, Case] = {
    "quota spent": Case(
        lambda folder: faulty(folder, "quota"),
        "one: the quota of the account is spent",
        "Raise the quota or add credit",
    ),
    "bad key": Case(
        lambda folder: faulty(folder, "status:401"),
        "one refuses its credential",
        "Renew the upstream's api_key",
    ),
    "wrong base_url": Case(
        wrong_base_url,
        "one does not know the path or the model: check base_url",
        "Correct the upstream's base_url",
    ),
    "provider down": Case(provider_down, "one fails (network", "Check base_url, DNS, the network"),
    "brown-out": Case(
        lambda folder: faulty(folder, "status:503@60%", 60),
        "one fails (overloaded, status 503",
        "Wait until the provider has capacity",
    ),
    "429 storm": Case(
        lambda folder: faulty(folder, "status:429:30"),
        "one limits the rate of calls",
        "Raise the rate limit at the provider",
    ),
    "slow model": Case(
        lambda folder: faulty(folder, "latency:2s", timeout={"attempt": "200ms", "total": "400ms"}),
        "one fails (",
        "Check whether the provider is slow",
    ),
    "engine died": Case(engine_died, "exit code 3", "Read the engine's output"),
    "operator hold": Case(operator_hold, "drained by ann", "Put the deployment back into service"),
    "disk full": Case(disk_full, "the disk under TMPDIR is full", "Free disk space under TMPDIR"),
}


def first_card(page: Page) -> Locator:
    return page.locator("#incidents .incident").first


@pytest.mark.parametrize("name", CASES)
async def test_first_screen_names_cause_and_remedy(opens: Opens, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    async with case.scene(tmp_path) as stand, opens(**SCREEN) as window:
        page = await window.open(stand.url)
        card = first_card(page)
        await expect(card).to_contain_text(case.cause)
        await expect(card.locator("[data-part=remedy]")).to_contain_text(case.remedy)
        await expect(card.locator("[data-part=doing]")).to_contain_text("The gateway: ")
        for part in ("title", "facts", "doing", "remedy"):
            await expect(card.locator(f"[data-part={part}]")).to_be_in_viewport(ratio=1)
        await expect(page.locator("#status-causes")).to_be_visible()


# the view and its evidence


async def test_nothing_is_shown_when_all_is_well(opens: Opens, tmp_path: Path) -> None:
    async with MockProvider() as provider, gateway(provider.url, tmp_path) as stand, opens(**SCREEN) as window:
        assert await call(stand) == 200
        page = await window.open(stand.url)
        await expect(page.locator("#status-state")).to_have_text("Healthy")
        await expect(page.locator("#incidents-part")).to_be_hidden()
        await expect(page.locator("#status-causes")).to_be_hidden()


async def test_evidence_has_the_words_of_the_provider_for_operators_only(opens: Opens, tmp_path: Path) -> None:
    async with faulty(tmp_path, "quota") as stand:
        for token, quotes in ((SHARED, 1), (VIEWER, 0)):
            async with opens(**SCREEN) as window:
                page = await window.open(stand.url, token=token)
                await first_card(page).locator("summary").click()
                errors = first_card(page).locator(".errors li").first
                await expect(errors).to_contain_text(
                    "quota exhausted · status 429 · code insufficient_quota · request req_"
                )
                await expect(errors.locator("q")).to_have_count(quotes)
                button = first_card(page).get_by_role("button", name="Reset")
                await expect(button.first).to_be_visible(visible=quotes == 1)


async def test_button_of_a_card_lifts_the_restriction(opens: Opens, tmp_path: Path) -> None:
    async with operator_hold(tmp_path) as stand, opens(**SCREEN) as window:
        page = await window.open(stand.url)
        await first_card(page).get_by_role("button", name="Uncordon: one/gpt").click()
        await page.get_by_label("Reason").fill("the GPUs are in")
        await page.locator("#act-do").click()
        await expect(page.locator("#announcement")).to_contain_text("Done: Uncordon")
        await expect(page.locator("#incidents-part")).to_be_hidden()
        assert await call(stand) == 200


async def test_pages_of_deployments_and_calls_have_addresses_and_the_back_button_leaves_them(
    opens: Opens, tmp_path: Path
) -> None:
    async with faulty(tmp_path, "status:503") as stand, opens(**SCREEN) as window:
        page = await window.open(stand.url)
        await page.locator("#tiles a", has_text="one/gpt").click()
        deployment, waterfall = page.locator("dialog#deployment"), page.locator("dialog#call")
        await expect(deployment).to_contain_text("failures in a row")
        await expect(deployment).to_contain_text("Wait until the provider has capacity")
        await expect(deployment).to_contain_text("overloaded")
        await expect(deployment.locator(".keys").first).to_contain_text("base_url")
        assert page.url.endswith("/dashboard#deployment=one%2Fgpt")
        await deployment.locator("a", has_text="lg-").first.click()
        await expect(waterfall.locator(".waterfall")).to_be_visible()
        await expect(deployment).to_be_hidden()
        call_id = page.url.partition("#call=")[2]
        await page.go_back()
        await expect(waterfall).to_be_hidden()
        await expect(deployment).to_be_visible()
        await page.go_back()
        await expect(deployment).to_be_hidden()

        await page.goto(f"{stand.url}/dashboard#deployment=one%2Fgpt")
        await page.reload()
        await expect(deployment).to_contain_text("failures in a row")
        await deployment.get_by_role("button", name="Close").click()
        await expect(deployment).to_be_hidden()
        await page.get_by_role("button", name="Find a call").click()
        await page.locator("#find-id").fill(call_id)
        await page.keyboard.press("Enter")
        await expect(waterfall.locator(".waterfall")).to_be_visible()
        await expect(page.locator("#call-head")).to_have_text(f"Call {call_id}")


async def test_refused_call_leads_to_the_calls_that_caused_the_refusal(opens: Opens, tmp_path: Path) -> None:
    async with faulty(tmp_path, "status:503") as stand, opens(**SCREEN) as window:
        page = await window.open(stand.url)
        await page.locator("#calls button", has_text="refused by breaker").click()
        await page.locator("dialog#call .skipped a[href^='#call=']").first.click()
        await expect(page.locator("dialog#call .waterfall .reason")).to_contain_text("503")


# many models and deployments


async def test_two_hundred_deployments_fit_on_a_page_and_all_can_be_shown(opens: Opens, tmp_path: Path) -> None:
    names = [f"model-{number:02}" for number in range(50)]
    several = [{"upstream": "one", "model": f"m{number}"} for number in range(4)]
    models = {name: {"deployments": [{**one, "model": f"{name}-{one['model']}"} for one in several]} for name in names}
    async with MockProvider() as provider, gateway(provider.url, tmp_path, models=models) as stand:
        await change(stand.url, "deployments/drain", deployment="one/model-07-m0", reason="new GPUs")
        async with opens(**SCREEN) as window:
            page = await window.open(stand.url)
            await expect(page.locator("#tiles .tile")).to_have_count(1)
            await expect(page.locator("#tiles")).to_contain_text("one/model-07-m0")
            await expect(page.locator("#models tbody tr")).to_have_count(16)
            await page.get_by_text("healthy deployments").click()
            await expect(page.locator("#healthy .tile")).to_have_count(203)
            await page.get_by_role("button", name="Show all 52 models").click()
            await expect(page.locator("#models tbody tr")).to_have_count(53)
            await page.get_by_role("button", name="Show all 204 deployments").click()
            await expect(page.locator("#load tbody tr")).to_have_count(204)


async def test_header_names_the_instance_and_the_time_zone(opens: Opens, tmp_path: Path) -> None:
    async with (
        MockProvider() as provider,
        gateway(provider.url, tmp_path) as stand,
        opens(**SCREEN, timezone_id="Asia/Kolkata") as window,
    ):
        page = await window.open(stand.url)
        await expect(page.locator("#place")).to_contain_text(stand.url.removeprefix("http://"))
        await expect(page.locator("#place")).to_contain_text("(UTC+5:30)")
