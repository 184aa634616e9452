"""What ends a stream is its dialect's own evidence; the formalities after it are the gateway's, if the provider forgets
them."""

from __future__ import annotations

import pytest

from tests.chaos.forms import CHAT, STREAMS, Form, name_of
from tests.chaos.stand import facing
from tests.fakes.provider import END, Close, Hold, Pause, Reset, Step, chunk, stream_head

streams = pytest.mark.parametrize("form", STREAMS, ids=name_of)
DONE = b"data: [DONE]\n\n"
FINISH = CHAT.end.removesuffix(DONE)
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'


@pytest.mark.parametrize("death", [END, Close(), Reset(), Hold()], ids=["ended", "closed", "reset", "never ended"])
async def test_finished_chat_stream_without_done_gets_one(death: Step) -> None:
    script: list[Step] = [stream_head(), chunk(CHAT.token), chunk(FINISH), Pause(0.05), death]
    async with facing(script) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.body == CHAT.token + FINISH + DONE
        assert reply.took_s < 4.0
        (call,) = await stand.calls()
        assert call["outcome"] == "ok"
        assert stand.breaker(CHAT.deployment).failures == 0


async def test_half_of_done_is_made_whole() -> None:
    script: list[Step] = [stream_head(), chunk(CHAT.token), chunk(FINISH + b"data: [DO"), END]
    async with facing(script) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.body == CHAT.token + FINISH + DONE


async def test_usage_behind_the_finish_is_waited_for() -> None:
    script: list[Step] = [stream_head(), chunk(CHAT.token), chunk(FINISH), Pause(0.3), chunk(USAGE), END]
    async with facing(script) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.body == CHAT.token + FINISH + USAGE + DONE
        assert await stand.metric("llm_guard_tokens_total", model="gpt", direction="input") == 3


@streams
async def test_body_that_is_never_ended_is_ended_by_the_gateway(form: Form) -> None:
    async with facing([*form.good_stream[:-1], Hold()]) as (stand, provider):
        reply = await form.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.body == form.stream_bytes
        assert reply.took_s < 4.0
        assert provider.connections[0].closed_at is not None


async def test_stream_of_two_choices_is_not_over_with_the_first() -> None:
    second = CHAT.token.replace(b'"index": 0', b'"index": 1')
    async with facing([stream_head(), chunk(CHAT.token + second), chunk(FINISH), Close()]) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True, n=2)
        assert DONE not in reply.body
        assert not reply.is_whole


async def test_choice_that_has_begun_and_not_finished_is_cut_though_done_is_said() -> None:
    second = CHAT.token.replace(b'"index": 0', b'"index": 1')
    script: list[Step] = [
        stream_head(),
        chunk(CHAT.token),
        Pause(0.02),
        chunk(second),
        Pause(0.02),
        chunk(CHAT.end),
        END,
    ]
    async with facing(script) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True, n=2)
        assert DONE not in reply.body
        assert not reply.is_whole
        (call,) = await stand.calls()
        assert call["outcome"] == "truncated"


async def test_fewer_choices_than_were_asked_for_are_a_whole_answer() -> None:
    async with facing(CHAT.good_stream) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True, n=2)
        assert reply.is_whole
        assert reply.body == CHAT.stream_bytes


async def test_events_that_cannot_be_read_are_counted() -> None:
    garbage = b"data: {not json\n\n"
    script: list[Step] = [stream_head(), chunk(CHAT.token), Pause(0.02), chunk(garbage * 2), chunk(CHAT.end), END]
    async with facing(script) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.body == CHAT.token + garbage * 2 + CHAT.end
        assert await stand.metric("llm_guard_malformed_events_total", deployment=CHAT.deployment) == 2
