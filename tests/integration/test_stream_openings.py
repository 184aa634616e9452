"""Streams that fail before their first token: the client gets another deployment's stream and sees nothing of the
first."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
import pytest

from tests.chaos.forms import CHAT, LEGACY, MESSAGES, RESPONSES, STREAMS, Form, name_of
from tests.chaos.sinks import pouring
from tests.chaos.stand import Section, config_of, facing, standing
from tests.chaos.wire import Connection
from tests.fakes.provider import END, Close, Hold, Pause, Reset, Respond, Step, chunk, stream_head, whole

FIRST_TOKEN_S = 0.2
FORMS = (*STREAMS, LEGACY)
MODELS: Section = {
    "gpt": {"deployments": [{"upstream": "one"}], "fallbacks": ["gpt-spare"]},
    "gpt-spare": {"deployments": [{"upstream": "one"}]},
    "claude": {"deployments": [{"upstream": "two"}], "fallbacks": ["claude-spare"]},
    "claude-spare": {"deployments": [{"upstream": "two"}]},
}
COMMENT = b": keep-alive\n\n"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def named(name: str, **fields: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


def delta(**fields: object) -> bytes:
    choice = {"index": 0, "delta": fields, "finish_reason": None}
    return b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"


HEADERS: dict[str, tuple[bytes, ...]] = {
    str(CHAT): (
        delta(role="assistant"),
        delta(role="assistant", content=None, refusal=None, tool_calls=[]),
        delta(role="assistant", content="", reasoning_content=None, reasoning=""),
        b'data: {"choices":[],"prompt_filter_results":[{"prompt_index":0}]}\n\n',
        b": OPENROUTER PROCESSING\n\n",
    ),
    str(RESPONSES): (
        *RESPONSES.preamble,
        named("response.queued", response={}),
        named("response.output_item.added", output_index=0, item={"type": "reasoning", "summary": []}),
        named("response.reasoning_summary_part.added", part={"type": "summary_text", "text": ""}),
        named("response.output_item.added", output_index=1, item={"type": "message", "content": []}),
        named("response.content_part.added", part={"type": "output_text", "text": ""}),
        named("keepalive", sequence_number=3),
    ),
    str(MESSAGES): (
        *MESSAGES.preamble,
        named("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""}),
        named("content_block_stop", index=0),
        named("content_block_start", index=1, content_block={"type": "tool_use", "name": "f", "input": {}}),
    ),
    str(LEGACY): LEGACY.preamble,
}
"""Events before the first token, as the providers send them."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A way for a stream to fail, and the kind of that failure."""

    name: str
    kind: str
    steps: Callable[[Form], Sequence[Step]]

    def __str__(self) -> str:
        return self.name


def said(form: Form) -> list[Respond]:
    return [stream_head(), *map(chunk, HEADERS[str(form)])]


def for_ever(event: bytes) -> list[Step]:
    return [step for _ in range(200) for step in (chunk(event), Pause(0.02))]


OPENINGS = [
    Opening("no head", "timeout", lambda _: [Hold()]),
    Opening("a head and silence", "timeout", lambda _: [stream_head(), Hold()]),
    Opening("headers and silence", "timeout", lambda form: [*said(form), Hold()]),
    Opening("comments for ever", "timeout", lambda form: [*said(form), *for_ever(COMMENT)]),
    Opening("pings for ever", "timeout", lambda form: [*said(form), *for_ever(PING)]),
    Opening("blank lines for ever", "timeout", lambda form: [*said(form), *for_ever(b"\n\n")]),
    Opening("half an event for ever", "timeout", lambda form: [*said(form), chunk(form.token[:9]), *for_ever(b"x")]),
    Opening("no event", "truncated", lambda _: [stream_head(), END]),
    Opening("no body", "truncated", lambda _: [whole(200, b"", {"content-type": "text/event-stream"})]),
    Opening("headers and the end", "truncated", lambda form: [*said(form), END]),
    Opening("headers and done", "truncated malformed", lambda form: [*said(form), chunk(b"data: [DONE]\n\n"), END]),
    Opening("headers and a cut", "truncated", lambda form: [*said(form), Close()]),
    Opening("headers and a reset", "truncated", lambda form: [*said(form), Pause(0.02), Reset()]),
    Opening("comments and a cut", "truncated", lambda _: [stream_head(), *[chunk(COMMENT)] * 3, Close()]),
    Opening("half an event and a cut", "truncated", lambda form: [*said(form), chunk(form.token[:-2]), Close()]),
    Opening("headers and no JSON", "malformed", lambda form: [*said(form), chunk(b"data: {oops\n\n"), Hold()]),
    Opening("headers and an error", "", lambda form: [*said(form), chunk(form.error), END]),
    Opening("an error", "", lambda form: [stream_head(), chunk(form.error), Hold()]),
]  # fmt: skip
streams = pytest.mark.parametrize("form", FORMS, ids=name_of)


@streams
@pytest.mark.parametrize("opening", OPENINGS, ids=str)
async def test_stream_without_content_is_replaced_by_a_fallback(form: Form, opening: Opening) -> None:
    limits = {"first_token": f"{FIRST_TOKEN_S}s"}
    async with facing(opening.steps(form), form.good_stream, timeout=limits, models=MODELS) as (stand, provider):
        reply = await form.ask(stand.url, stream=True)
        assert (reply.status, reply.is_whole) == (200, True)
        assert reply.body == form.stream_bytes
        assert reply.headers["x-llm-guard-attempts"] == "2"
        assert reply.headers["x-llm-guard-deployment"] == f"{form.deployment}-spare"
        if opening.kind == "timeout":
            assert await provider.connections[0].closed_within(1)
        (call,) = await stand.calls()
        assert call["outcome"] == "ok"
        assert stand.breaker(form.deployment).failures == 1
        (first,) = (each for each in call["attempts"] if each["deployment"] == form.deployment)
        assert first["outcome"] in (opening.kind.split() or ["overloaded", "server_error"])


