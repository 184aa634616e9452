"""A caller that fails while all others succeed gets a breaker of its own; an operator can find it and lift the
refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, config_of, standing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import ScriptedProvider, whole
from tests.integration.operating import change, get

CLIENT_KEYS = [{"name": "victim", "key": "sk-victim"}, {"name": "poisoner", "key": "sk-poisoner"}]
BREAKER = {"sensitivity": "literal", "consecutive_failures": 6, "open_for": "60s", "early_probes": False}
BROKEN = [whole(500)]
ONCE = {"max_attempts": 1}


async def call(stand: Stand, key: str) -> Reply:
    return await ask(stand.url, CHAT.path, CHAT.body(), {"authorization": f"Bearer {key}"})


async def statuses(stand: Stand, key: str, calls: int) -> set[int]:
    return {(await call(stand, key)).status for _ in range(calls)}


@asynccontextmanager
async def poisoned() -> AsyncIterator[Stand]:
    """Runs a gateway at which the poisoner failed while the victim did not, so that the poisoner's own breaker is
    open."""
    scripts = [*[BROKEN] * 3, CHAT.ok, *[BROKEN] * 8, CHAT.ok]
    async with ScriptedProvider(*scripts) as provider:
        upstreams = {"one": {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_key": "k"}}
        server = {"client_keys": CLIENT_KEYS}
        async with standing(config_of(provider.url, upstreams=upstreams, breaker=BREAKER, server=server)) as stand:
            assert await statuses(stand, "sk-poisoner", 3) == {500}
            assert await statuses(stand, "sk-victim", 1) == {200}
            assert await statuses(stand, "sk-poisoner", 8) == {500}
            yield stand


async def test_caller_whose_calls_alone_fail_is_refused_alone() -> None:
    async with poisoned() as stand:
        refused = await call(stand, "sk-poisoner")
        assert (refused.status, refused.headers["x-llm-guard-refused-by"]) == (503, "breaker")
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert await statuses(stand, "sk-victim", 5) == {200}
        assert await stand.metric("llm_guard_breaker_state", deployment="one/gpt", state="closed") == 1
        (line,) = [line for line in stand.log if line["event"] == "calls of a single caller fail"]
        assert (line["deployment"], line["caller"]) == ("one/gpt", "poisoner")


async def test_failures_of_one_caller_neither_degrade_its_route_nor_raise_an_alert() -> None:
    """Otherwise one tenant could trigger fallback responses for all others, and a page at night."""
    async with poisoned() as stand:
        model = stand.app.gateway.recorder.models["gpt"]
        before = model.judged
        assert await statuses(stand, "sk-poisoner", 20) == {503}
        assert model.judged == before
        assert await statuses(stand, "sk-victim", 5) == {200}
        assert model.judged == before + 5
        assert await stand.metric("llm_guard_client_calls_total", client="poisoner", outcome="refused") == 20


async def test_operator_finds_the_caller_and_lifts_the_refusal() -> None:
    async with poisoned() as stand:
        assert (await call(stand, "sk-poisoner")).status == 503
        (found,) = [each for each in await get(stand.url, "restrictions") if each["kind"] == "caller_breaker"]
        assert "poisoner, the only caller with failures," in found["cause"]
        assert "6 failures in a row" in found["cause"]
        await change(stand.url, "deployments/reset", **found["lift"]["body"])
        assert (await call(stand, "sk-poisoner")).status == 200
        assert not [each for each in await get(stand.url, "restrictions") if each["kind"] == "caller_breaker"]


async def test_operator_finds_the_caller_whose_calls_alone_meet_a_429() -> None:
    limited = [whole(429, headers={"retry-after": "30"})]
    async with ScriptedProvider(CHAT.ok, limited, limited, CHAT.ok) as provider:
        upstreams = {"one": {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_key": "k"}}
        config = config_of(provider.url, upstreams=upstreams, server={"client_keys": CLIENT_KEYS}, retry=ONCE)
        async with standing(config) as stand:
            assert await statuses(stand, "sk-victim", 1) == {200}
            assert await statuses(stand, "sk-poisoner", 2) == {429}
            assert await statuses(stand, "sk-victim", 5) == {200}
            (found,) = [each for each in await get(stand.url, "restrictions") if each["kind"] == "provider_pause"]
            assert "for calls of poisoner alone" in found["cause"]
            await change(stand.url, "deployments/reset", **found["lift"]["body"])
            assert await statuses(stand, "sk-poisoner", 1) == {200}
