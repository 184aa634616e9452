from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from llm_guard.config import parse_config
from llm_guard.outcome import Disposition, Exhausted, Failure, FailureKind, Refusal
from llm_guard.proxy.cache.response_buffer import ResponseBuffer
from llm_guard.proxy.cache.response_cache import ResponseCache
from llm_guard.proxy.call import Attempt, Call
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.response.fallback_response import FallbackResponder
from llm_guard.routing.route_table import compile_routes
from tests.fakes.clock import ManualClock
from tests.unit.proxy.attempts.plays import open_breaker

DOWN = Exhausted(Failure(FailureKind.SERVER_ERROR, "answered 500"), None, "max_attempts reached")
SHUT = Exhausted(None, Refusal(503, "breaker_open", "failing", by="breaker"), "breakers open")
HELD = Exhausted(None, Refusal(503, "deployment_held", "held", by="drain"), "out of service (operator)")
OWN_DOING = Exhausted(Failure(FailureKind.CONTEXT_LENGTH, "too long"), None, "final error")
LATE = Exhausted(Failure(FailureKind.TIMEOUT, "no answer", limit="total"), None, "deadline")
FULL = Refusal(503, "too_many_deferred_calls", "enough", by="limit")


@dataclass
class FakeStores:
    """A store of deferred calls and a response cache, which record the order in which they were used."""

    deferred_calls: str | Refusal = "p-1"
    has_old: bool = False
    done: list[str] = field(default_factory=list)

    async def defer(self, call: Call, *, is_at_once: bool) -> str | Refusal:
        assert not is_at_once
        assert call.failure or call.refusal
        self.done.append("deferred_call")
        return self.deferred_calls

    async def dead_letter(self, call: Call) -> str:
        assert call.failure or call.refusal
        self.done.append("dead_letter")
        call.disposition = call.disposition or Disposition()
        call.disposition.dead_letter_id = "l-1"
        return "l-1"

    async def find_stale(self, _call: Call) -> str | None:
        self.done.append("look")
        return "old" if self.has_old else None

    async def serve_stale(self, _call: Call, found: str, reply: ResponseWriter) -> None:
        self.done.append("stand in")
        await reply.send(200, "", [], found.encode())

    async def serve_status_api(self, _call: Call, _reply: ResponseWriter) -> None: ...


class Play:
    """One failed call to a route with these settings."""

    def __init__(
        self, *, headers: dict[str, str] | None = None, path: str = "/v1/chat/completions", **rules: Any
    ) -> None:
        self.clock = ManualClock()
        self.stores = FakeStores()
        model = {"deployments": [{"upstream": "a"}], **rules}
        upstreams = {"a": {"dialect": "openai", "base_url": "http://127.0.0.1:1/v1"}}
        config = parse_config(json.dumps({"upstreams": upstreams, "models": {"gpt": model}}), "test.yaml", {})
        route = compile_routes(config, 0.0).find("gpt")
        body = b'{"model": "gpt", "messages": []}'
        self.call = Call("lg-1", "openai", "POST", path, "", (), 0.0, body, model="gpt", route=route)
        self.recording = ResponseBuffer()
        self.reply = self.recording.reply()
        self.reply.request.names = headers or {}
        self.fallback = FallbackResponder(cast("ResponseCache", self.stores), self.stores, self.clock)

    async def give(self, result: Exhausted = DOWN) -> tuple[int, list[str]]:
        await self.fallback.respond(self.call, result, self.reply)
        return self.recording.status, self.stores.done

    @property
    def said(self) -> dict[str, str]:
        return dict(self.recording.headers)


STATIC: dict[str, Any] = {"static_response": "later"}
ON_FAILURE = {"mode": "on_failure"}
WANTED = {"x-llm-guard-dead-letter": "true"}


# order


async def test_call_without_any_rules_gets_its_failure() -> None:
    play = Play()
    assert await play.give() == (502, ["look"])
    assert play.call.outcome == "server_error"


