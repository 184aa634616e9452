"""Faults of a provider before commit: each is named correctly, and a second attempt recovers from it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest

from tests.chaos.forms import BOTH, CHAT, MESSAGES, RESPONSES, STREAMS, UNARY, Form, name_of
from tests.chaos.sinks import half_closing
from tests.chaos.stand import Stand, config_of, facing, standing
from tests.chaos.wire import Reply
from tests.fakes.provider import END, Close, Hold, Pause, Reset, Respond, Step, chunk, stream_head, whole

RETRY = {"max_attempts": 2}
both = pytest.mark.parametrize(("form", "is_stream"), BOTH, ids=name_of)
unary = pytest.mark.parametrize("form", UNARY, ids=name_of)
streams = pytest.mark.parametrize("form", STREAMS, ids=name_of)

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
ACCENTED = '{"choices":[],"text":"é"}'.encode()
INSIDE = ACCENTED.index(b"\xc3") + 1


async def check_failed(stand: Stand, form: Form, reply: Reply, kind: str) -> None:
    """Expects a 502 in the form's dialect and one recorded failure of that kind."""
    assert (reply.status, reply.is_whole) == (502, True)
    assert form.deployment in form.error_of(reply)["message"]
    assert reply.headers["x-should-retry"] == "false"
    (call,) = await stand.calls()
    assert call["outcome"] == kind
    assert await stand.metric("llm_guard_attempts_total", deployment=form.deployment, outcome=kind) == 1
    assert stand.breaker(form.deployment).failures == 1


def fault(name: str, kind: str, *steps: Step) -> object:
    return pytest.param(kind, steps, id=name)


