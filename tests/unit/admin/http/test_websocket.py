from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_guard.admin.http.endpoint import Refused
from llm_guard.admin.http.websocket import (
    BINARY,
    CLOSE,
    INVALID_TEXT,
    MAX_BYTES,
    PING,
    PROTOCOL_ERROR,
    TEXT,
    TOO_BIG,
    ClientFrames,
    ProtocolError,
    WebSocketMessage,
    accept,
    answer_to_close,
    close_frame,
    frame,
)
from llm_guard.proxy.http_server.request import Request
from llm_guard.proxy.http_server.request_fields import RequestFields

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


def hear(*pieces: bytes) -> list[WebSocketMessage]:
    frames = ClientFrames()
    return [message for piece in pieces for message in frames.feed(piece)]


def code(data: bytes) -> int:
    with pytest.raises(ProtocolError) as caught:
        hear(data)
    return caught.value.code


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
    data = frame(TEXT, b"a" * size)
    assert data[0] == 0x81
    assert data[1] < 128
    assert (len(data), data[head:]) == (head + size, b"a" * size)


def test_close_frame_has_code_and_reason() -> None:
    assert close_frame(1001, "bye") == b"\x88\x05\x03\xe9bye"


# client frames


def test_message_is_unmasked() -> None:
    assert hear(sent(TEXT, "déjà".encode())) == [WebSocketMessage(TEXT, "déjà".encode())]
    assert hear(sent(BINARY, b"\xff\x00" * 100)) == [WebSocketMessage(BINARY, b"\xff\x00" * 100)]
    assert hear(sent(PING)) == [WebSocketMessage(PING, b"")]


def test_fragments_are_joined_and_control_frames_pass_between_them() -> None:
    data = sent(TEXT, b"one ", first=0) + sent(PING, b"p") + sent(0, b"two ", first=0) + sent(0, b"three")
    assert hear(data) == [WebSocketMessage(PING, b"p"), WebSocketMessage(TEXT, b"one two three")]


@given(st.data())
def test_network_may_cut_frames_anywhere(data: st.DataObject) -> None:
    payloads = data.draw(st.lists(st.tuples(st.sampled_from([TEXT, PING]), st.text(max_size=40)), max_size=5))
    wire = b"".join(sent(opcode, text.encode()[:120]) for opcode, text in payloads if opcode == PING or text.isascii())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert hear(*pieces) == hear(wire)


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
        (sent(TEXT, b"\xff"), INVALID_TEXT),
        (sent(TEXT, b"\xc3", first=0) + sent(0, b""), INVALID_TEXT),
        (sent(TEXT, b"a" * (MAX_BYTES + 1)), TOO_BIG),
        (sent(TEXT, b"a" * MAX_BYTES, first=0) + sent(0, b"a"), TOO_BIG),
        (b"\x81\xff" + (1 << 62).to_bytes(8, "big"), TOO_BIG),
        (b"\x81\xff" + b"\xff" * 8, TOO_BIG),
    ],
)
def test_protocol_violation_ends_it(data: bytes, expected: int) -> None:
    assert code(data) == expected


def test_largest_accepted_message_may_arrive_in_fragments() -> None:
    whole = b"a" * MAX_BYTES
    assert hear(sent(TEXT, whole)) == [WebSocketMessage(TEXT, whole)]
    assert hear(sent(TEXT, whole[:-1], first=0) + sent(0, b"a")) == [WebSocketMessage(TEXT, whole)]


def test_text_cut_within_a_character_is_whole_again() -> None:
    assert hear(sent(TEXT, b"\xc3", first=0) + sent(0, b"\xa9")) == [WebSocketMessage(TEXT, b"\xc3\xa9")]


def test_too_large_a_message_is_refused_before_it_has_arrived() -> None:
    assert code(b"\x81\xfe\xff\xff") == TOO_BIG


# closing


@pytest.mark.parametrize("payload", [b"", b"\x03\xe8", b"\x03\xe9bye", b"\x0f\xa0"])
def test_close_is_answered_with_its_code(payload: bytes) -> None:
    assert answer_to_close(payload) == frame(CLOSE, payload[:2])


@pytest.mark.parametrize("payload", [b"\x03", b"\x00\x00", b"\x03\xed", b"\x03\xee", b"\x13\x88", b"\x03\xe8\xff"])
def test_close_with_a_reserved_code_is_against_the_protocol(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        answer_to_close(payload)
