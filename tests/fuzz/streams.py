"""Fuzz harnesses for stream readers: the event scanner, the stream watch, and the views of compressed streams."""

from __future__ import annotations

import gzip
import random
import re
import time
import zlib
from collections.abc import Callable
from unittest import mock

from llm_guard.dialects import DIALECTS, DialectName, sse, sse_framing
from llm_guard.dialects.sse import StreamObserver, StreamReader, events_in, split_before
from llm_guard.proxy.response import content_decoding
from llm_guard.proxy.streams import decoder
from llm_guard.proxy.streams.decoder import PlainStreamDecoder, view_of
from tests.fuzz.mutation import cuts_of, rolled

KINDS: tuple[tuple[DialectName, str], ...] = (
    ("openai", "/v1/chat/completions"), ("openai", "/v1/responses"), ("openai", "/v1/audio/speech"),
    ("anthropic", "/v1/messages"), ("anthropic", "/v1/complete"),
)  # fmt: skip
_CUT_END_BYTES = 3
_SMALL_BYTES, _LARGE_BYTES = 1 << 16, 1 << 20
_CHEAP_S = 0.5
"""Seconds: far more than 1 MiB costs if the cost is linear. Cheaper inputs are not checked for their growth."""


def fuzz_watch(data: bytes) -> None:
    """The result is the same for any split of the input, with and without the fast path, and bytes pass unmodified."""
    dice, stream = rolled(data)
    dialect, path = dice.choice(KINDS)
    choices, enough = dice.choice((1, 1, 2)), dice.choice((1, 1, 2, 1000))
    longest = dice.choice((sse_framing.MAX_EVENT_BYTES, 40, 200))
    if stream[:1] in (b"\r", b"\n") or re.search(rb"(?:^|[\r\n]):", stream):
        longest = sse_framing.MAX_EVENT_BYTES  # bytes before an event in the same chunk count towards its length

    def reader() -> StreamReader:
        return DIALECTS[dialect].stream_reader(path, choices)

    pieces = cuts_of(dice, stream)
    with mock.patch.multiple(sse, MAX_EVENT_BYTES=longest, _HEAD_BYTES=min(longest, 4096)):
        whole = _shown(reader(), [stream], enough)
        assert _shown(reader(), pieces, enough) == whole
        if len(stream) < 2000:
            assert _shown(reader(), [stream[at : at + 1] for at in range(len(stream))], enough) == whole
        if longest > len(stream):  # of a longer event the thorough reader sees only the beginning
            assert _marks(StreamObserver(reader(), 10**9), pieces) == _marks(StreamObserver(reader(), 1), pieces)


def fuzz_events(data: bytes) -> None:
    """Events are found where a line-by-line parser finds them, and a block is split without loss."""
    dice, stream = rolled(data)
    found = [(event.name, event.data) for event in events_in(stream)]
    assert found == _line_by_line(stream)
    wanted = dice.choice([data for _, data in found] or [b""])
    before, rest = split_before(stream, wanted)
    assert before + rest == stream
    if wanted:
        assert all(event.data != wanted for event in events_in(before))
        assert next(events_in(rest)).data == wanted


