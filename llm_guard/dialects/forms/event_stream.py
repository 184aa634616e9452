"""Decodes `application/vnd.amazon.eventstream` into the server-sent events of Messages.

A frame is: length of the frame and of its headers, CRC-32 of these eight bytes, headers, payload, CRC-32 of all before
it (Smithy, "Event stream specification"). The payload of a `chunk` has the event of Messages in base64.
"""

from __future__ import annotations

import binascii
import re
import struct
import zlib
from collections.abc import Iterator

from llm_guard.dialects.sse import dict_of
from llm_guard.dialects.translation.wire_json import encode, object_of

MOST_FRAME_BYTES = 16 << 20
"""The longest frame by the specification."""
_MOST_HEADER_BYTES = 128 << 10
"""The longest headers by the specification: a whole frame of headers would hold up all other calls for seconds."""
_PRELUDE = struct.Struct(">III")
_CRC = struct.Struct(">I")
_LEAST_FRAME_BYTES = _PRELUDE.size + _CRC.size
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Sizes of header values, by type. Byte arrays (6) and strings (7) begin with their length."""
_STRING = 7
_LINE_ENDS = re.compile(rb"[\r\n]+")
_METRICS = "amazon-bedrock-invocationMetrics"
"""What Amazon adds to the last event."""
_TYPES = {
    "throttlingexception": "rate_limit_error",
    "modeltimeoutexception": "timeout_error",
    "modelstreamerrorexception": "api_error",
    "modelerrorexception": "api_error",
    "internalserverexception": "api_error",
    "serviceunavailableexception": "overloaded_error",
    "modelnotreadyexception": "overloaded_error",
    "validationexception": "invalid_request_error",
    "accessdeniedexception": "permission_error",
    "resourcenotfoundexception": "not_found_error",
}
"""Anthropic's types of the errors, by Amazon's names in lower case."""


class FrameError(ValueError):
    """Raised for bytes that are not a stream of frames."""


class EventStreamDecoder:
    """Returns the same events however the bytes are cut into chunks. Buffers at most one frame."""

    __slots__ = ("_pending", "fault")

    def __init__(self) -> None:
        self._pending = bytearray()
        self.fault = ""
        """Why nothing more can be read: an invalid frame comes next. Empty: nothing is wrong so far."""

    @property
    def is_inside(self) -> bool:
        """True if the last frame is incomplete."""
        return bool(self._pending)

    def feed(self, chunk: bytes) -> bytes:
        """Takes a chunk; returns the events of all frames that it completes, up to the first invalid one."""
        pending = self._pending
        pending += chunk
        events, at = [], 0
        try:
            while (size := _frame_size(pending, at)) is not None and len(pending) - at >= size:
                events.append(_event_of(bytes(pending[at : at + size])))
                at += size
        except FrameError as error:
            self.fault = str(error)
        del pending[:at]
        return b"".join(events)


def _frame_size(data: bytearray, at: int) -> int | None:
    """Returns the length of the frame that begins there; None if too little of it has arrived."""
    if len(data) - at < _PRELUDE.size:
        return None
    size, headers, crc = _PRELUDE.unpack_from(data, at)
    if zlib.crc32(data[at : at + 8]) != crc:
        raise FrameError("the checksum of a frame's beginning is wrong")
    if headers > _MOST_HEADER_BYTES or not _LEAST_FRAME_BYTES + headers <= size <= MOST_FRAME_BYTES:
        raise FrameError(f"a frame claims to have {size} bytes, {headers} of them headers")
    return int(size)


def _event_of(frame: bytes) -> bytes:
    if zlib.crc32(frame[: -_CRC.size]) != _CRC.unpack_from(frame, len(frame) - _CRC.size)[0]:
        raise FrameError("the checksum of a frame is wrong")
    end = _PRELUDE.size + _PRELUDE.unpack_from(frame)[1]
    try:
        headers = dict(_headers_in(frame[_PRELUDE.size : end]))
    except (IndexError, KeyError, struct.error):
        raise FrameError("the headers of a frame are invalid") from None
    payload = frame[end : -_CRC.size]
    match headers.get(":message-type"):
        case "event":
            return _message_event(payload) if headers.get(":event-type") == "chunk" else b""
        case "exception":
            return _error_event(headers.get(":exception-type", ""), payload)
        case "error":
            return _error_event(headers.get(":error-code", ""), payload, headers.get(":error-message", ""))
        case kind:
            raise FrameError(f"a frame has the message type {kind!r:.40}")


def _headers_in(block: bytes) -> Iterator[tuple[str, str]]:
    """Yields the headers that are strings."""
    at = 0
    while at < len(block):
        start, at = at + 1, at + 1 + block[at]
        name, kind = block[start:at].decode("utf-8", "replace"), block[at]
        at += 1
        if kind in _SIZES:
            at += _SIZES[kind]
        else:
            start, at = at + 2, at + 2 + struct.unpack_from(">H", block, at)[0]
            if kind == _STRING:
                yield name, block[start:at].decode("utf-8", "replace")
        if at > len(block) or kind > max(_SIZES):
            raise KeyError(kind)


def _message_event(payload: bytes) -> bytes:
    coded = dict_of(object_of(payload)).get("bytes")
    try:
        data = binascii.a2b_base64(coded, strict_mode=True) if isinstance(coded, str) else b""
    except ValueError:
        data = b""
    event = object_of(data)
    kind = event.get("type") if event is not None else None
    if event is None or not isinstance(kind, str) or not kind.isprintable():
        raise FrameError("a frame has no event of Messages")
    if event.pop(_METRICS, None) is not None:
        data = encode(event)
    return _written(kind, data)


def _error_event(name: str, payload: bytes, message: str = "") -> bytes:
    body = object_of(payload)
    said = dict_of(body).get("message") or message or payload.decode("utf-8", "replace")
    error = {"type": _TYPES.get(name.lower(), "api_error"), "message": str(said) or name, "code": name}
    return _written("error", encode({"type": "error", "error": error}))


def _written(name: str, data: bytes) -> bytes:
    # Line ends in JSON are blanks between its tokens: in texts they are escaped.
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _LINE_ENDS.sub(b" ", data))
