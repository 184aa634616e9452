"""Writes frames of `application/vnd.amazon.eventstream` (Smithy, "Event stream specification")."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Mapping

from llm_guard.dialects.sse import events_in

METRICS = {"inputTokenCount": 5, "outputTokenCount": 9, "invocationLatency": 700, "firstByteLatency": 300}
_EVENT = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}


def frame(headers: Mapping[str, str | bytes], payload: bytes) -> bytes:
    """Returns one frame. A header of bytes is written as it is: type and value."""
    block = b"".join(_header(name, value) for name, value in headers.items())
    prelude = struct.pack(">II", 16 + len(block) + len(payload), len(block))
    head = prelude + struct.pack(">I", zlib.crc32(prelude)) + block + payload
    return head + struct.pack(">I", zlib.crc32(head))


def chunk_frame(event: bytes) -> bytes:
    """Returns the frame of one event of Messages, padded as Amazon pads it."""
    coded = base64.b64encode(event).decode()
    return frame(_EVENT, json.dumps({"bytes": coded, "p": "abcdefgh"}).encode())


def exception_frame(name: str, message: str) -> bytes:
    headers = {":exception-type": name, ":content-type": "application/json", ":message-type": "exception"}
    return frame(headers, json.dumps({"message": message}).encode())


def error_frame(code: str, message: str) -> bytes:
    return frame({":error-code": code, ":error-message": message, ":message-type": "error"}, b"")


def frames_of(stream: bytes, *, has_metrics: bool = True) -> list[bytes]:
    """Returns the frames of a stream of server-sent events, with what Amazon adds to the last one."""
    found = []
    for event in events_in(stream):
        data = event.data
        if has_metrics and event.name == "message_stop":
            data = json.dumps({"type": "message_stop", "amazon-bedrock-invocationMetrics": METRICS}).encode()
        found.append(chunk_frame(data))
    return found


def _header(name: str, value: str | bytes) -> bytes:
    written = value if isinstance(value, bytes) else b"\7" + struct.pack(">H", len(value.encode())) + value.encode()
    return bytes([len(name)]) + name.encode() + written