def fuzz_watch_cost(data: bytes) -> None:
    """Sixteen times the bytes may take sixteen times the time, with a tolerance of four."""
    dice, stream = rolled(data)
    dialect, path = dice.choice(KINDS)
    chunk = dice.choice((1 << 10, 1 << 12, 1 << 16))
    before, rest = stream[: (at := dice.choice((0, dice.randrange(len(stream) + 1))))], stream[at:] or b":"

    def fed(size: int) -> None:
        text = before + rest * (size // len(rest) + 1)
        watch = StreamObserver(DIALECTS[dialect].stream_reader(path, 1), dice.choice((1, 1000)))
        for start in range(0, size, chunk):
            watch.feed(text[start : start + chunk])
            assert len(watch.held) <= sse_framing.MAX_EVENT_BYTES + _CUT_END_BYTES + chunk

    is_cost_linear(fed)


def fuzz_view(data: bytes) -> None:
    """A stream with broken compression passes unmodified, or decompressed up to the error."""
    dice, stream = rolled(data)
    packed = _packed(dice, stream)
    is_wanted, encoding = dice.random() < 0.5, dice.choice(("gzip", "gzip", "deflate", ""))
    dialect, path = dice.choice(KINDS)
    most = dice.choice((decoder.MAX_INFLATED_BYTES, 300))
    piece = dice.choice((1 << 16, 100))
    with (
        mock.patch.object(decoder, "MAX_INFLATED_BYTES", most),
        mock.patch.object(content_decoding, "_PIECE_BYTES", piece),
    ):
        reader = DIALECTS[dialect].stream_reader(path, 1)
        view = view_of(reader, encoding, dice.choice((1, 100)), is_plain_wanted=is_wanted)
        passed, is_cut = b"", False
        came = packed
        for chunk in cuts_of(dice, packed):
            now = _fed(view, chunk, most)
            assert not (is_cut and now), "it was cut before"
            passed, is_cut = passed + now, view.is_closed
    if is_wanted and encoding in ("gzip", "deflate"):
        came = _inflated(packed)
    assert came.startswith(passed)
    assert view.failure is None or (is_cut and not view.has_said_all)
    if view.takes_events and not is_cut:
        assert passed + view.watch.held == came
    elif view.is_compressed and not is_cut:
        assert passed == came
    view.trailing_bytes()


def fuzz_view_cost(data: bytes) -> None:
    """The cost of a compressed stream is linear in its size, compressed or decompressed."""
    dice, stream = rolled(data)
    member = _packed(dice, stream[:200], zeros=0) or b"\x1f"
    chunk, is_wanted = dice.choice((1 << 12, 1 << 16)), dice.random() < 0.5

    def fed(size: int) -> None:
        text = member * (size // len(member) + 1)
        view = view_of(DIALECTS["openai"].stream_reader("/v1/responses", 1), "gzip", 1, is_plain_wanted=is_wanted)
        for start in range(0, size, chunk):
            view.feed(text[start : start + chunk])

    is_cost_linear(fed)


def is_cost_linear(fed: Callable[[int], None]) -> None:
    """Raises AssertionError if `fed` of 1 MiB costs far more than 16 times `fed` of 64 KiB; quadratic cost would be 256
    times as high. Takes the best of up to three, for a busy machine."""
    took = []
    for _ in range(3):
        large_s = _cpu_s(fed, _LARGE_BYTES)
        took.append((large_s, _cpu_s(fed, _SMALL_BYTES) if large_s > _CHEAP_S else large_s))
        if large_s < 4 * 16 * took[-1][1]:
            break
    large_s, small_s = took[-1]
    assert large_s < 4 * 16 * small_s, f"64 KiB cost {small_s:.3f} s, 1 MiB {large_s:.3f} s"
    assert large_s < 10 * _CHEAP_S, f"1 MiB costs {large_s:.1f} s"


def _cpu_s(fed: Callable[[int], None], size: int) -> float:
    begun = time.thread_time()
    fed(size)
    return time.thread_time() - begun


def _shown(reader: StreamReader, pieces: list[bytes], enough: int) -> tuple[object, ...]:
    watch = StreamObserver(reader, enough)
    passed = came = b""
    for piece in pieces:
        passed += watch.feed(piece)
        came += piece
        assert came.startswith(passed) if watch.is_cut else passed + watch.held == came
        assert not (watch.is_cut and watch.is_inside), "its end is not passed on"
        if not watch.is_inside:
            assert len(watch.held) <= max(sse_framing.MAX_EVENT_BYTES + _CUT_END_BYTES, len(piece))
    # In a cut stream it depends on the chunks whether comments before the cut have passed; events have.
    return (*_seen(watch), watch.has_enough, watch.is_inside or (list(events_in(passed)) if watch.is_cut else passed))


def _marks(watch: StreamObserver, pieces: list[bytes]) -> tuple[object, ...]:
    for piece in pieces:
        watch.feed(piece)
    return _seen(watch)


def _seen(watch: StreamObserver) -> tuple[object, ...]:
    for count in (watch.usage.input, watch.usage.output):
        assert count is None or 0 <= count < 1 << 53
    return (
        watch.has_token, watch.has_ended, watch.may_end, watch.missing_end, watch.error, watch.is_error_heard,
        watch.is_cut, watch.usage, watch.malformed, watch.garbled,
    )  # fmt: skip


def _line_by_line(stream: bytes) -> list[tuple[str, bytes]]:
    """Parses as WHATWG HTML, section 9.2.6, with the deviations that `sse` documents: a byte order mark before the
    first event is dropped, llama.cpp's `error` field is an event of that name, and a name alone is an event."""
    events: list[tuple[str, bytes]] = []
    name, lines, is_first = "", list[bytes](), True
    *whole, _ = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    for line in whole:
        if not line:
            data = b"\n".join(lines)
            if name or data:
                events.append((name, data))
            name, lines, is_first = "", [], True
            continue
        field, _, value = (line.removeprefix(b"\xef\xbb\xbf") if is_first else line).partition(b":")
        value, is_first = value.removeprefix(b" "), False
        if field in (b"data", b"error"):
            lines.append(value)
        if field in (b"event", b"error"):
            name = value.decode("utf-8", "replace") if field == b"event" else "error"
    return events


def _packed(dice: random.Random, stream: bytes, zeros: int = 200_000) -> bytes:
    """Compresses the stream in one of the ways seen in practice, then may cut or corrupt it."""
    match dice.randrange(7):
        case 0:
            return stream
        case 1:
            packed = zlib.compress(stream)
        case 2:
            packed = b"".join(gzip.compress(piece, 1, mtime=0) for piece in cuts_of(dice, stream))
        case 3:
            packed = gzip.compress(stream + bytes(dice.choice((zeros // 200, zeros))), mtime=0)
        case 4:
            packed = gzip.compress(stream, mtime=0) + dice.choice((b"\0", b"\x1f", b"garbage", stream[:9]))
        case _:
            packed = gzip.compress(stream, mtime=0)
    if dice.random() < 0.3:
        at = dice.randrange(len(packed))
        packed = packed[:at] + bytes([packed[at] ^ 1 << dice.randrange(8)]) + packed[at + 1 :]
    return packed[: dice.randrange(len(packed))] if dice.random() < 0.3 else packed


def _inflated(packed: bytes) -> bytes:
    """Decompresses as much as possible."""
    inflated = b""
    while packed:
        inflater = zlib.decompressobj(wbits=47)
        for at in range(len(packed)):
            try:
                inflated += inflater.decompress(packed[at : at + 1])
            except zlib.error:
                return inflated
        packed = inflater.unused_data
    return inflated


def _fed(view: PlainStreamDecoder, chunk: bytes, most: int) -> bytes:
    held = len(view.watch.held)
    passed = view.feed(chunk)
    assert len(passed) <= held + max(most, len(chunk))
    return passed