async def test_stale_response_comes_first_and_the_dead_letter_before_it() -> None:
    play = Play(degraded=STATIC, deferred=ON_FAILURE, dead_letter="always")
    play.stores.has_old = True
    assert await play.give() == (200, ["look", "dead_letter", "stand in"])
    assert play.recording.body == b"old"


async def test_deferred_call_comes_before_the_static_response_and_needs_no_dead_letter() -> None:
    play = Play(degraded=STATIC, deferred=ON_FAILURE, dead_letter="always")
    assert await play.give() == (202, ["look", "deferred_call"])
    assert play.said["Location"].endswith("/p-1")


async def test_call_that_cannot_be_deferred_gets_the_static_response() -> None:
    play = Play(degraded=STATIC, deferred=ON_FAILURE, dead_letter="always")
    play.stores.deferred_calls = FULL
    assert await play.give() == (200, ["look", "deferred_call", "dead_letter"])
    assert (play.said["x-llm-guard-degraded"], play.said["x-llm-guard-dead-letter"]) == ("static", "l-1")
    assert b"later" in play.recording.body


async def test_failure_is_sent_with_its_dead_letter() -> None:
    play = Play(dead_letter="always")
    assert await play.give() == (502, ["look", "dead_letter"])
    assert play.said["x-llm-guard-dead-letter"] == "l-1"


@pytest.mark.parametrize("when", ["off", "on_request", "always"])
async def test_failure_becomes_a_deferred_call_only_where_configured(when: str) -> None:
    assert (await Play(deferred={"mode": when}).give())[1] == ["look"]


# failures and their causes


@pytest.mark.parametrize("result", [DOWN, SHUT, HELD, LATE], ids=lambda result: result.why)
async def test_call_is_a_failure_with_any_fallback_response(result: Exhausted) -> None:
    play = Play(degraded=STATIC, dead_letter="always")
    assert await play.give(result) == (200, ["look", "dead_letter"])
    assert play.call.outcome == (result.failure.kind.label if result.failure else "refused")
    assert play.call.sent_status == 200
    assert play.call.gave_up == result.why


async def test_client_error_is_passed_on_unchanged() -> None:
    play = Play(degraded=STATIC, deferred=ON_FAILURE, dead_letter="always")
    play.stores.has_old = True
    assert await play.give(OWN_DOING) == (502, [])


async def test_callers_own_key_that_was_refused_is_no_outage() -> None:
    refused = Exhausted(Failure(FailureKind.AUTH, "no such key"), None, "final error")
    play = Play(degraded=STATIC)
    assert (await play.give(refused))[1] == []
    play = Play(degraded=STATIC)
    assert play.call.route is not None
    play.call.attempts = [Attempt(play.call.route.targets[0], 0.0)]
    assert (await play.give(refused))[1] == []


@pytest.mark.parametrize(
    ("rule", "headers", "is_kept"),
    [
        ("always", {}, True),
        ("on_request", WANTED, True),
        ("on_request", {"x-llm-guard-dead-letter": " True "}, True),
        ("on_request", {"x-llm-guard-dead-letter": "false"}, False),
        ("on_request", {}, False),
        ("off", WANTED, False),
    ],
)
async def test_dead_letter_is_stored_if_route_and_client_want_it(
    rule: str, headers: dict[str, str], is_kept: bool
) -> None:
    assert ("dead_letter" in (await Play(dead_letter=rule, headers=headers).give())[1]) == is_kept


async def test_call_for_a_list_is_neither_stored_nor_deferred() -> None:
    play = Play(degraded=STATIC, deferred=ON_FAILURE, dead_letter="always", path="/v1/models")
    play.call.method = "GET"
    assert await play.give() == (502, ["look"])


