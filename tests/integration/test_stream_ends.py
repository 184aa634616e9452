"""The end of a stream is decided by its dialect's own marks; the gateway adds the formalities after them that the
provider omits."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.chaos.forms import CHAT, STREAMS, Form, name_of
from tests.chaos.stand import Section, Stand, config_of, facing, standing
from tests.chaos.wire import ask
from tests.fakes.provider import END, Close, Hold, Pause, Reset, ScriptedProvider, Step, chunk, stream_head

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
        assert reply.took_s < 4.0 + stand.lag_s
        (call,) = await stand.calls()
        assert call["outcome"] == "ok"
        assert stand.breaker(CHAT.deployment).failures == 0


async def test_half_of_done_is_made_whole() -> None:
    script: list[Step] = [stream_head(), chunk(CHAT.token), chunk(FINISH + b"data: [DO"), END]
    async with facing(script) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.body == CHAT.token + FINISH + DONE


async def test_usage_after_the_finish_is_waited_for() -> None:
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
        assert reply.took_s < 4.0 + stand.lag_s
        assert provider.connections[0].closed_at is not None


async def test_stream_of_two_choices_is_not_over_with_the_first() -> None:
    second = CHAT.token.replace(b'"index": 0', b'"index": 1')
    async with facing([stream_head(), chunk(CHAT.token + second), chunk(FINISH), Close()]) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True, n=2)
        assert DONE not in reply.body
        assert not reply.is_whole


async def test_unfinished_choice_is_cut_despite_done() -> None:
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


async def test_fewer_choices_than_requested_are_a_whole_response() -> None:
    async with facing(CHAT.good_stream) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True, n=2)
        assert reply.is_whole
        assert reply.body == CHAT.stream_bytes


def text_of(index: int, finish: str | None = None) -> bytes:
    choice = {"index": index, "text": "" if finish else "hi", "finish_reason": finish}
    return b"data: " + json.dumps({"object": "text_completion", "choices": [choice]}).encode() + b"\n\n"


TWO_PROMPTS = [
    {"prompt": ["one", "two"]},
    {"prompt": [[1, 2], [3]]},
    {"prompt": "one", "n": 2},
    {"prompt": ["one", "two " * 40_000]},
]
two_prompts = pytest.mark.parametrize("fields", TWO_PROMPTS, ids=["texts", "tokens", "n", "a large body"])


@two_prompts
@pytest.mark.parametrize("death", [END, Close(), Reset()], ids=["ended", "closed", "reset"])
async def test_stream_that_breaks_between_two_prompts_is_cut(fields: Section, death: Step) -> None:
    script: list[Step] = [stream_head(), chunk(text_of(0)), Pause(0.02), chunk(text_of(0, "stop")), Pause(0.02), death]
    async with facing(script) as (stand, _):
        reply = await ask(stand.url, "/v1/completions", CHAT.body(stream=True, **fields))
        assert DONE not in reply.body
        assert not reply.is_whole
        (call,) = await stand.calls()
        assert call["outcome"] == "truncated"


@two_prompts
async def test_prompts_that_are_answered_one_after_the_other_all_reach_the_client(fields: Section) -> None:
    events = [text_of(0), text_of(0, "stop"), text_of(1), text_of(1, "stop"), DONE]
    script: list[Step] = [stream_head(), *(step for event in events for step in (chunk(event), Pause(0.02))), END]
    async with facing(script) as (stand, _):
        reply = await ask(stand.url, "/v1/completions", CHAT.body(stream=True, **fields))
        assert reply.is_whole
        assert reply.body == b"".join(events)


async def test_events_that_cannot_be_read_are_counted() -> None:
    garbage = b"data: {not json\n\n"
    script: list[Step] = [stream_head(), chunk(CHAT.token), Pause(0.02), chunk(garbage * 2), chunk(CHAT.end), END]
    async with facing(script) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.body == CHAT.token + garbage * 2 + CHAT.end
        assert await stand.metric("llm_guard_malformed_events_total", deployment=CHAT.deployment) == 2


# streams that end without a finish_reason

UNFINISHED = [stream_head(), chunk(CHAT.token), chunk(DONE), END]


@asynccontextmanager
async def facing_lenient(*scripts: Sequence[Step], **sections: Section) -> AsyncIterator[Stand]:
    """Like `facing`, with `stream_end: lenient` at the upstream."""
    async with ScriptedProvider(*scripts) as provider:
        upstream = {"dialect": "openai", "base_url": f"{provider.url}/v1", "stream_end": "lenient"}
        async with standing(config_of(provider.url, upstreams={"one": upstream}, **sections)) as stand:
            yield stand


@pytest.mark.parametrize("stream", [{}, {"prebuffer": {"tokens": 5, "time": "2s"}}], ids=["relayed", "held back"])
async def test_error_of_a_stream_without_a_finish_reason_names_the_key_for_servers_that_never_send_one(
    stream: Section,
) -> None:
    async with facing(UNFINISHED, stream=stream) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert DONE not in reply.body
        assert b"upstreams.one.stream_end: lenient" in reply.body
        (call,) = await stand.calls()
        assert call["outcome"] == "truncated"


@pytest.mark.parametrize("stream", [{}, {"recover": "continue"}], ids=["relayed", "recoverable"])
async def test_stream_without_a_finish_reason_is_whole_where_the_upstream_is_lenient(stream: Section) -> None:
    async with facing_lenient(UNFINISHED, stream=stream) as stand:
        reply = await CHAT.ask(stand.url, stream=True, messages=[{"role": "user", "content": "hi"}])
        assert reply.is_whole
        assert reply.body == CHAT.token + DONE
        assert stand.breaker(CHAT.deployment).failures == 0


async def test_resumed_stream_is_never_judged_leniently() -> None:
    first: list[Step] = [stream_head(), chunk(CHAT.token), Pause(0.02), Close()]
    again: list[Step] = [stream_head(), chunk(CHAT.token), Pause(0.02), chunk(CHAT.token), chunk(DONE), END]
    async with facing_lenient(first, again, stream={"recover": "restart"}, retry={"max_attempts": 2}) as stand:
        reply = await CHAT.ask(stand.url, stream=True, messages=[{"role": "user", "content": "hi"}])
        assert not reply.is_whole
        assert b"stream_end" not in reply.body
        (call,) = await stand.calls()
        assert [each["outcome"] for each in call["attempts"]] == ["truncated", "truncated"]


async def test_cut_is_a_cut_where_the_upstream_is_lenient() -> None:
    async with facing_lenient([stream_head(), chunk(CHAT.token), END]) as stand:
        reply = await CHAT.ask(stand.url, stream=True)
        assert not reply.is_whole
        assert b"stream_end" not in reply.body
