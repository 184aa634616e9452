"""Streams that are odd after their first token: huge, endless, split anywhere, compressed. Bytes are passed on
exactly, buffers are bounded, and the end is still detected."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress

import psutil
import pytest

from tests.chaos.forms import CHAT, MESSAGES, STREAMS, Form, name_of
from tests.chaos.stand import Stand, config_of, facing, standing
from tests.chaos.wire import Connection, Reply
from tests.fakes.client import raw_request
from tests.fakes.provider import END, Close, Hold, Pause, Reset, Respond, Step, chunk, request_size, stream_head, whole

MIB = 1 << 20
MEMORY_BYTES = 24 * MIB
"""Memory in bytes that a stream may cost this process, which is client and provider as well: buffers of two
connections, with a margin."""
LINE_SEPARATOR = "\N{LINE SEPARATOR}"
BOM = b"\xef\xbb\xbf"
streams = pytest.mark.parametrize("form", STREAMS, ids=name_of)


async def check_good(stand: Stand, form: Form, reply: Reply, sent: bytes) -> None:
    """Expects every byte, a clean end, and the usage of the stream's last events."""
    assert reply.is_whole
    assert reply.body == sent
    (call,) = await stand.calls()
    assert call["outcome"] == "ok"
    assert stand.breaker(form.deployment).failures == 0


def with_text(form: Form, text: str) -> bytes:
    """Returns the form's token with this text instead of its own."""
    told = json.dumps(text, ensure_ascii=False)[1:].encode()
    token, times = re.subn(rb'h(i|\\u00e9)"', lambda _: told, form.token)
    assert times == 1
    return token


def pieces(data: bytes, seed: int = 1, most: int = 70) -> Iterator[bytes]:
    """Splits the data into pieces of 1 to `most` bytes."""
    dice = random.Random(seed)
    at = 0
    while at < len(data):
        size = dice.randint(1, most)
        yield data[at : at + size]
        at += size


# huge and endless events


