"""Translates one stream, event by event. The result does not depend on how the bytes are cut into chunks."""

from __future__ import annotations

import re
from typing import Protocol

from llm_guard.dialects.sse import events_in
from llm_guard.dialects.sse_framing import last_boundary, spans

_USUAL = re.compile(rb"(?:event: ([^\r\n]*)\n)?data: ([^\r\n]*)")
"""Name and data of an event in the form that providers write, without its end."""
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
            if (one := _USUAL.fullmatch(block, 0, len(block) - 2)) is not None:  # one event, as nearly always
                self._read_event(one)
                return
            for start, end in spans(block):
                if (found := _USUAL.fullmatch(block, start, end)) is not None:
                    self._read_event(found)
                else:
                    self._read_unusual(block[start:end])
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(type(error).__name__) from None

    def _read_event(self, found: re.Match[bytes]) -> None:
        name, data = found.groups()
        if data:
            self._reader.event(name.decode("utf-8", "replace") if name else "", data)

    def _read_unusual(self, raw: bytes) -> None:
        name, data = _unusual_event(raw)
        if data:
            self._reader.event(name, data)


def _unusual_event(raw: bytes) -> tuple[str, bytes]:
    """Returns name and data of any event; without data if it has none."""
    for event in events_in(raw + b"\n\n"):
        return event.name, event.data
    return "", b""