HEADLESS = [
    fault("reset", "network", Reset()),
    fault("closed without an answer", "network", Close()),
    fault("closed in the middle of the head", "network", Respond(HEAD), Close()),
    fault("not HTTP", "malformed", Respond(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), Hold()),
    fault("a status that is none", "malformed", Respond(b"HTTP/1.1 20x OK\r\n\r\n"), Hold()),
    fault("a header without a colon", "malformed", Respond(b"HTTP/1.1 200 OK\r\nbroken\r\n\r\n"), Hold()),
    fault("a huge header", "malformed", Respond(HEAD + b"x-pad: " + b"x" * 40_000 + b"\r\n\r\n"), Hold()),
]
CUT_BODIES = [
    fault("reset after the head", "truncated", whole(200, b"", {"content-length": "9"}), Pause(0.02), Reset()),
    fault("cut before its content-length", "truncated", whole(200, b"{", {"content-length": "99"}), Close()),
    fault("cut JSON of the right content-length", "truncated", whole(200, ACCENTED[:-4])),
    fault("cut inside a character", "truncated", whole(200, ACCENTED[:INSIDE])),
    fault("cut in a chunk", "truncated", Respond(HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n{"), Close()),
    fault("cut between chunks", "truncated", Respond(HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"), Close()),
    fault("cut without any length", "truncated", Respond(HEAD + b"\r\n" + ACCENTED[:-4]), Close()),
]
CUT_STREAMS = [
    fault("nothing", "truncated", stream_head(), END),
    fault("cut before its first event", "truncated", stream_head(), Close()),
    fault("cut inside its first event", "truncated", stream_head(), chunk(b'data: {"choi'), Close()),
    fault("not JSON", "malformed", stream_head(), chunk(b"data: {oops\n\n"), Hold()),
    fault("not JSON objects", "malformed", stream_head(), chunk(b'data: "hello"\n\n'), Hold()),
]


@both
@pytest.mark.parametrize(("kind", "steps"), HEADLESS)
async def test_fault_before_the_head(form: Form, is_stream: bool, kind: str, steps: Sequence[Step]) -> None:
    async with facing(steps) as (stand, _):
        await check_failed(stand, form, await form.ask(stand.url, stream=is_stream), kind)


@unary
@pytest.mark.parametrize(("kind", "steps"), CUT_BODIES)
async def test_fault_in_a_unary_body(form: Form, kind: str, steps: Sequence[Step]) -> None:
    async with facing(steps) as (stand, _):
        await check_failed(stand, form, await form.ask(stand.url), kind)


@streams
@pytest.mark.parametrize(("kind", "steps"), CUT_STREAMS)
async def test_fault_before_the_first_token(form: Form, kind: str, steps: Sequence[Step]) -> None:
    async with facing(steps) as (stand, _):
        await check_failed(stand, form, await form.ask(stand.url, stream=True), kind)


@pytest.mark.parametrize("form", [CHAT, RESPONSES], ids=name_of)
async def test_done_alone_is_no_answer(form: Form) -> None:
    async with facing([stream_head(), chunk(b"data: [DONE]\n\n"), END]) as (stand, _):
        await check_failed(stand, form, await form.ask(stand.url, stream=True), "truncated")


@pytest.mark.parametrize(("kind", "steps"), [*HEADLESS, *CUT_BODIES])
async def test_fault_in_a_unary_answer_is_cured_by_a_second_attempt(kind: str, steps: Sequence[Step]) -> None:
    async with facing(steps, CHAT.ok, retry=RETRY) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.body) == (200, CHAT.answer)
        assert reply.headers["x-llm-guard-attempts"] == "2"
        assert await stand.metric("llm_guard_retries_total", deployment=CHAT.deployment, kind=kind) == 1


@pytest.mark.parametrize(("kind", "steps"), [*HEADLESS, *CUT_STREAMS])
async def test_fault_at_the_start_of_a_stream_is_cured_by_a_second_attempt(kind: str, steps: Sequence[Step]) -> None:
    async with facing(steps, MESSAGES.good_stream, retry=RETRY) as (stand, _):
        reply = await MESSAGES.ask(stand.url, stream=True)
        assert (reply.status, reply.body) == (200, MESSAGES.stream_bytes)
        assert reply.headers["x-llm-guard-attempts"] == "2"
        assert await stand.metric("llm_guard_retries_total", deployment=MESSAGES.deployment, kind=kind) == 1


@both
async def test_refused_connection_is_a_network_failure(form: Form, is_stream: bool) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        async with standing(config_of(f"http://127.0.0.1:{unheard.getsockname()[1]}")) as stand:
            await check_failed(stand, form, await form.ask(stand.url, stream=is_stream), "network")


@both
async def test_head_that_stops_in_the_middle_ends_at_the_limit(form: Form, is_stream: bool) -> None:
    limits = {"attempt": "100ms", "first_token": "100ms"}
    async with facing([Respond(HEAD), Hold()], timeout=limits) as (stand, provider):
        assert (await form.ask(stand.url, stream=is_stream)).status == 504
        assert await provider.closed_within(1)


async def test_provider_that_half_closes_after_half_an_answer_has_cut_it() -> None:
    half = whole(200, b"{", {"content-length": "99"}).data
    async with half_closing(half) as url, standing(config_of(url)) as stand:
        await check_failed(stand, CHAT, await CHAT.ask(stand.url), "truncated")


async def test_provider_that_half_closes_after_a_whole_answer_has_answered() -> None:
    async with half_closing(whole(200, CHAT.answer).data) as url, standing(config_of(url)) as stand:
        assert (await CHAT.ask(stand.url)).body == CHAT.answer


@both
@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"]
)
async def test_interim_answers_are_passed_over(form: Form, is_stream: bool, interim: bytes) -> None:
    script = form.good_stream if is_stream else form.ok
    async with facing([Respond(interim), Respond(interim), *script]) as (stand, _):
        reply = await form.ask(stand.url, stream=is_stream)
        assert reply.body == (form.stream_bytes if is_stream else form.answer)
        assert reply.headers["x-llm-guard-attempts"] == "1"


@streams
async def test_success_that_turns_into_an_error_event_is_retried(form: Form) -> None:
    failing = [stream_head(), *map(chunk, form.preamble), chunk(form.error), END]
    async with facing(failing, form.good_stream, retry=RETRY) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.body == form.stream_bytes
        assert reply.headers["x-llm-guard-attempts"] == "2"


@streams
async def test_error_event_before_the_first_token_becomes_an_error_answer(form: Form) -> None:
    failing = [stream_head(), *map(chunk, form.preamble), chunk(form.error), END]
    async with facing(failing, retry=RETRY) as (stand, provider):
        reply = await form.ask(stand.url, stream=True)
        assert reply.status >= 500
        assert reply.headers["content-type"] == "application/json"
        assert reply.body in form.error
        assert b"verloaded" in reply.body
        assert len(provider.requests) == 2


async def test_error_event_that_no_repetition_cures_is_answered_at_once() -> None:
    error = (
        b'data: {"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}\n\n'
    )
    async with facing([stream_head(), chunk(error), END], retry=RETRY) as (stand, provider):
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.status == 400
        assert reply.json["error"]["code"] == "context_length_exceeded"
        assert len(provider.requests) == 1
        assert stand.breaker(CHAT.deployment).failures == 0


@unary
async def test_stale_connection_is_replaced_at_once_and_counts_as_no_failure(form: Form) -> None:
    async with facing(form.ok, [Close()], form.ok) as (stand, provider):
        assert (await form.ask(stand.url)).status == 200
        reply = await form.ask(stand.url)
        assert (reply.status, reply.body) == (200, form.answer)
        assert reply.headers["x-llm-guard-attempts"] == "2"
        assert [len(connection.requests) for connection in provider.connections] == [2, 1]
        assert stand.breaker(form.deployment).failures == 0
        assert await stand.metric("llm_guard_retries_total", kind="retired") == 1


async def test_stale_connection_is_replaced_once_only() -> None:
    async with facing([Pause(0.05), *CHAT.ok], [Pause(0.05), *CHAT.ok], [Close()]) as (stand, provider):
        first = await asyncio.gather(CHAT.ask(stand.url), CHAT.ask(stand.url))
        assert [reply.status for reply in first] == [200, 200]
        reply = await CHAT.ask(stand.url)
        assert reply.status == 502
        assert CHAT.error_of(reply)["code"] == "upstream_retired"
        assert [len(connection.requests) for connection in provider.connections] == [2, 2]


async def test_new_connection_that_closes_without_an_answer_is_not_taken_for_a_stale_one() -> None:
    async with facing([Close()], CHAT.ok) as (stand, provider):
        assert (await CHAT.ask(stand.url)).status == 502
        assert len(provider.requests) == 1