async def test_invalid_request_that_fails_in_its_stream_leaves_no_dead_letter() -> None:
    play = Play(dead_letter="always")
    play.call.give_up(OWN_DOING)
    await play.fallback.dead_letter(play.call, play.reply)
    assert play.stores.done == []


# Retry-After of an open breaker


@pytest.mark.parametrize(("end", "retry_after"), [(DOWN, "30"), (OWN_DOING, None)], ids=["failing", "wrong request"])
async def test_failure_of_a_deployment_with_an_open_breaker_states_when_it_takes_calls_again(
    end: Exhausted, retry_after: str | None
) -> None:
    play = Play(breaker={"open_for": "30s", "open_jitter": 0, "early_probes": False})
    assert play.call.route is not None
    target = play.call.route.targets[0]
    open_breaker(target, play.clock.now())
    play.call.attempts = [Attempt(target, play.clock.now(), failure=end.failure)]
    await play.give(end)
    assert play.said.get("retry-after") == retry_after


# calls without a static response


async def test_embedding_has_no_static_answer() -> None:
    assert (await Play(degraded=STATIC, path="/v1/embeddings").give())[0] == 502


async def test_route_may_be_degraded_without_a_static_answer() -> None:
    assert (await Play(degraded={}).give())[0] == 502


async def test_body_that_cannot_be_read_again_gets_the_plain_text() -> None:
    for body in (b'{"tool_choice": "required"', b"\xff", b"[]", b'{"tool_choice": "\\ud800", "stream_options": 5}'):
        play = Play(degraded=STATIC)
        play.call.body = body
        await play.give()
        assert json.loads(play.recording.body)["choices"][0]["message"]["content"] == "later"


async def test_requested_format_is_read_from_a_compressed_body() -> None:
    import gzip

    play = Play(degraded=STATIC)
    play.call.body, play.call.content_encoding = gzip.compress(b'{"tool_choice": "required"}'), "gzip"
    await play.give()
    assert json.loads(play.recording.body)["choices"][0]["message"]["refusal"] == "later"


# after an early response head


@pytest.mark.parametrize("is_stream", [True, False])
async def test_static_response_follows_an_early_head_and_a_deferred_call_does_not(is_stream: bool) -> None:
    play = Play(degraded=STATIC, deferred=ON_FAILURE)
    play.call.is_stream = is_stream
    await play.reply.keep_waiting(play.call, [])
    assert await play.give() == (200, ["look"])
    body = bytes(play.recording.body)
    assert body.startswith(b": waiting\n\ndata: {" if is_stream else b"\n{")
    assert body.endswith(b"data: [DONE]\n\n") if is_stream else json.loads(body)
    assert not play.recording.is_broken
    assert play.reply.is_over


# shortened waits


@pytest.mark.parametrize(
    ("hurried_by", "failure", "is_cut_short"),
    [
        (10.0, LATE.failure, True),
        (10.0, Failure(FailureKind.TIMEOUT, "early", limit="attempt", is_early=True), True),
        (10.0, Failure(FailureKind.TIMEOUT, "its own limit", limit="attempt"), False),
        (10.0, DOWN.failure, False),
        (float("inf"), LATE.failure, False),
        (700.0, LATE.failure, False),
    ],
)
async def test_call_that_the_degraded_deadline_cut_short_is_marked(
    hurried_by: float, failure: Failure, is_cut_short: bool
) -> None:
    play = Play(degraded=STATIC)
    play.call.deadline_at = 600.0
    play.call.disposition = Disposition(degraded_deadline=hurried_by)
    await play.give(Exhausted(failure, None, "deadline"))
    assert play.call.disposition.was_cut_short == is_cut_short


async def test_early_head_does_not_extend_the_degraded_deadline() -> None:
    play = Play(degraded=STATIC)
    play.call.disposition = Disposition(degraded_deadline=10.0)
    play.call.client_deadline = 10.0
    await play.reply.keep_waiting(play.call, [])
    assert play.call.client_deadline == 10.0
