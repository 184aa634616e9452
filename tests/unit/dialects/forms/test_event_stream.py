"""Decodes Amazon's frames into the server-sent events of Messages, under any split, and notices any damage."""

from __future__ import annotations

import json
import random
import struct
import zlib

import pytest

from llm_guard.dialects import DIALECTS
from llm_guard.dialects.forms.event_stream import MOST_FRAME_BYTES, EventStreamDecoder, FrameError
from llm_guard.dialects.sse import StreamObserver, events_in
from llm_guard.outcome import FailureKind
from llm_guard.resilience.classification.classify import classify_event
from tests.effort import IS_FULL, repeated
from tests.fakes.event_frames import chunk_frame, error_frame, exception_frame, frame, frames_of
from tests.unit.dialects.translation.conversions import message_events, text_block, tool_block

STREAM = message_events(text_block("Grüße", "\n\n", 'data: "x"'), tool_block("t1", "get", '{"a":', " 1}"))
FRAMES = b"".join(frames_of(STREAM))


def decoded(raw: bytes) -> bytes:
    """Returns the events of a valid stream, which may be cut."""
    decoder = EventStreamDecoder()
    events = decoder.feed(raw)
    if decoder.fault:
        raise FrameError(decoder.fault)
    return events


def test_frames_become_the_events_of_messages() -> None:
    found, expected = list(events_in(decoded(FRAMES))), list(events_in(STREAM))
    assert [event.name for event in found] == [event.name for event in expected]
    assert [json.loads(event.data) for event in found] == [json.loads(event.data) for event in expected]


def test_what_amazon_adds_to_the_last_event_is_left_out() -> None:
    assert b"amazon-bedrock" not in decoded(FRAMES)
    assert decoded(FRAMES).endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')


def test_any_split_gives_the_same_events() -> None:
    expected, draw = decoded(FRAMES), random.Random(7)
    for _ in range(repeated(400)):
        cuts = sorted(draw.choices(range(len(FRAMES) + 1), k=draw.choice((1, 3, 40, 400))))
        decoder, pieces = EventStreamDecoder(), zip([0, *cuts], [*cuts, len(FRAMES)], strict=True)
        assert b"".join(decoder.feed(FRAMES[start:end]) for start, end in pieces) == expected
        assert not decoder.is_inside
    decoder = EventStreamDecoder()
    assert b"".join(decoder.feed(FRAMES[at : at + 1]) for at in range(len(FRAMES))) == expected


def is_noticed(raw: bytes) -> bool:
    """Returns whether damage shows: as an error, an unfinished frame, or a stream without its last event."""
    decoder, watch = EventStreamDecoder(), StreamObserver(DIALECTS["anthropic"].stream_reader("/v1/messages", 1))
    watch.feed(decoder.feed(raw))
    return bool(decoder.fault) or decoder.is_inside or not watch.has_ended


def test_damage_loses_no_event_before_it() -> None:
    first, *_, last = frames_of(STREAM)
    raw = first + last[:-1] + bytes([last[-1] ^ 1]) + last
    for at in range(0, len(raw), 1 if IS_FULL else 11):
        decoder = EventStreamDecoder()
        assert decoder.feed(raw[:at]) + decoder.feed(raw[at:]) == decoded(first)
        assert decoder.fault == "the checksum of a frame is wrong"


def test_every_changed_byte_is_noticed() -> None:
    assert not is_noticed(FRAMES)
    for at in range(0, len(FRAMES), 1 if IS_FULL else 7):
        for bits in (1, 0x80, 0xFF) if IS_FULL else (1 << at % 8,):
            raw = bytearray(FRAMES)
            raw[at] ^= bits
            assert is_noticed(bytes(raw)), (at, bits)


def test_every_cut_and_every_missing_byte_is_noticed() -> None:
    for at in range(0, len(FRAMES), 1 if IS_FULL else 5):
        assert is_noticed(FRAMES[:at]), at
        assert is_noticed(FRAMES[:at] + FRAMES[at + 1 :]), at


@pytest.mark.parametrize(("size", "headers"), [
    (MOST_FRAME_BYTES + 1, 0), (15, 0), (0, 0), (100, 85), (0xFFFFFFFF, 0), (16, 0xFFFFFFFF),
    (1 << 20, (128 << 10) + 1),
])  # fmt: skip
def test_absurd_length_is_refused_before_the_frame_has_come(size: int, headers: int) -> None:
    prelude = struct.pack(">II", size, headers)
    with pytest.raises(FrameError, match=f"claims to have {size} bytes"):
        decoded(prelude + struct.pack(">I", zlib.crc32(prelude)))


def test_longest_headers_are_awaited() -> None:
    prelude = struct.pack(">II", 1 << 20, 128 << 10)
    assert decoded(prelude + struct.pack(">I", zlib.crc32(prelude))) == b""


