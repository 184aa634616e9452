"""Malformed and hostile streams: held bytes stay bounded, marks are correct, and every byte is forwarded."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from llm_guard.dialects import sse, sse_framing
from llm_guard.dialects.anthropic import MessagesReader
from llm_guard.dialects.openai import ChatReader, ResponsesReader
from llm_guard.dialects.sse import StreamObserver, StreamReader, Usage
from llm_guard.dialects.sse_framing import MAX_EVENT_BYTES
from llm_guard.version import is_compiled

MAX_HELD = MAX_EVENT_BYTES + 3
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def token(text: str) -> bytes:
    return TOKEN.replace(b"hi", text.encode())


def bytes_of(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


def pieces(stream: bytes, size: int) -> list[bytes]:
    return [stream[at : at + size] for at in range(0, len(stream), size)]


def watched(chunks: Iterable[bytes], reader: StreamReader | None = None) -> StreamObserver:
    """Returns a watch that was fed these chunks; checks that no byte is lost and few are held."""
    watch = StreamObserver(reader or ChatReader(1))
    came, passed = bytearray(), bytearray()
    for chunk in chunks:
        came += chunk
        passed += watch.feed(chunk)
        assert len(watch.held) <= MAX_HELD
    assert passed + watch.held == came
    return watch


# length


@pytest.mark.parametrize("size", [1000, 65_536, 5_000_000])
def test_giant_line_is_held_up_to_the_bound_and_is_a_token(size: int) -> None:
    watch = watched(pieces(token("x" * (2 * MAX_EVENT_BYTES)), size))
    assert (watch.has_token, watch.has_ended, watch.malformed, watch.garbled) == (True, False, 0, 0)
    assert watch.held == b""


@pytest.mark.parametrize("size", [65_536, 5_000_000])
def test_stream_continues_after_a_giant_line(size: int) -> None:
    watch = watched(pieces(TOKEN + token("x" * (2 * MAX_EVENT_BYTES)) + FINISH + DONE, size))
    assert (watch.has_ended, watch.missing_end, watch.held, watch.garbled) == (True, b"", b"", 0)


def test_events_after_a_giant_line_are_held_and_read_as_before_it() -> None:
    giant = token("x" * (2 * MAX_EVENT_BYTES))
    watch = watched([giant[:-9], giant[-9:], TOKEN[:9], TOKEN[9:] + FINISH[:9]])
    assert watch.held == FINISH[:9]
    assert not watch.has_ended
    assert watch.feed(FINISH[9:] + TOKEN[:9]) == FINISH
    assert watch.has_ended


@pytest.mark.parametrize("size", [65_536, 5_000_000])
def test_giant_line_that_is_no_object_is_garbled(size: int) -> None:
    watch = watched(pieces(TOKEN + b"data: " + b"x" * (2 * MAX_EVENT_BYTES) + b"\n\n", size))
    assert watch.garbled == 1


def test_event_that_never_ends_is_passed_on_and_proves_nothing() -> None:
    watch = watched([TOKEN, *[b'data: {"finish_reason":"stop"}\ndata: [DONE]\n' * 1000] * 60])
    assert len(watch.held) == 3
    assert (watch.has_token, watch.may_end, watch.missing_end) == (True, False, b"")


@pytest.mark.skipif(is_compiled(), reason="compiled, a module calls its own functions without looking them up")
def test_long_event_in_small_pieces_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    real = sse_framing.last_boundary

    def last_boundary(block: bytes) -> int:
        looked_at.append(len(block))
        return real(block)

    monkeypatch.setattr(sse, "last_boundary", last_boundary)
    watched([b"x" * 100] * 500)
    assert len(looked_at) == 500
    assert max(looked_at) <= 101


@pytest.mark.parametrize("comments", [b": waiting\n\n", b":\r\n\r\n", b"\n", b"\r\n"])
def test_comments_for_ever_pass_at_once_and_are_no_token(comments: bytes) -> None:
    watch = watched([comments * 1000] * 100)
    assert watch.held == b""
    assert (watch.has_token, watch.malformed) == (False, 0)


def test_comments_without_an_end_are_passed_on_line_by_line() -> None:
    watch = watched([b": waiting\n" * 1000] * 300)
    assert watch.held == b""
    assert (watch.has_token, watch.malformed) == (False, 0)
    watch.feed(b"\n" + TOKEN)
    assert watch.has_token


# chunk boundaries


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_stream_may_be_cut_between_any_two_bytes(end: bytes) -> None:
    stream = (token("ü😀語") + FINISH + DONE).replace(b"\n", end)
    for at in range(len(stream)):
        watch = watched([stream[:at], stream[at:]])
        assert (watch.has_token, watch.has_ended, watch.missing_end, watch.held) == (True, True, b"", b"")


def test_chunk_cut_inside_a_character_passes_whole() -> None:
    stream = token("é")
    cut = stream.index(b"\xa9")
    watch = StreamObserver(ChatReader(1))
    assert watch.feed(stream[:cut]) == b""
    assert watch.feed(stream[cut:]) == stream
    assert (watch.has_token, watch.malformed) == (True, 0)


def test_late_line_feed_is_no_event_of_its_own() -> None:
    crlf = TOKEN.replace(b"\n", b"\r\n")
    watch = watched([crlf[:-1], b"\n", crlf[:-3], b"\n\r", b"\n"])
    assert (watch.has_token, watch.garbled, watch.malformed, watch.held) == (True, 0, 0, b"")


# characters


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e"])
@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_unicode_line_separators_end_no_line(odd: str, cut: int) -> None:
    said = token(f"one{odd}data: [DONE]{odd}{odd}two")
    watch = watched(pieces(said, cut))
    assert (watch.has_token, watch.has_ended, watch.malformed, watch.garbled) == (odd >= "\x80", False, odd < "\x80", 0)
    watch = watched(pieces(TOKEN + said + FINISH, cut))
    assert (watch.has_ended, watch.garbled, watch.missing_end) == (True, 0, DONE)


@pytest.mark.parametrize("cut", [1, 2, 3, 1000])
def test_byte_order_mark_at_the_beginning_hides_nothing(cut: int) -> None:
    assert watched(pieces(b"\xef\xbb\xbf" + TOKEN, cut)).has_token
    start = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":3}}}\n\n'
    assert watched(pieces(b"\xef\xbb\xbf" + start, cut), MessagesReader()).usage == Usage(3, None)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_byte_order_marks_between_events_are_the_same_under_any_cut(end: bytes) -> None:
    stream = (TOKEN + b"\xef\xbb\xbf" + FINISH + b"\xef\xbb\xbf" + DONE).replace(b"\n", end)
    for at in range(len(stream)):
        watch = watched([stream[:at], stream[at:]])
        assert (watch.has_ended, watch.missing_end, watch.garbled) == (True, b"", 0)


# bytes after the end


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_bytes_after_the_end_pass_and_change_nothing(size: int) -> None:
    watch = watched(pieces(TOKEN + FINISH + DONE + b"\n\n: bye\n\n\x00trailing", size))
    assert (watch.has_ended, watch.error, watch.garbled) == (True, None, 0)
    assert watch.held == b"\x00trailing"


def test_event_after_the_end_is_counted_when_it_is_garbled() -> None:
    assert watched([TOKEN + FINISH + DONE, b"data: trailing\n\n"]).garbled == 1


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_end_that_is_cut_off_is_still_owed(size: int) -> None:
    watch = watched(pieces(TOKEN + FINISH + DONE[:-1], size))
    assert (watch.has_ended, watch.held, watch.missing_end) == (True, DONE[:-1], DONE)


def test_end_inside_the_text_is_none() -> None:
    text = rb'data: {"type":"response.output_text.delta","delta":"\n\ndata: [DONE]\n\nresponse.completed"}' + b"\n\n"
    watch = watched(bytes_of(text), ResponsesReader())
    assert (watch.has_token, watch.has_ended) == (True, False)
