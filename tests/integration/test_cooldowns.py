"""Cooldowns over real sockets: which deployments are skipped after which failure, and what clients receive
meanwhile."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from tests.chaos.forms import CHAT, MESSAGES, Form
from tests.chaos.sinks import refusing
from tests.chaos.stand import Stand, config_of, facing, standing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import Hold, Pause, Reset, ScriptedProvider, Step, whole

SPENT = (
    b'{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}'
)
LIMITED = b'{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}'
RETRY = {"max_attempts": 3}
NOISE = {"x-request-id": "req_1", "set-cookie": "__cf_bm=1", "x-ratelimit-remaining-requests": "0"}


async def ask_for(stand: Stand, model: str, headers: Mapping[str, str] | None = None, form: Form = CHAT) -> Reply:
    return await ask(stand.url, form.path, b'{"model":"%b"}' % model.encode(), headers)


def kind(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.headers["x-llm-guard-attempts"]


@asynccontextmanager
async def sharing(
    error: bytes, status: int = 429, headers: Mapping[str, str] | None = None, key: str | None = "k"
) -> AsyncIterator[tuple[Stand, ScriptedProvider, ScriptedProvider]]:
    """Three models at one upstream that always answers with this error, each with a second deployment at another
    upstream."""
    async with (
        ScriptedProvider([whole(status, error, headers)]) as spent,
        ScriptedProvider(CHAT.ok) as good,
    ):
        own = {"api_key": key} if key else {}
        upstreams = {
            "spent": {"dialect": "openai", "base_url": f"{spent.url}/v1", **own},
            "good": {"dialect": "openai", "base_url": f"{good.url}/v1", "api_key": "other"},
        }
        models = {name: {"deployments": [{"upstream": "spent"}, {"upstream": "good"}]} for name in ("a", "b", "c")} | {
            f"{name}-alone": {"deployments": [{"upstream": "spent", "model": name}]} for name in ("a", "b", "c")
        }
        async with standing(config_of(good.url, retry=RETRY, upstreams=upstreams, models=models)) as stand:
            yield stand, spent, good


# a spent credential


async def test_spent_quota_burns_an_attempt_twice_and_then_none_on_any_model_of_the_credential() -> None:
    async with sharing(SPENT) as (stand, spent, good):
        replies = [await ask_for(stand, model) for model in "abcabc"]
        assert [kind(reply) for reply in replies] == [(200, "2")] * 2 + [(200, "1")] * 4
        assert {reply.headers["x-llm-guard-deployment"] for reply in replies} == {"good/a", "good/b", "good/c"}
        assert (len(spent.requests), len(good.requests)) == (2, 6)
        failed = [reply.headers["x-llm-guard-request-id"] for reply in (replies[1], replies[0])]
        skipped = {"deployment": "spent/c", "reason": "in cooldown", "failed_calls": failed}
        assert (await stand.calls())[-1]["skipped"] == [skipped]


async def test_response_in_a_cooldown_is_the_providers_own_with_the_wait_that_is_left() -> None:
    async with sharing(SPENT, headers=NOISE) as (stand, spent, _):
        first = [await ask_for(stand, model) for model in ("a-alone", "b-alone")]
        assert [kind(reply) for reply in first] == [(429, "1")] * 2
        assert first[0].headers["x-request-id"] == "req_1"
        reply = await ask_for(stand, "c-alone")
        assert (kind(reply), reply.body) == ((429, "0"), SPENT)
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["x-should-retry"] == "false"
        left_ms = int(reply.headers["retry-after-ms"])
        assert 0 < left_ms <= 6_000
        assert int(reply.headers["retry-after"]) == math.ceil(left_ms / 1000)
        # Ids, cookies and counts belong to another call.
        assert not {"x-request-id", "set-cookie", "x-ratelimit-remaining-requests"} & set(reply.headers)
        assert len(spent.requests) == 2
        line = (await stand.calls())[-1]
        assert (line["outcome"], line["gave_up"], line["attempts"]) == ("quota_exhausted", "in cooldown", [])


@pytest.mark.parametrize(("status", "error"), [(429, SPENT), (401, b'{"error":{"code":"invalid_api_key"}}')])
async def test_refusal_by_a_cooldown_is_reported_and_counted(status: int, error: bytes) -> None:
    async with sharing(error, status=status) as (stand, _, _):
        replies = [await ask_for(stand, "a-alone") for _ in range(3)]
        assert [reply.headers.get("x-llm-guard-refused-by") for reply in replies] == [None, None, "cooldown"]
        assert (replies[2].status, replies[2].body) == (status, error)
        assert await stand.metric("llm_guard_refusals_total", model="a-alone", reason="cooldown") == 1
        assert (await stand.calls())[-1]["refused_by"] == "cooldown"


async def test_cooldown_whose_error_was_too_large_to_store_is_reported_by_the_gateway() -> None:
    async with sharing(b'{"error":"%b"}' % (b"x" * 20_000), headers={"retry-after": "60"}) as (stand, _, _):
        assert kind(await ask_for(stand, "a-alone")) == (429, "1")
        reply = await ask_for(stand, "a-alone")
        assert (kind(reply), reply.headers["x-llm-guard-refused-by"]) == ((502, "0"), "cooldown")
        assert int(reply.headers["retry-after"]) <= 60


async def test_spent_key_of_a_caller_does_not_affect_others() -> None:
    mallory, alice = {"authorization": "Bearer sk-mallory"}, {"authorization": "Bearer sk-alice"}
    async with sharing(SPENT, key=None) as (stand, _, _):
        replies = [await ask_for(stand, "a-alone", mallory) for _ in range(3)]
        assert [kind(reply) for reply in replies] == [(429, "1"), (429, "1"), (429, "0")]
        assert kind(await ask_for(stand, "a-alone", alice)) == (429, "1")


async def test_invented_account_of_a_caller_does_not_affect_others() -> None:
    made_up = {"OpenAI-Organization": "org-nowhere"}
    async with sharing(b'{"error":{"code":"invalid_api_key"}}', status=401) as (stand, _, _):
        replies = [await ask_for(stand, "a-alone", made_up) for _ in range(3)]
        assert [kind(reply) for reply in replies] == [(401, "1"), (401, "1"), (401, "0")]
        assert kind(await ask_for(stand, "a-alone")) == (401, "1")


async def test_refusals_of_a_restricted_key_put_no_model_in_cooldown() -> None:
    """GET /v1/organization/… with a key for models: any caller can send it, at any rate."""
    async with facing(*[[whole(401)]] * 5, CHAT.ok) as (stand, _):
        for _ in range(5):
            assert (await ask(stand.url, "/v1/organization/usage", method="GET")).status == 401
        assert (await CHAT.ask(stand.url)).status == 200


# Retry-After of a deployment


async def test_deployment_that_requested_a_minute_gets_one_attempt_in_it() -> None:
    async with sharing(LIMITED, headers={"retry-after": "60"}) as (stand, spent, _):
        first = await ask_for(stand, "a-alone")
        assert (kind(first), first.headers["retry-after"]) == ((429, "1"), "60")
        second = await ask_for(stand, "a-alone")
        assert (kind(second), second.body) == ((429, "0"), LIMITED)
        assert 30_000 < int(second.headers["retry-after-ms"]) <= 60_000
        assert kind(await ask_for(stand, "a")) == (200, "1")
        assert kind(await ask_for(stand, "b-alone")) == (429, "1")
        assert len(spent.requests) == 2


async def test_unreadable_wait_of_the_provider_is_not_passed_on() -> None:
    async with facing([whole(503, b"{}", {"retry-after": "soon", "x-should-retry": "true"})]) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.headers["x-should-retry"]) == (503, "false")
        assert "retry-after" not in reply.headers


# hosts


BREAKER = {"consecutive_failures": 2, "open_for": "30s"}
MODELS = {name: {"deployments": [{"upstream": "one", "model": name}]} for name in ("x", "y", "z")}


async def test_host_that_refuses_connections_is_left_alone_by_all_its_models() -> None:
    with refusing() as (url, _):
        async with standing(config_of(url, models=MODELS, breaker=BREAKER)) as stand:
            await check_host_is_left_alone(stand)


async def check_host_is_left_alone(stand: Stand) -> None:
    assert [kind(await ask_for(stand, model)) for model in "xy"] == [(502, "1")] * 2
    reply = await ask_for(stand, "z")
    assert (kind(reply), reply.headers["x-llm-guard-refused-by"]) == ((503, "0"), "breaker")
    assert 1 <= int(reply.headers["retry-after"]) <= 30
    # The other upstream at the same address has a breaker of its own.
    assert kind(await ask_for(stand, "claude", form=MESSAGES)) == (502, "1")


@pytest.mark.parametrize(
    "script", [[Reset()], [whole(500)], [whole(503)], [Hold()]], ids=["reset", "500", "503", "silence"]
)
async def test_model_that_fails_leaves_the_others_of_its_host_alone(script: list[Step]) -> None:
    scripts = [*[script] * 2, CHAT.ok]
    async with facing(*scripts, models=MODELS, breaker=BREAKER, timeout={"attempt": "100ms"}) as (stand, provider):
        for _ in range(2):
            assert (await ask_for(stand, "x")).status >= 500
        assert (await ask_for(stand, "x")).headers["x-llm-guard-refused-by"] == "breaker"
        assert kind(await ask_for(stand, "y")) == (200, "1")
        assert len(provider.requests) == 3


async def test_client_with_a_short_timeout_opens_no_breaker() -> None:
    """Otherwise any caller could take a model away from all others by sending calls with a limit of 10 ms."""
    answers = asyncio.Event()
    script: list[Step] = [Pause(answers), *CHAT.ok]
    async with facing(*[script] * 11, breaker=BREAKER) as (stand, provider):
        for _ in range(10):
            reply = await ask(stand.url, CHAT.path, CHAT.body(), {"x-stainless-read-timeout": "0.04"})
            assert (reply.status, reply.headers["x-llm-guard-refused-by"]) == (504, "deadline")
        assert await stand.metric("llm_guard_refusals_total", model="gpt", reason="deadline") == 10
        # Enough to open it. On a busy machine a call may be over before it is sent.
        assert len(provider.requests) > 2
        answers.set()
        assert (await CHAT.ask(stand.url)).status == 200
        assert stand.breaker(CHAT.deployment).failures == 0
