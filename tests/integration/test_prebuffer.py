"""Prebuffering the first tokens: a stream that dies meanwhile is retried before the client has seen any of it."""

from __future__ import annotations

import pytest

from tests.chaos.forms import CHAT, STREAMS, Form, name_of
from tests.chaos.stand import facing
from tests.chaos.wire import Connection
from tests.fakes.client import raw_request
from tests.fakes.provider import END, Close, Hold, Pause, Reset, Step, chunk, stream_head

streams = pytest.mark.parametrize("form", STREAMS, ids=name_of)
RETRY = {"max_attempts": 2}
THREE = {"prebuffer": {"tokens": 3, "time": "5s"}}
SHORT = {"prebuffer": {"tokens": 100, "time": "100ms"}}


def begun(form: Form, tokens: int) -> list[Step]:
    steps: list[Step] = [stream_head()]
    for _ in range(tokens):
        steps += [chunk(form.token), Pause(0.01)]
    return steps


@streams
@pytest.mark.parametrize("death", [Close(), Reset(), END], ids=["closed", "reset", "ended"])
async def test_stream_that_dies_in_the_prebuffer_is_retried(form: Form, death: Step) -> None:
    async with facing([*begun(form, 2), death], form.good_stream, stream=THREE, retry=RETRY) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.body == form.stream_bytes
        assert reply.headers["x-llm-guard-attempts"] == "2"
        assert await stand.metric("llm_guard_wasted_tokens_total", model=form.model) == 2


@streams
async def test_error_event_in_the_prebuffer_is_retried(form: Form) -> None:
    script: list[Step] = [*begun(form, 2), chunk(form.error), END]
    async with facing(script, form.good_stream, stream=THREE, retry=RETRY) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.body == form.stream_bytes


@streams
async def test_stream_that_dies_after_it_is_reported(form: Form) -> None:
    async with facing([*begun(form, 3), Close()], form.good_stream, stream=THREE, retry=RETRY) as (stand, provider):
        reply = await form.ask(stand.url, stream=True)
        assert reply.body.startswith(form.token * 3 + b"event: error")
        assert len(provider.requests) == 1


@streams
async def test_tokens_are_held_for_so_long_at_most(form: Form) -> None:
    script: list[Step] = [*begun(form, 2), Pause(0.3), chunk(form.token), Close()]
    async with facing(script, stream=SHORT, retry=RETRY) as (stand, provider):
        reply = await form.ask(stand.url, stream=True)
        assert reply.body.startswith(form.token * 3 + b"event: error")
        assert len(provider.requests) == 1


@streams
async def test_short_stream_is_complete_although_it_never_had_so_many_tokens(form: Form) -> None:
    async with facing(form.good_stream, stream=THREE) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.body == form.stream_bytes


async def test_first_token_limit_does_not_end_a_prebuffered_stream() -> None:
    script: list[Step] = [*begun(CHAT, 1), Pause(0.4), *CHAT.good_stream[1:]]
    async with facing(script, stream=THREE, timeout={"first_token": "200ms"}) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.is_whole


async def test_stream_is_not_prebuffered_past_the_client_deadline() -> None:
    script: list[Step] = [stream_head(), Pause(0.5), chunk(CHAT.token), Pause(0.6), *CHAT.good_stream[2:]]
    async with facing(script, stream={"prebuffer": {"tokens": 100, "time": "5s"}}) as (stand, _):
        async with Connection(stand.url) as client:
            reply = await client.ask(raw_request(CHAT.path, CHAT.body(stream=True), {"x-stainless-timeout": "1"}))
        assert reply.is_whole


async def test_stream_that_stalls_in_the_prebuffer_is_passed_on_and_then_watched() -> None:
    async with facing([*begun(CHAT, 2), Hold()], stream=SHORT, timeout={"idle": "200ms"}) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.body.startswith(CHAT.token * 2 + b"event: error")
        (call,) = await stand.calls()
        assert call["outcome"] == "timeout"
