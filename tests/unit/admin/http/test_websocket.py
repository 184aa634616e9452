from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_guard.admin.http.endpoint import Refused
from llm_guard.admin.http.websocket import (
    INVALID_TEXT,
    MAX_BYTES,
    PROTOCOL_ERROR,
    TOO_BIG,
    ClientFrames,
    WebSocketReply,
    accept,
    close_frame,
    ping_frame,
    text_frame,
)
from llm_guard.proxy.http_server.request import Request, RequestFields

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
MASK = b"\x01\x02\x03\xfe"
UPGRADE = {
    b"host": b"x",
    b"connection": b"keep-alive, Upgrade",
    b"upgrade": b"WebSocket",
    b"sec-websocket-version": b"13",
    b"sec-websocket-key": b"dGhlIHNhbXBsZSBub25jZQ==",
}


def sent(opcode: int, payload: bytes = b"", *, first: int = 0x80, mask: bytes = MASK) -> bytes:
    """Returns a masked client frame; `first` sets its FIN and reserved bits."""
    size = len(payload)
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
    return bytes((first | opcode,)) + length + mask + masked


def replies(*pieces: bytes) -> list[WebSocketReply]:
    frames = ClientFrames()
    return [reply for piece in pieces for reply in frames.feed(piece)]


def pong(payload: bytes) -> WebSocketReply:
    return WebSocketReply(bytes((0x80 | PONG, len(payload))) + payload)


def code(data: bytes) -> int:
    """Returns the code with which the connection is closed because of `data`."""
    (reply,) = replies(data)
    assert reply.is_close
    assert reply.frame[0] == 0x80 | CLOSE
    return int.from_bytes(reply.frame[2:4], "big")


# handshake


def asking(**changed: str | None) -> Request:
    fields = dict(UPGRADE)
    for name, value in changed.items():
        key = name.replace("_", "-").encode()
        if value is None:
            del fields[key]
        else:
            fields[key] = value.encode()
    return Request("GET", "/admin/events/ws", "1.1", RequestFields.read(list(fields.items()), is_head_long=False))


def test_key_is_answered_as_in_the_rfc() -> None:
    assert accept(asking()) == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"upgrade": "h2c"}, "upgrade_needed"),
        ({"upgrade": None}, "upgrade_needed"),
        ({"connection": "keep-alive"}, "upgrade_needed"),
        ({"content_length": "5"}, "upgrade_needed"),
        ({"sec_websocket_version": "8"}, "websocket_version"),
        ({"sec_websocket_version": None}, "websocket_version"),
        ({"sec_websocket_key": None}, "websocket_key"),
        ({"sec_websocket_key": "short"}, "websocket_key"),
        ({"sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ"}, "websocket_key"),
        ({"sec_websocket_key": "é"}, "websocket_key"),
    ],
)
def test_request_that_is_no_handshake_is_refused(changed: dict[str, str | None], expected: str) -> None:
    with pytest.raises(Refused) as caught:
        accept(asking(**changed))
    assert (caught.value.status, caught.value.code) == (400, expected)


# server frames


@pytest.mark.parametrize(("size", "head"), [(0, 2), (125, 2), (126, 4), (65_535, 4), (65_536, 10)])
def test_server_frames_are_whole_and_not_masked(size: int, head: int) -> None:
    data = text_frame(b"a" * size)
    assert data[0] == 0x81
    assert data[1] < 128
    assert (len(data), data[head:]) == (head + size, b"a" * size)


def test_text_is_sent_as_it_is() -> None:
    assert text_frame("déjà".encode()) == b"\x81\x06" + "déjà".encode()


def test_ping_is_empty() -> None:
    assert ping_frame() == b"\x89\x00"


def test_close_frame_has_code_and_reason() -> None:
    assert close_frame(1001, "bye") == b"\x88\x05\x03\xe9bye"


def test_long_reason_is_cut() -> None:
    assert close_frame(1002, "a" * 200) == b"\x88\x7d\x03\xea" + b"a" * 123


# client frames


def test_ping_is_unmasked_and_answered() -> None:
    assert replies(sent(PING)) == [pong(b"")]
    assert replies(sent(PING, b"\xff\x00there?")) == [pong(b"\xff\x00there?")]


def test_messages_and_pongs_are_ignored() -> None:
    assert replies(sent(TEXT, "déjà".encode()), sent(BINARY, b"\xff\x00" * 100), sent(PONG, b"p"), sent(TEXT)) == []