def test_damaged_length_is_noticed_before_the_frame_has_come() -> None:
    for at in range(12):
        raw = bytearray(FRAMES[:12])
        raw[at] ^= 0x01
        with pytest.raises(FrameError, match="checksum of a frame's beginning"):
            decoded(bytes(raw))


def test_longest_frame_is_awaited() -> None:
    prelude = struct.pack(">II", MOST_FRAME_BYTES, 0)
    decoder = EventStreamDecoder()
    assert decoder.feed(prelude + struct.pack(">I", zlib.crc32(prelude))) == b""
    assert (decoder.is_inside, decoder.fault) == (True, "")


EVENT = {":message-type": "event", ":event-type": "chunk"}


@pytest.mark.parametrize("payload", [
    b"", b"[]", b"{}", b'{"bytes": 5}', b'{"bytes": "%"}', b'{"bytes": "e30="}', b'{"bytes": "W10="}',
    b'{"bytes": "e30"}',
])  # fmt: skip
def test_frame_without_an_event_is_invalid(payload: bytes) -> None:
    with pytest.raises(FrameError, match="no event of Messages"):
        decoded(frame(EVENT, payload))


def test_name_of_an_event_cannot_end_its_line() -> None:
    with pytest.raises(FrameError, match="no event of Messages"):
        decoded(chunk_frame(json.dumps({"type": "ping\n\nevent: message_stop"}).encode()))


@pytest.mark.parametrize("kind", [None, "other"])
def test_unknown_message_type_is_invalid(kind: str | None) -> None:
    with pytest.raises(FrameError, match="message type"):
        decoded(frame({":message-type": kind} if kind else {}, b""))


@pytest.mark.parametrize("value", [b"\0", b"\1", b"\2\0", b"\3\0\0", b"\4" + bytes(4), b"\5" + bytes(8), b"\6\0\2ab",
                                   b"\x08" + bytes(8), b"\x09" + bytes(16)])  # fmt: skip
def test_headers_of_all_types_are_skipped(value: bytes) -> None:
    raw = frame({":date": value, **EVENT}, b'{"bytes": "eyJ0eXBlIjoicGluZyJ9"}')
    assert decoded(raw) == b'event: ping\ndata: {"type":"ping"}\n\n'


@pytest.mark.parametrize("value", [b"\x0a", b"\7\0\x09ab", b"\4\0", b"\7\0"])
def test_invalid_headers_are_refused(value: bytes) -> None:
    with pytest.raises(FrameError, match="headers of a frame"):
        decoded(frame({**EVENT, ":bad": value}, b""))


def test_other_events_are_left_out() -> None:
    assert decoded(frame({":message-type": "event", ":event-type": "initial-response"}, b"{}")) == b""


def test_line_ends_between_tokens_stay_inside_the_event() -> None:
    raw = decoded(chunk_frame(b'{"type":\r\n"ping",\n\n"a": 1}'))
    (event,) = events_in(raw)
    assert json.loads(event.data) == {"type": "ping", "a": 1}


@pytest.mark.parametrize(("name", "kind", "said"), [
    ("throttlingException", FailureKind.RATE_LIMIT, "rate_limit_error"),
    ("modelTimeoutException", FailureKind.TIMEOUT, "timeout_error"),
    ("modelStreamErrorException", FailureKind.SERVER_ERROR, "api_error"),
    ("internalServerException", FailureKind.SERVER_ERROR, "api_error"),
    ("serviceUnavailableException", FailureKind.OVERLOADED, "overloaded_error"),
    ("validationException", FailureKind.INVALID_REQUEST, "invalid_request_error"),
    ("accessDeniedException", FailureKind.PERMISSION, "permission_error"),
    ("resourceNotFoundException", FailureKind.NOT_FOUND, "not_found_error"),
    ("somethingNewException", FailureKind.SERVER_ERROR, "api_error"),
])  # fmt: skip
def test_exception_is_an_error_of_its_kind(name: str, kind: FailureKind, said: str) -> None:
    for raw in (exception_frame(name, "It failed."), error_frame(name, "It failed.")):
        (event,) = events_in(decoded(raw))
        error = json.loads(event.data)
        assert (event.name, error["type"], error["error"]["type"]) == ("error", "error", said)
        assert error["error"]["message"] == "It failed."
        assert classify_event(event.data, 0.0, "bedrock", ()).kind is kind


def test_exception_without_a_message_has_its_name() -> None:
    (event,) = events_in(
        decoded(frame({":message-type": "exception", ":exception-type": "internalServerException"}, b""))
    )
    assert json.loads(event.data)["error"]["message"] == "internalServerException"