@streams
async def test_client_is_sent_nothing_of_a_stream_that_has_only_begun(form: Form) -> None:
    gate = asyncio.Event()
    async with (
        facing([*said(form), Pause(gate), chunk(form.token), chunk(form.end), END]) as (stand, provider),
        Connection(stand.url) as client,
    ):
        client.writer.write(form.request(stream=True))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.head()
        assert len(provider.requests) == 1
        gate.set()
        assert (await client.reply()).body == b"".join(HEADERS[str(form)]) + form.token + form.end


# held bytes


LONG_COMMENT = b": " + b"x" * 4_000 + b"\n\n"
HELD_BYTES = 1 << 20
IN_FLIGHT_BYTES = 8 << 20
"""Upper bound of what the kernel may buffer in addition, when the client reads."""


def comments(size: int) -> bytes:
    return LONG_COMMENT * (size // len(LONG_COMMENT))


def pings(size: int) -> bytes:
    return PING * (size // len(PING))


@streams
@pytest.mark.parametrize("flood", [comments, pings], ids=["comments", "pings"])
async def test_megabytes_before_the_first_token_are_no_commit(form: Form, flood: Callable[[int], bytes]) -> None:
    """A stream that dies after them is replaced by a fallback, unseen by the client."""
    script: list[Step] = [*said(form), chunk(flood(3 * HELD_BYTES)), Close()]
    async with facing(script, form.good_stream, models=MODELS) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.body == form.stream_bytes
        assert reply.headers["x-llm-guard-deployment"] == f"{form.deployment}-spare"
        assert stand.breaker(form.deployment).failures == 1


@streams
@pytest.mark.parametrize("flood", [comments, pings], ids=["comments", "pings"])
async def test_stream_after_megabytes_of_filler_arrives_without_most_of_them(
    form: Form, flood: Callable[[int], bytes]
) -> None:
    sent = b"".join(HEADERS[str(form)]) + flood(3 * HELD_BYTES)
    async with facing([stream_head(), chunk(sent), chunk(form.token), chunk(form.end), END]) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.is_whole
        held = reply.body.removesuffix(form.token + form.end)
        assert held != reply.body
        assert sent.startswith(held)
        assert len(held) <= 2 * HELD_BYTES
        (call,) = await stand.calls()
        assert call["outcome"] == "ok"


@streams
async def test_comments_without_end_before_the_first_token_are_left_and_cost_no_memory(form: Form) -> None:
    async with pouring(LONG_COMMENT) as fountain, standing(config_of(fountain.url)) as stand:
        before = psutil.Process().memory_info().rss
        reply = await form.ask(stand.url, stream=True)
        assert reply.status == 502
        assert "MiB before its first token" in form.error_of(reply)["message"]
        assert psutil.Process().memory_info().rss - before < 3 * HELD_BYTES + IN_FLIGHT_BYTES
        assert stand.breaker(form.deployment).failures == 1


@streams
async def test_comment_of_megabytes_is_no_commit(form: Form) -> None:
    script: list[Step] = [*said(form), *[chunk(b": " + b"x" * HELD_BYTES)] * 2, Hold()]
    async with facing(script, form.good_stream, models=MODELS) as (stand, _):
        assert (await form.ask(stand.url, stream=True)).body == form.stream_bytes


@streams
async def test_compressed_megabytes_before_the_first_token_are_no_commit(form: Form) -> None:
    noise = random.Random(1).randbytes(3 * HELD_BYTES).hex().encode()
    packed = gzip.compress(b": " + b"\n: ".join(noise[at : at + 4000] for at in range(0, len(noise), 4000)) + b"\n")
    script: list[Step] = [stream_head(200, {"content-encoding": "gzip"}), chunk(packed), Hold()]
    async with facing(script, form.good_stream, models=MODELS) as (stand, _):
        assert (await form.ask(stand.url, stream=True)).body == form.stream_bytes


async def test_large_opening_of_a_response_is_passed_on() -> None:
    created = named("response.created", response={"status": "in_progress", "instructions": "x" * (3 * HELD_BYTES)})
    script: list[Step] = [stream_head(), chunk(created), chunk(RESPONSES.token), chunk(RESPONSES.end), END]
    async with facing(script) as (stand, _):
        reply = await RESPONSES.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.body == created + RESPONSES.token + RESPONSES.end


async def test_client_gets_keep_alives_while_those_of_the_provider_are_dropped() -> None:
    script: list[Step] = [stream_head(), chunk(comments(3 * HELD_BYTES)), Pause(0.3), *CHAT.good_stream[1:]]
    async with facing(script, stream={"keepalive": {"interval": "50ms"}}) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.body.count(b": waiting\n\n") >= 2


@streams
@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, br", "Br"])
async def test_stream_that_cannot_be_inspected_is_replaced_by_a_fallback(form: Form, encoding: str) -> None:
    script: list[Step] = [stream_head(200, {"content-encoding": encoding}), chunk(b"\x8b\x00\x80"), Hold()]
    async with facing(script, form.good_stream, models=MODELS) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.body == form.stream_bytes
        assert reply.headers["x-llm-guard-deployment"] == f"{form.deployment}-spare"
    async with facing(script) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.status == 502
        assert encoding.lower() in form.error_of(reply)["message"]


@streams
async def test_encoding_that_is_no_compression_is_plain_text(form: Form) -> None:
    async with facing([stream_head(200, {"content-encoding": "none"}), *form.good_stream[1:]]) as (stand, _):
        assert (await form.ask(stand.url, stream=True)).body == form.stream_bytes
