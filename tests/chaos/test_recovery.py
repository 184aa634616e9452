"""Retries, fallbacks and breakers over real sockets, as clients and providers see them."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.chaos.forms import BOTH, CHAT, MESSAGES, UNARY, Form, name_of
from tests.chaos.stand import Stand, config_of, facing, standing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import Close, Respond, ScriptedProvider, whole

THREE = {"max_attempts": 3}
both = pytest.mark.parametrize(("form", "is_stream"), BOTH, ids=name_of)
unary = pytest.mark.parametrize("form", UNARY, ids=name_of)

OVERLOADED = b'{"error": {"message": "later",  "type": "server_error"}}'


def script_of(form: Form, is_stream: bool) -> tuple[Respond, ...]:
    return form.good_stream if is_stream else form.ok


def body_of(request: bytes) -> dict[str, object]:
    body = json.loads(request.partition(b"\r\n\r\n")[2])
    assert isinstance(body, dict)
    return body


# retries


@both
async def test_third_attempt_answers(form: Form, is_stream: bool) -> None:
    async with facing([whole(503)], [whole(503)], script_of(form, is_stream), retry=THREE) as (stand, provider):
        reply = await form.ask(stand.url, stream=is_stream)
        assert (reply.status, reply.is_whole) == (200, True)
        assert reply.body == (form.stream_bytes if is_stream else form.answer)
        assert reply.headers["x-llm-guard-attempts"] == "3"
        assert reply.headers["x-llm-guard-deployment"] == form.deployment
        assert [body_of(request) for request in provider.requests] == [body_of(provider.requests[0])] * 3
        assert await stand.metric("llm_guard_retries_total", deployment=form.deployment) == 2


@both
async def test_last_error_of_the_provider_is_passed_on_unmodified(form: Form, is_stream: bool) -> None:
    headers = {"x-request-id": "req_7", "x-ratelimit-remaining": "0", "retry-after": "0.01", "x-should-retry": "true"}
    async with facing([whole(500)], [whole(503, OVERLOADED, headers)], retry=THREE) as (stand, provider):
        reply = await form.ask(stand.url, stream=is_stream)
        assert (reply.status, reply.body) == (503, OVERLOADED)
        assert reply.headers["x-request-id"] == "req_7"
        assert reply.headers["x-ratelimit-remaining"] == "0"
        assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == ("1", "10")
        assert reply.headers["x-should-retry"] == "false"
        assert "x-llm-guard-refused-by" not in reply.headers
        assert len(provider.requests) == 3


async def test_informative_error_is_reported_over_a_later_silent_one() -> None:
    async with facing([whole(503, OVERLOADED)], [Close()], retry={"max_attempts": 2}) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.body) == (503, OVERLOADED)


@unary
async def test_error_that_no_repetition_cures_is_passed_on_at_once(form: Form) -> None:
    bad = b'{"error":{"message":"no such parameter","type":"invalid_request_error"}}'
    async with facing([whole(400, bad)], retry=THREE) as (stand, provider):
        reply = await form.ask(stand.url)
        assert (reply.status, reply.body) == (400, bad)
        assert len(provider.requests) == 1
        assert stand.breaker(form.deployment).failures == 0


@pytest.mark.parametrize("headers", [{"retry-after-ms": "300"}, {"retry-after": "0.3"}])
async def test_retry_after_is_obeyed(headers: dict[str, str]) -> None:
    async with facing([whole(429, b"{}", headers)], CHAT.ok, retry=THREE) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert reply.status == 200
        assert 0.3 <= reply.took_s <= 0.33 + 0.25 + stand.lag_s


async def test_retry_after_above_max_delay_is_passed_on_at_once() -> None:
    retry = {"max_attempts": 3, "max_delay": "1s"}
    async with facing([whole(429, OVERLOADED, {"retry-after": "20"})], retry=retry) as (stand, provider):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.body) == (429, OVERLOADED)
        assert reply.headers["retry-after"] == "20"
        assert reply.took_s < 0.25 + stand.lag_s
        assert len(provider.requests) == 1


# fallbacks


@both
async def test_second_deployment_answers_in_place_of_the_first(form: Form, is_stream: bool) -> None:
    upstream = form.deployment.split("/")[0]
    deployments = [{"upstream": upstream, "model": name} for name in ("first", "second")]
    models = {form.model: {"deployments": deployments}}
    async with facing([whole(503)], script_of(form, is_stream), models=models) as (stand, provider):
        reply = await form.ask(stand.url, stream=is_stream)
        assert reply.body == (form.stream_bytes if is_stream else form.answer)
        assert reply.headers["x-llm-guard-attempts"] == "2"
        assert reply.headers["x-llm-guard-deployment"] == f"{upstream}/second"
        assert [body_of(request)["model"] for request in provider.requests] == ["first", "second"]
        assert await stand.metric("llm_guard_fallbacks_total", deployment=f"{upstream}/second") == 1


async def test_fallback_model_on_another_upstream_is_called_by_its_own_name() -> None:
    async with ScriptedProvider([whole(500)]) as failing, ScriptedProvider(CHAT.ok) as sound:
        upstreams = {"spare": {"dialect": "openai", "base_url": f"{sound.url}/v1", "api_key": "spare-key"}}
        models = {
            "gpt": {"deployments": [{"upstream": "one"}], "fallbacks": ["other"]},
            "other": {"deployments": [{"upstream": "spare", "model": "real-name"}]},
        }
        config = config_of(failing.url, retry={"max_attempts": 2}, models=models, upstreams=upstreams)
        async with standing(config) as stand:
            reply = await CHAT.ask(stand.url, temperature=0.5)
            assert reply.body == CHAT.answer
            assert reply.headers["x-llm-guard-attempts"] == "3"
            assert reply.headers["x-llm-guard-deployment"] == "spare/real-name"
            assert len(failing.requests) == 2
            (asked,) = map(body_of, sound.requests)
            assert asked == {**body_of(failing.requests[0]), "model": "real-name"}
            assert b"authorization: bearer spare-key" in sound.requests[0].lower()


async def test_when_everything_fails_the_last_answer_is_passed_on() -> None:
    deployments = [{"upstream": "one", "model": name} for name in ("first", "second")]
    last = b'{"error":{"message":"the last","type":"server_error"}}'
    answers = [[whole(503, OVERLOADED)], [whole(500, OVERLOADED)], [whole(529, last, {"x-last": "yes"})]]
    models = {
        "gpt": {"deployments": deployments, "fallbacks": ["other"]},
        "other": {"deployments": [{"upstream": "one", "model": "third"}]},
    }
    async with facing(*answers, models=models) as (stand, provider):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.body, reply.headers["x-last"]) == (529, last, "yes")
        assert reply.headers["x-should-retry"] == "false"
        assert [body_of(request)["model"] for request in provider.requests] == ["first", "second", "third"]


# effects of a breaker on calls


def check_refused(form: Form, reply: Reply, stand: Stand, open_for_s: float) -> None:
    assert (reply.status, reply.headers["x-llm-guard-refused-by"]) == (503, "breaker")
    assert reply.headers["x-should-retry"] == "false"
    assert form.deployment in form.error_of(reply)["message"]
    wait_ms = int(reply.headers["retry-after-ms"])
    # `breaker.open_jitter` shortens an opening by up to a tenth: a breaker's first draw may be the shortest.
    assert (open_for_s * 0.9 - 1 - stand.lag_s) * 1000 < wait_ms <= open_for_s * 1000
    assert wait_ms <= int(reply.headers["retry-after"]) * 1000 < wait_ms + 1000


@both
async def test_breaker_of_a_dead_provider_refuses_in_milliseconds(form: Form, is_stream: bool) -> None:
    breaker = {"consecutive_failures": 3, "open_for": "20s", "early_probes": False}
    async with facing([Close()], breaker=breaker) as (stand, provider):
        for _ in range(3):
            assert (await form.ask(stand.url, stream=is_stream)).status == 502
        refused = [await form.ask(stand.url, stream=is_stream) for _ in range(5)]
        for reply in refused:
            check_refused(form, reply, stand, 20)
        assert min(reply.took_s for reply in refused) < 0.01 + stand.lag_s
        assert len(provider.requests) == 3
        assert await stand.metric("llm_guard_breaker_state", deployment=form.deployment, state="open") == 1
        assert await stand.metric("llm_guard_refusals_total", reason="breaker") == 5


@pytest.mark.parametrize("answer", [whole(503), Close()], ids=["an error", "no answer"])
async def test_failure_that_opens_the_breaker_has_retry_after(answer: Respond | Close) -> None:
    """Without the header, a client that retries until it succeeds would back off longer and longer."""
    breaker = {"consecutive_failures": 3, "open_for": "20s", "early_probes": False}
    async with facing([answer], breaker=breaker) as (stand, _):
        replies = [await CHAT.ask(stand.url) for _ in range(3)]
    assert ["retry-after-ms" in reply.headers for reply in replies] == [False, False, True]
    assert 15_000 < int(replies[-1].headers["retry-after-ms"]) <= 20_000


async def test_open_breaker_is_passed_over_for_the_next_deployment() -> None:
    deployments = [{"upstream": "one", "model": name} for name in ("first", "second")]
    breaker = {"consecutive_failures": 1, "open_for": "20s"}
    models = {"gpt": {"deployments": deployments}}
    async with facing([whole(503)], CHAT.ok, models=models, breaker=breaker) as (stand, provider):
        for attempts in ("2", "1", "1"):
            reply = await CHAT.ask(stand.url)
            assert (reply.status, reply.headers["x-llm-guard-attempts"]) == (200, attempts)
        assert [body_of(request)["model"] for request in provider.requests] == ["first", "second", "second", "second"]


@both
async def test_probe_that_succeeds_closes_the_breaker(form: Form, is_stream: bool) -> None:
    breaker = {"consecutive_failures": 1, "open_for": "150ms"}
    async with facing([whole(503)], script_of(form, is_stream), breaker=breaker) as (stand, _):
        assert (await form.ask(stand.url, stream=is_stream)).status == 503
        assert (await form.ask(stand.url, stream=is_stream)).headers["x-llm-guard-refused-by"] == "breaker"
        await asyncio.sleep(0.15)
        assert (await form.ask(stand.url, stream=is_stream)).status == 200
        assert stand.breaker(form.deployment).state == "closed"
        assert (await form.ask(stand.url, stream=is_stream)).status == 200


async def test_probe_that_fails_opens_the_breaker_again() -> None:
    breaker = {"consecutive_failures": 1, "open_for": "150ms"}
    async with facing([whole(503)], breaker=breaker) as (stand, provider):
        assert (await CHAT.ask(stand.url)).status == 503
        await asyncio.sleep(0.15)
        assert "x-llm-guard-refused-by" not in (await CHAT.ask(stand.url)).headers
        refused = await CHAT.ask(stand.url)
        assert refused.headers["x-llm-guard-refused-by"] == "breaker"
        assert 0 < int(refused.headers["retry-after-ms"]) <= 150
        assert len(provider.requests) == 2


async def test_model_that_is_down_does_not_touch_another_on_the_same_upstream() -> None:
    breaker = {"consecutive_failures": 2, "open_for": "20s"}
    models = {"other": {"deployments": [{"upstream": "one"}]}}
    async with facing([whole(503)], [whole(503)], CHAT.ok, breaker=breaker, models=models) as (stand, _):
        other = b'{"model": "other"}'
        for _ in range(2):
            assert (await CHAT.ask(stand.url)).status == 503
        assert (await CHAT.ask(stand.url)).headers["x-llm-guard-refused-by"] == "breaker"
        assert (await ask(stand.url, CHAT.path, other)).status == 200
        assert stand.breaker("one/other").state == "closed"


async def test_rate_limits_and_bad_requests_open_no_breaker() -> None:
    breaker = {"consecutive_failures": 1}
    async with facing([whole(429)], [whole(400)], [whole(401)], MESSAGES.ok, breaker=breaker) as (stand, _):
        statuses = [(await MESSAGES.ask(stand.url)).status for _ in range(4)]
        assert statuses == [429, 400, 401, 200]
        assert stand.breaker(MESSAGES.deployment).state == "closed"
