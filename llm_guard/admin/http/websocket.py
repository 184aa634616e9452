"""WebSocket protocol, server side (RFC 6455), by wsproto: the handshake, and frames in both directions. Does no I/O.

No extensions are negotiated: an offer of compression is ignored.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass

from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason, Frame, FrameDecoder, FrameProtocol, Opcode, ParseFailed, RsvBits
from wsproto.utilities import generate_accept_token

from llm_guard.admin.http.endpoint import Refused
from llm_guard.proxy.http_server.request import Request

GOING_AWAY, PROTOCOL_ERROR = CloseReason.GOING_AWAY, CloseReason.PROTOCOL_ERROR
INVALID_TEXT, TOO_BIG = CloseReason.INVALID_FRAME_PAYLOAD_DATA, CloseReason.MESSAGE_TOO_BIG

MAX_BYTES = 4096
"""Largest message of a client, also while it is incomplete."""

_encoder = FrameProtocol(client=False, extensions=[])
"""Shared by all connections: it has no state between unfragmented messages."""


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
    return generate_accept_token(key.encode()).decode()


def text_frame(content: bytes) -> bytes:
    """Encodes a message. `content`: UTF-8."""
    return bytes(_encoder.send_data(content.decode()))


def ping_frame() -> bytes:
    return bytes(_encoder.ping())


def close_frame(code: int, reason: str | None = None) -> bytes:
    """Encodes a close frame. `reason` is cut after 123 bytes."""
    return bytes(_encoder.close(code, reason))


@dataclass(frozen=True, slots=True)
class WebSocketReply:
    """A frame that has to be sent in response to one of the client's."""

    frame: bytes
    is_close: bool = False
    """True: no frame may follow it, in either direction."""


class ClientFrames:
    """Parses a client's frames, however they are split into reads."""

    def __init__(self) -> None:
        self._protocol = FrameProtocol(client=False, extensions=[_SizeLimit()])

    def feed(self, data: bytes) -> Iterator[WebSocketReply]:
        """Yields the replies to pings, to a close frame, and to a violation of the protocol. Messages are checked, and
        their content is ignored."""
        self._protocol.receive_bytes(data)
        try:
            for frame in self._protocol.received_frames():
                if (reply := _reply(frame)) is not None:
                    yield reply
        except ParseFailed as error:
            reason = f"more than {MAX_BYTES} bytes" if error.code is TOO_BIG else str(error)
            yield WebSocketReply(close_frame(error.code, reason), is_close=True)


class _SizeLimit(Extension):
    """Limits a client's messages, by the sizes in their frames' heads: wsproto itself has no limit. An extension of
    wsproto's parser only: it is not negotiated, and changes no frame."""

    name = "size-limit"

    def __init__(self) -> None:
        self._size: int | None = None
        """Bytes of the message up to the end of the present frame; None in a control frame."""
        self._earlier = 0
        """Bytes of the message in complete frames."""

    def enabled(self) -> bool:
        return True

    def offer(self) -> bool:
        return False

    def frame_inbound_header(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, payload_length: int
    ) -> CloseReason | RsvBits:
        """Refuses a frame that makes its message too large. Called again if the head was incomplete."""
        self._size = None if opcode.iscontrol() else self._earlier + payload_length
        if self._size is not None and self._size > MAX_BYTES:
            return CloseReason.MESSAGE_TOO_BIG
        return super().frame_inbound_header(proto, opcode, rsv, payload_length)

    def frame_inbound_complete(
        self,
        proto: FrameDecoder | FrameProtocol,  # noqa: ARG002  # as in `Extension`
        fin: bool,
    ) -> None:
        if self._size is not None:
            self._earlier = 0 if fin else self._size


def _reply(frame: Frame) -> WebSocketReply | None:
    match frame:
        case Frame(opcode=Opcode.PING, payload=bytes(payload)):
            return WebSocketReply(bytes(_encoder.pong(payload)))
        case Frame(opcode=Opcode.CLOSE, payload=(code, _)):
            return WebSocketReply(close_frame(code), is_close=True)
        case _:
            return None


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False