@asynccontextmanager
async def running(first: bytes, piece: bytes, count: int | None, last: bytes) -> AsyncIterator[str]:
    """The URL of a provider that sends `first`, `count` times `piece` (None: for ever) and `last`, under
    backpressure."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = b""
        while request_size(received) is None:
            received += await reader.read(1 << 16)
        writer.write(stream_head().data + chunk(first).data)
        left = count
        try:
            while left is None or left > 0:
                left = left - 1 if left is not None else None
                writer.write(chunk(piece).data)
                await writer.drain()
            writer.write(chunk(last).data + END.data)
            await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def drink(client: Connection, size: int, most: int = 1 << 16) -> int:
    """Reads and drops `size` bytes, chunk framing included; returns how many arrived before the end."""
    drunk = 0
    while drunk < size and (data := await client.reader.read(most)):
        drunk += len(data)
    return drunk


@streams
async def test_event_of_twenty_mebibytes_arrives_whole_and_the_end_after_it_is_found(form: Form) -> None:
    head, _, tail = with_text(form, "|").partition(b"|")
    letters, count = b"x" * (1 << 16), 20 * 16
    async with (
        running(form.token + head, letters, count, tail + form.end) as url,
        standing(config_of(url)) as stand,
    ):
        reply = await form.ask(stand.url, stream=True)
        await check_good(stand, form, reply, form.token + head + letters * count + tail + form.end)


@streams
async def test_event_without_end_costs_no_memory(form: Form) -> None:
    head = with_text(form, "|").partition(b"|")[0]
    async with (
        running(form.token + head, b"x" * (1 << 16), None, b"") as url,
        standing(config_of(url, timeout={"total": "20s"})) as stand,
        Connection(stand.url) as client,
    ):
        client.writer.write(form.request(stream=True))
        before = psutil.Process().memory_info().rss
        assert await drink(client, 64 * MIB) >= 64 * MIB
        assert psutil.Process().memory_info().rss - before < MEMORY_BYTES
        assert stand.app.gateway.running == 1


@pytest.mark.parametrize("form", [CHAT, MESSAGES], ids=name_of)
async def test_error_event_is_not_glued_to_an_event_that_has_not_ended(form: Form) -> None:
    head = with_text(form, "|").partition(b"|")[0]
    script: list[Step] = [stream_head(), chunk(form.token), Pause(0.02), chunk(head + b"x" * (2 * MIB)), Hold()]
    async with facing(script, timeout={"idle": "200ms"}) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert not reply.is_whole
        passed = reply.body.partition(b"event: error")[0]
        assert passed.startswith(form.token + head + b"xxx")
        assert passed == reply.body or passed.endswith(b"\n\n")
        (call,) = await stand.calls()
        assert call["outcome"] == "timeout"


@pytest.mark.parametrize("form", [CHAT, MESSAGES], ids=name_of)
@pytest.mark.parametrize("comment", [b": keep-alive\n\n", b":\n", b"\n", b": " + b"x" * 4_000])
async def test_comments_for_ever_end_at_the_total_limit(form: Form, comment: bytes) -> None:
    dripping = [step for _ in range(200) for step in (chunk(comment), Pause(0.01))]
    script = [stream_head(), *map(chunk, form.preamble), chunk(form.token), *dripping]
    async with facing(script, timeout={"total": "300ms", "idle": "200ms"}) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert not reply.is_whole
        assert reply.took_s <= 0.3 + 1 + stand.lag_s
        last = reply.events[-1]
        assert form.error_in(last[last.index(b"event: error") :])["type"] == "timeout_error"
        assert await stand.metric("llm_guard_timeouts_total", limit="total") == 1


@streams
@pytest.mark.parametrize("line", [b":\n", b": keep-alive\n", b"\r\n"], ids=repr)
async def test_comment_of_one_line_reaches_the_client_at_once(form: Form, line: bytes) -> None:
    # WHATWG HTML, 9.2.7, recommends one every 15 seconds and does not require a blank line after it.
    async with (
        facing([stream_head(), chunk(form.token), Pause(0.02), chunk(line), Hold()]) as (stand, _),
        Connection(stand.url) as client,
    ):
        client.writer.write(form.request(stream=True))
        await client.head()
        received = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                while line + b"\r\n" not in received.partition(form.token + b"\r\n")[2]:
                    received += await client.reader.read(1 << 16)
        assert line + b"\r\n" in received.partition(form.token + b"\r\n")[2]


# streams without chunks


PLAIN_HEAD = Respond(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")


@streams
async def test_stream_that_ends_with_its_connection_is_whole_with_its_terminal_event_alone(form: Form) -> None:
    cut = Respond(form.token)
    async with facing([PLAIN_HEAD, Respond(form.stream_bytes), Close()], [PLAIN_HEAD, cut, Close()]) as (stand, _):
        assert (await form.ask(stand.url, stream=True)).body == form.stream_bytes
        reply = await form.ask(stand.url, stream=True)
        assert not reply.is_whole
        assert reply.body.startswith(form.token + b"event: error\n")
        assert [call["outcome"] for call in await stand.calls()] == ["ok", "truncated"]


@streams
@pytest.mark.parametrize("missing", [0, 50])
async def test_stream_with_a_length_has_room_for_an_error_event(form: Form, missing: int) -> None:
    size = str(len(form.token) + missing)
    head = whole(200, b"", {"content-type": "text/event-stream", "content-length": size})
    script: list[Step] = [head, Respond(form.token), Close()]
    async with facing(script) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert not reply.is_whole
        assert reply.body.startswith(form.token)
        assert form.deployment in form.error_in(reply.events[-1])["message"]


# line ends, characters, and unexpected bytes


@streams
@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"], ids=["CRLF", "CR"])
@pytest.mark.parametrize("most", [1, 5, 70, 5000])
async def test_stream_with_other_line_ends_may_be_split_anywhere(form: Form, line_end: bytes, most: int) -> None:
    sent = form.stream_bytes.replace(b"\n", line_end)
    script = [stream_head(), *map(chunk, pieces(sent, seed=most, most=most)), END]
    async with facing(script) as (stand, _):
        await check_good(stand, form, await form.ask(stand.url, stream=True), sent)


@streams
@pytest.mark.parametrize("cut", [-1, -3, 7])
async def test_stream_with_crlf_that_is_cut_ends_in_a_readable_error_event(form: Form, cut: int) -> None:
    token = form.token.replace(b"\n", b"\r\n")
    script: list[Step] = [stream_head(), chunk(token), Pause(0.02), chunk(token[:cut]), Close()]
    async with facing(script) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert not reply.is_whole
        passed, _, error = reply.body.partition(b"event: error\n")
        assert passed in (token, token + token[:-1])
        assert form.deployment in form.error_in(b"event: error\n" + error.removesuffix(b"\n\n"))["message"]


@streams
@pytest.mark.parametrize(
    "text", [LINE_SEPARATOR, "\N{PARAGRAPH SEPARATOR}", "\x85", "a\N{GRINNING FACE}b", "\x7f\ufeff"]
)
async def test_unicode_line_separators_are_text(form: Form, text: str) -> None:
    token = with_text(form, f"data: [DONE]{text}{text}data: [DONE]{text}")
    assert text.encode() in token
    sent = form.token + token + form.end
    script = [stream_head(), *map(chunk, pieces(sent, most=3)), END]
    async with facing(script) as (stand, _):
        await check_good(stand, form, await form.ask(stand.url, stream=True), sent)


@streams
async def test_text_that_is_cut_after_a_finish_of_its_own_is_cut(form: Form) -> None:
    # Text of a model about streams is only text: it neither ends its own stream nor breaks it.
    token = with_text(form, f'{LINE_SEPARATOR}data: {{"finish_reason":"stop"}}\n\nevent: message_stop\n\n')
    script: list[Step] = [stream_head(), chunk(form.token), Pause(0.02), chunk(token), END]
    async with facing(script) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.body.startswith(form.token + token + b"event: error\n")
        (call,) = await stand.calls()
        assert call["outcome"] == "truncated"


@streams
async def test_byte_order_mark_is_passed_on(form: Form) -> None:
    sent = BOM + form.stream_bytes
    async with facing([stream_head(), chunk(sent[:2]), chunk(sent[2:]), END]) as (stand, _):
        await check_good(stand, form, await form.ask(stand.url, stream=True), sent)


async def test_event_after_a_byte_order_mark_is_found() -> None:
    # WHATWG HTML, 9.2.6: one leading mark is not part of the stream. This one precedes the only event.
    only = CHAT.token.replace(b'"finish_reason": null', b'"finish_reason": "stop"')
    sent = BOM + only + b"data: [DONE]\n\n"
    async with facing([stream_head(), chunk(sent), END]) as (stand, _):
        await check_good(stand, CHAT, await CHAT.ask(stand.url, stream=True), sent)


async def test_error_after_a_byte_order_mark_is_found() -> None:
    async with facing([stream_head(), chunk(BOM + CHAT.error), END], CHAT.good_stream, retry={"max_attempts": 2}) as (
        stand,
        _,
    ):
        assert (await CHAT.ask(stand.url, stream=True)).body == CHAT.stream_bytes
        (call,) = await stand.calls()
        assert call["attempts"][0]["outcome"] in ("overloaded", "server_error")


@streams
@pytest.mark.parametrize(
    "trailing",
    [b": bye\n\n", b"\n\n\n", b"garbage", b"data: {oops", b"data: {oops\n\n", b"data: [DONE]\n\n", b"\r"],
    ids=repr,
)
@pytest.mark.parametrize("is_apart", [False, True], ids=["in one chunk", "in a chunk of its own"])
async def test_bytes_after_the_terminal_event_are_passed_on(form: Form, trailing: bytes, is_apart: bool) -> None:
    apart: list[Step] = [Pause(0.02), chunk(trailing)] if is_apart else []
    end = form.end if is_apart else form.end + trailing
    script: list[Step] = [*form.good_stream[:-2], chunk(end), *apart, END]
    async with facing(script) as (stand, _):
        await check_good(stand, form, await form.ask(stand.url, stream=True), form.stream_bytes + trailing)


# compressed streams


def gzipped(events: Sequence[bytes], *, is_anew: bool = False) -> list[bytes]:
    """Compresses each event as a server does that flushes after it; with `is_anew`, each as a gzip file of its own."""
    if is_anew:
        return [gzip.compress(event) for event in events]
    squeeze = zlib.compressobj(wbits=31)
    flushed = [squeeze.compress(event) + squeeze.flush(zlib.Z_SYNC_FLUSH) for event in events]
    return [*flushed, squeeze.flush()]


GZIP_HEAD = stream_head(200, {"content-encoding": "gzip"})


async def ask_for_gzip(stand: Stand, form: Form) -> Reply:
    async with Connection(stand.url) as client:
        return await client.ask(raw_request(form.path, form.body(stream=True), {"accept-encoding": "gzip"}))


@streams
@pytest.mark.parametrize("is_anew", [False, True], ids=["one file", "a file for each event"])
@pytest.mark.parametrize("most", [1, 5000])
async def test_gzip_stream_arrives_as_it_was_sent_and_its_end_is_seen(form: Form, is_anew: bool, most: int) -> None:
    squeezed = b"".join(gzipped([*form.preamble, form.token, form.end], is_anew=is_anew))
    async with facing([GZIP_HEAD, *map(chunk, pieces(squeezed, most=most)), END]) as (stand, _):
        reply = await ask_for_gzip(stand, form)
        assert reply.headers["content-encoding"] == "gzip"
        await check_good(stand, form, reply, squeezed)


@streams
@pytest.mark.parametrize("cut", [(Close(),), (Reset(),), (END,), (Hold(),)], ids=["closed", "reset", "ended", "stall"])
async def test_gzip_stream_that_breaks_has_no_clean_end_and_nothing_foreign_in_it(
    form: Form, cut: tuple[Step, ...]
) -> None:
    first, second, *_ = gzipped([b"".join(form.preamble) + form.token, form.token, form.end])
    script: list[Step] = [GZIP_HEAD, chunk(first), Pause(0.02), chunk(second), Pause(0.02), *cut]
    async with facing(script, timeout={"idle": "200ms" if cut == (Hold(),) else "5s"}) as (stand, _):
        reply = await ask_for_gzip(stand, form)
        assert not reply.is_whole
        assert reply.body == first + second
        (call,) = await stand.calls()
        assert call["outcome"] == ("timeout" if cut == (Hold(),) else "truncated")
        assert stand.breaker(form.deployment).failures == 1


@pytest.mark.parametrize("form", [CHAT, MESSAGES], ids=name_of)
async def test_gzip_stream_that_inflates_to_much_costs_no_memory(form: Form) -> None:
    squeezed = gzipped([form.token, b": " + b"x" * (128 * MIB), b"\n\n" + form.end])
    first, *rest = map(chunk, squeezed)
    script: list[Step] = [GZIP_HEAD, first, Pause(0.02), *rest, END]
    async with facing(script) as (stand, _):
        before = psutil.Process().memory_info().rss
        reply = await ask_for_gzip(stand, form)
        assert not reply.is_whole
        assert b"".join(squeezed).startswith(reply.body)
        (call,) = await stand.calls()
        assert call["outcome"] == "malformed"
        assert psutil.Process().memory_info().rss - before < MEMORY_BYTES
