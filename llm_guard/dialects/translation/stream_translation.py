"""Translates one stream, event by event. The result does not depend on how the bytes are cut into chunks."""

from __future__ import annotations

from typing import Protocol

from llm_guard.dialects.sse import events_in
from llm_guard.dialects.sse_framing import last_boundary, spans

_MOST_PENDING = 64 << 20
"""An event longer than this, in bytes, cannot be translated."""


class ResponseReader(Protocol):
    """Reads a response into a sink."""

    has_ended: bool

    def event(self, name: str, data: bytes) -> None: ...
    def finish(self) -> None: ...


class StreamWriter(Protocol):
    """The part of a sink that the stream needs."""

    def take(self) -> bytes: ...


class StreamTranslator:
    """Takes the events of one dialect, and returns those of the other."""

    def __init__(self, reader: ResponseReader, writer: StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._pending = b""
        """Beginning of an event that is longer than the gateway holds back for its own purposes."""

    @property
    def has_ended(self) -> bool:
        """True once the client's terminal event has been written."""
        return self._reader.has_ended

    def feed(self, block: bytes) -> bytes:
        """Takes the next bytes of the stream. Raises ValueError for events that cannot be read or expressed."""
        if self._pending:
            block, self._pending = self._pending + block, b""
        boundary = last_boundary(block)
        if boundary < len(block):
            block, self._pending = block[:boundary], block[boundary:]
            if len(self._pending) > _MOST_PENDING:
                raise ValueError("an event is too long")
        if not self._reader.has_ended:
            self._read(block)
        return self._writer.take()

    def written(self) -> bytes:
        """Returns the events before the one that could not be translated."""
        return self._writer.take()

    def finish(self) -> bytes:
        """Returns the end that the client still lacks, once the stream has shown its own. Raises ValueError."""
        try:
            self._reader.finish()
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(type(error).__name__) from None
        return self._writer.take()

    def _read(self, block: bytes) -> None:
        try:
            for start, end in spans(block):
                raw = block[start:end]
                name, data = _usual_event(raw) or _unusual_event(raw)
                if data:
                    self._reader.event(name, data)
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(type(error).__name__) from None


def _usual_event(raw: bytes) -> tuple[str, bytes] | None:
    """Returns name and data of an event in the form that providers write; None: it has another one."""
    if b"\r" in raw:
        return None
    if raw.startswith(b"data: "):
        return ("", raw[6:]) if b"\n" not in raw else None
    at = raw.find(b"\ndata: ")
    if at < 0 or not raw.startswith(b"event: ") or raw.find(b"\n", at + 1) >= 0 or raw.find(b"\n", 0, at) >= 0:
        return None
    return raw[7:at].decode("utf-8", "replace"), raw[at + 7 :]


def _unusual_event(raw: bytes) -> tuple[str, bytes]:
    """Returns name and data of any event; without data if it has none."""
    for event in events_in(raw + b"\n\n"):
        return event.name, event.data
    return "", b""
