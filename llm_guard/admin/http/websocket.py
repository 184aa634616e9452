"""WebSocket protocol, server side (RFC 6455): the handshake, and frames in both directions. Does no I/O.

No extensions: an offer of compression is ignored.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from llm_guard.admin.http.endpoint import Refused
from llm_guard.proxy.http_server.request import Request

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
GOING_AWAY, PROTOCOL_ERROR, INVALID_TEXT, TOO_BIG = 1001, 1002, 1007, 1009

MAX_BYTES = 4096
"""Largest message of a client, also while it is incomplete."""

_CONTINUATION = 0x0
_KNOWN = frozenset({_CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG})
_FIN, _RESERVED, _OPCODE = 0x80, 0x70, 0x0F
_MASKED = 0x80
_MAX_CONTROL_BYTES = 125
_SALT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_CODES_ON_THE_WIRE = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})


class ProtocolError(Exception):
    """The client has violated the protocol; the connection must be closed with this code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class WebSocketMessage:
    """A complete message, or a control frame."""

    opcode: int
    payload: bytes


def accept(request: Request) -> str:
    """Returns the `Sec-WebSocket-Accept` value. Raises Refused if the request is no valid handshake."""
    headers = request.names
    tokens = {token.strip().lower() for token in headers.get("connection", "").split(",")}
    if not request.is_for_websocket or "upgrade" not in tokens:
        raise Refused(
            400, "upgrade_needed", "this path is a WebSocket: send Connection: Upgrade and Upgrade: websocket"
        )
    if headers.get("sec-websocket-version") != "13":
        raise Refused(400, "websocket_version", "send Sec-WebSocket-Version: 13")
    key = headers.get("sec-websocket-key", "")
    if not _is_key(key):
        raise Refused(400, "websocket_key", "Sec-WebSocket-Key must be 16 bytes in base64")
    return base64.b64encode(hashlib.sha1(key.encode() + _SALT, usedforsecurity=False).digest()).decode()


def frame(opcode: int, payload: bytes = b"") -> bytes:
    """Encodes an unfragmented message or control frame."""
    size = len(payload)
    if size < 126:
        return bytes((_FIN | opcode, size)) + payload
    if size < 1 << 16:
        return bytes((_FIN | opcode, 126)) + size.to_bytes(2, "big") + payload
    return bytes((_FIN | opcode, 127)) + size.to_bytes(8, "big") + payload


def close_frame(code: int, reason: str = "") -> bytes:
    """Encodes a close frame. `reason`: ASCII, at most 123 characters."""
    return frame(CLOSE, code.to_bytes(2, "big") + reason.encode())


def answer_to_close(payload: bytes) -> bytes:
    """Returns the close frame that responds to a client's. Raises ProtocolError if the payload is invalid."""
    if not payload:
        return frame(CLOSE)
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or not (code in _CODES_ON_THE_WIRE or 3000 <= code < 5000):
        raise ProtocolError(PROTOCOL_ERROR, "an invalid close code")
    _check_text(payload[2:])
    return frame(CLOSE, payload[:2])


class ClientFrames:
    """Parses a client's frames, however they are split into reads."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._opcode: int | None = None
        """Opcode of the fragmented message in progress."""
        self._fragments = b""

    def feed(self, data: bytes) -> Iterator[WebSocketMessage]:
        """Yields every message that is complete. Raises ProtocolError, after which the rest cannot be parsed."""
        self._unread += data
        while (taken := self._try_take()) is not None:
            is_last, opcode, payload = taken
            if opcode >= CLOSE:
                yield WebSocketMessage(opcode, payload)
            elif (message := self._join(is_last, opcode, payload)) is not None:
                yield message

    def _try_take(self) -> tuple[bool, int, bytes] | None:
        """Returns the next frame, unmasked; None if it is incomplete."""
        unread = self._unread
        if len(unread) < 2:
            return None
        is_last, opcode, size = bool(unread[0] & _FIN), unread[0] & _OPCODE, unread[1] & ~_MASKED
        _check_head(unread[0], unread[1])
        length_bytes = {126: 2, 127: 8}.get(size, 0)
        at = 2 + length_bytes
        if len(unread) < at:
            return None
        if length_bytes:
            size = int.from_bytes(unread[2:at], "big")
        if size > MAX_BYTES:
            raise ProtocolError(TOO_BIG, f"more than {MAX_BYTES} bytes")
        if len(unread) < at + 4 + size:
            return None
        payload = _unmasked(unread[at + 4 : at + 4 + size], unread[at : at + 4])
        del unread[: at + 4 + size]
        return is_last, opcode, payload

    def _join(self, is_last: bool, opcode: int, payload: bytes) -> WebSocketMessage | None:
        """Returns the message that this frame completes, None if more fragments follow."""
        if (opcode == _CONTINUATION) != (self._opcode is not None):
            raise ProtocolError(
                PROTOCOL_ERROR, "a continuation frame without a message, or a new message before the end of the last"
            )
        if self._opcode is None:
            self._opcode = opcode
        self._fragments += payload
        if len(self._fragments) > MAX_BYTES:
            raise ProtocolError(TOO_BIG, f"more than {MAX_BYTES} bytes")
        if not is_last:
            return None
        message = WebSocketMessage(self._opcode, self._fragments)
        self._opcode, self._fragments = None, b""
        if message.opcode == TEXT:
            _check_text(message.payload)
        return message


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def _check_head(first: int, second: int) -> None:
    opcode = first & _OPCODE
    if first & _RESERVED or opcode not in _KNOWN:
        raise ProtocolError(PROTOCOL_ERROR, "a reserved bit or opcode")
    if not second & _MASKED:
        raise ProtocolError(PROTOCOL_ERROR, "a client's frames must be masked")
    if opcode >= CLOSE and (not first & _FIN or second & ~_MASKED > _MAX_CONTROL_BYTES):
        raise ProtocolError(PROTOCOL_ERROR, "a control frame that is too long or fragmented")


def _unmasked(payload: bytearray, mask: bytearray) -> bytes:
    size = len(payload)
    key = int.from_bytes((bytes(mask) * (size // 4 + 1))[:size], "big")
    return (int.from_bytes(payload, "big") ^ key).to_bytes(size, "big")


def _check_text(payload: bytes) -> None:
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise ProtocolError(INVALID_TEXT, "text that is not valid UTF-8") from None
