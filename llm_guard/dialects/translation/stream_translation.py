"""Translates one stream, event by event. The result does not depend on how the bytes are cut into chunks."""

from __future__ import annotations

from typing import Protocol

from llm_guard.dialects.sse import events_in
from llm_guard.dialects.sse_framing import last_boundary, spans

_MOST_PENDING = 16 << 20
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
        if self._pending or not block.endswith(b"\n\n"):
            block = self._complete(block)
        if block and not self._reader.has_ended:
            self._read(block)
        return self._writer.take()

    def _complete(self, block: bytes) -> bytes:
        """Returns the complete events, and keeps the beginning of the next one."""
        block = self._pending + block
        boundary = last_boundary(block)
        self._pending = block[boundary:]
        if len(self._pending) > _MOST_PENDING:
            raise ValueError("an event is too long")
        return block[:boundary]

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
            if block.find(b"\n\n") == len(block) - 2 and block[:1] not in b":\n\r":  # one event, as nearly always
                self._read_event(block[:-2])
                return
            for start, end in spans(block):
                self._read_event(block[start:end])
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(type(error).__name__) from None

    def _read_event(self, raw: bytes) -> None:
        name, data = _usual_event(raw) or _unusual_event(raw)
        if data:
            self._reader.event(name, data)


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
