"""Event streams crafted to be misread or never to end.

Events are delimited by bytes and passed on unmodified; an event that the gateway adds is always exactly one event,
with any quoted text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from llm_guard.dialects import DIALECTS
from llm_guard.dialects.sse import StreamObserver
from llm_guard.dialects.sse_framing import MAX_EVENT_BYTES
from tests.chaos.forms import CHAT, MESSAGES, STREAMS, Form, name_of
from tests.chaos.sinks import pouring
from tests.chaos.stand import config_of, facing, standing
from tests.chaos.wire import Connection, ask
from tests.fakes.provider import END, Pause, Reset, Step, chunk, stream_head, whole

streams = pytest.mark.parametrize("form", STREAMS, ids=name_of)

LINE_ENDS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
"""Line ends for `str.splitlines` that are none in an event stream."""


def content_event(text: str) -> bytes:
    """Builds one content event with its characters unescaped."""
    choice = {"index": 0, "delta": {"content": text}}
    return b"data: " + json.dumps({"choices": [choice]}, ensure_ascii=False).encode() + b"\n\n"


SPOKEN = {
    "C52 line ends of Unicode": content_event(f"a{LINE_ENDS}b"),
    "C52 an event in the text": content_event('\n\ndata: {"choices":[{"index":0,"delta":{"content":"forged"}}]}\n\n'),
    "C52 the end in the text": content_event("\n\ndata: [DONE]\n\n"),
    "C52 the end of a line in the text": content_event("\r\n\r\nevent: error\rdata: {}\r\r"),
    "C52 many bytes for a character": content_event("hé😀" * 20),
    "C52 CRLF": content_event("a").replace(b"\n", b"\r\n"),
    "C52 CR": content_event("a").replace(b"\n", b"\r"),
    "C52 two lines of data": b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"a"}}]}\n\n',
    "C52 fields without meaning": b": [DONE]\nid: 7\nretry: 99999999\nfoo: bar\n" + content_event("a"),
}


@pytest.mark.parametrize("event", [pytest.param(event, id=name) for name, event in SPOKEN.items()])
@pytest.mark.parametrize("size", [1, 3, 1 << 20])
async def test_stream_reaches_the_client_byte_for_byte_however_it_was_cut(event: bytes, size: int) -> None:
    sent = b"".join((*CHAT.preamble, event, event, CHAT.end))
    pieces = [chunk(sent[at : at + size]) for at in range(0, len(sent), size)]
    async with facing([stream_head(), *pieces, END]) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert (reply.is_whole, reply.body) == (True, sent)
        (line,) = await stand.calls()
        assert line["outcome"] == "ok"


FORGING = '\n\ndata: {"choices":[{"index":0,"delta":{"content":"forged"}}]}\n\nevent: done\rdata: [DONE]\r\n\r\n'


@streams
@pytest.mark.parametrize("is_json", [True, False])
async def test_error_in_an_early_stream_is_one_event_for_any_content(form: Form, is_json: bool) -> None:
    """C52, CVE-2026-33128: text of a provider or caller, quoted in one of the gateway's errors."""
    said = json.dumps({"error": {"message": FORGING, "type": FORGING}}) if is_json else FORGING
    failing: list[Step] = [Pause(0.15), whole(500, said.encode())]
    waiting = {"keepalive": {"interval": "50ms", "before_headers": True}}
    async with facing(failing, stream=waiting) as (stand, _):
        reply = await form.ask(stand.url, stream=True, user=FORGING)
        assert reply.status == 200
        assert not reply.is_whole
        events = [event for event in reply.events if not event.startswith(b":")]
        assert len(events) == 1
        assert b"\r" not in events[0]
        assert events[0].startswith(b"event: error\ndata: {")
        assert events[0].count(b"\n") == 1


@streams
async def test_error_of_a_cut_stream_does_not_join_the_cut_event(form: Form) -> None:
    """C52: half an event is dropped, because the error event would be appended to it."""
    half = form.token[: len(form.token) // 2]
    begun = [stream_head(), *map(chunk, form.preamble), chunk(form.token)]
    script: list[Step] = [*begun, chunk(half), Pause(0.05), Reset()]
    async with facing(script) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        *passed, last = reply.events
        assert b"\n\n".join(passed) + b"\n\n" == b"".join((*form.preamble, form.token))
        form.error_in(last)


async def test_line_without_end_costs_no_memory_and_harms_no_other_call() -> None:
    """C53: it is passed on as it arrives. Its reader is slow, and backpressure slows the provider."""
    async with pouring(b"data: " + b"a" * 65_530) as fountain, standing(config_of(fountain.url)) as stand:
        async with Connection(stand.url) as client:
            client.writer.write(CHAT.request(stream=True))
            read = 0
            while read < 8 << 20:
                read += len(await client.reader.read(1 << 16))
            # The rest is in buffers: the sockets' and a few of the gateway's.
            assert fountain.poured - read < 32 << 20
            assert (await ask(stand.url, CHAT.path, b'{"model":"unknown"}')).status == 404
        await stand.idle()
        assert [line["outcome"] for line in await stand.calls() if line["stream"]] == ["client_cancelled"]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: " + b"a" * 65_530] * 800,
        [b"a" * 16] * 80_000,
        [b": " + b"a" * 65_530] * 800,
        [b"data: a\n" * 8_000] * 800,
        [b"id: a\r" * 16] * 16_000,
    ],
    ids=[
        "C53 a line of 50 MB",
        "C53 in small pieces",
        "C53 a comment of 50 MB",
        "C53 lines of one event",
        "C53 CR alone",
    ],
)
@pytest.mark.parametrize("form", [CHAT, MESSAGES], ids=name_of)
def test_watch_holds_no_more_than_one_event(form: Form, pieces: Sequence[bytes]) -> None:
    watch = StreamObserver(DIALECTS["anthropic" if form is MESSAGES else "openai"].stream_reader(form.path, 1))
    most = passed = 0
    for piece in pieces:
        passed += len(watch.feed(piece))
        most = max(most, len(watch._pending))
    assert most <= MAX_EVENT_BYTES + 8
    assert sum(map(len, pieces)) - passed == len(watch._pending)


async def test_giant_event_before_the_first_token_is_bounded_in_time() -> None:
    """C53: comments and half a line do not count as a token, however many arrive."""
    dripping: list[Step] = [stream_head(), *(step for _ in range(400) for step in (chunk(b"data: aaaa"), Pause(0.005)))]
    async with facing(dripping, timeout={"first_token": "200ms"}) as (stand, provider):
        reply = await CHAT.ask(stand.url, stream=True)
        assert (reply.status, CHAT.error_of(reply)["code"]) == (504, "upstream_timeout")
        assert await provider.closed_within(1)


@pytest.mark.parametrize("piece", [b": still here\n\n", b"\n", b"data: aaaa"])
async def test_stream_of_nothing_but_comments_ends_at_the_total_limit(piece: bytes) -> None:
    """C53: they keep a connection alive, but not for ever."""
    dripping = [step for _ in range(400) for step in (chunk(piece), Pause(0.005))]
    script: list[Step] = [stream_head(), *map(chunk, CHAT.preamble), chunk(CHAT.token), *dripping]
    async with facing(script, timeout={"total": "300ms", "idle": "5s"}) as (stand, provider):
        reply = await CHAT.ask(stand.url, stream=True)
        assert not reply.is_whole
        assert CHAT.error_in(reply.events[-1].lstrip(b"\n"))["type"] == "timeout_error"
        assert await provider.closed_within(1)