def test_control_frames_pass_between_fragments() -> None:
    data = sent(TEXT, b"one ", first=0) + sent(PING, b"p") + sent(0, b"two ", first=0) + sent(0, b"three")
    assert replies(data) == [pong(b"p")]


@given(st.data())
def test_network_may_cut_frames_anywhere(data: st.DataObject) -> None:
    payloads = data.draw(st.lists(st.tuples(st.sampled_from([TEXT, PING]), st.text(max_size=40)), max_size=5))
    wire = b"".join(sent(opcode, text.encode()[:120]) for opcode, text in payloads if opcode == PING or text.isascii())
    wire += data.draw(st.sampled_from([b"", sent(CLOSE, b"\x03\xe8"), sent(3), sent(TEXT, b"a" * (MAX_BYTES + 1))]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert replies(*pieces) == replies(wire)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x81\x03abc", PROTOCOL_ERROR),
        (sent(TEXT, b"a", first=0xC0), PROTOCOL_ERROR),
        (sent(TEXT, b"a", first=0x90), PROTOCOL_ERROR),
        (sent(0x3, b"a"), PROTOCOL_ERROR),
        (sent(0xB), PROTOCOL_ERROR),
        (sent(PING, b"a", first=0), PROTOCOL_ERROR),
        (sent(PING, b"a" * 126), PROTOCOL_ERROR),
        (sent(0, b"a"), PROTOCOL_ERROR),
        (sent(TEXT, b"a", first=0) + sent(TEXT, b"b"), PROTOCOL_ERROR),
        (b"\x81\xfe\x00\x05" + bytes(9), PROTOCOL_ERROR),
        (sent(TEXT, b"\xff"), INVALID_TEXT),
        (sent(TEXT, b"\xc3", first=0) + sent(0, b""), INVALID_TEXT),
        (sent(TEXT, b"a" * (MAX_BYTES + 1)), TOO_BIG),
        (sent(TEXT, b"a" * MAX_BYTES, first=0) + sent(0, b"a"), TOO_BIG),
        (sent(TEXT, b"a" * MAX_BYTES, first=0) + sent(PONG) + sent(0, b"", first=0) + sent(0, b"a"), TOO_BIG),
        (b"\x81\xff" + (1 << 62).to_bytes(8, "big"), TOO_BIG),
        (b"\x81\xff" + b"\xff" * 8, PROTOCOL_ERROR),
    ],
)
def test_protocol_violation_ends_it(data: bytes, expected: int) -> None:
    assert code(data) == expected


def test_largest_accepted_message_may_arrive_in_fragments_and_after_another() -> None:
    whole = b"a" * MAX_BYTES
    for message in (sent(TEXT, whole), sent(TEXT, whole[:-1], first=0) + sent(0, b"a")):
        assert replies(message, message, sent(PING)) == [pong(b"")]


def test_text_may_be_cut_within_a_character() -> None:
    assert replies(sent(TEXT, b"\xc3", first=0) + sent(0, b"\xa9")) == []


def test_too_large_a_message_is_refused_before_it_has_arrived() -> None:
    assert code(b"\x81\xfe\xff\xff") == TOO_BIG
    assert replies(b"\x81\xfe\xff\xff")[0].frame[4:] == b"more than 4096 bytes"


def test_head_that_arrives_in_pieces_is_counted_once() -> None:
    first, second = sent(TEXT, b"a" * 3000, first=0), sent(0, b"a" * 1000)
    assert replies(first[:4], first[4:], second[:4], second[4:], sent(PING)) == [pong(b"")]


# closing


@pytest.mark.parametrize("payload", [b"", b"\x03\xe8", b"\x03\xe9bye", b"\x0f\xa0"])
def test_close_is_answered_with_its_code(payload: bytes) -> None:
    answer = bytes((0x80 | CLOSE, len(payload[:2]))) + payload[:2]
    assert replies(sent(CLOSE, payload), sent(PING)) == [WebSocketReply(answer, is_close=True)]


@pytest.mark.parametrize("payload", [b"\x03", b"\x00\x00", b"\x03\xed", b"\x03\xee", b"\x13\x88"])
def test_close_with_a_reserved_code_is_against_the_protocol(payload: bytes) -> None:
    assert code(sent(CLOSE, payload)) == PROTOCOL_ERROR


def test_close_with_a_reason_that_is_no_text_is_against_the_protocol() -> None:
    assert code(sent(CLOSE, b"\x03\xe8\xff")) == INVALID_TEXT
