"""Server-sent events, looked at and never re-framed.

Owns where one event ends and the next begins (WHATWG HTML, section 9.2.6), and the watch that keeps what a stream has
shown so far. Does not own what an event means: that is the reader's, one for each wire format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

MAX_EVENT_BYTES = 1 << 20
"""An event longer than this is passed on as it comes; only its beginning is read."""

_HEAD_BYTES = 4096
_CUT_END_BYTES = 3
_END_OF_EVENT = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}[\r\n]*")
_LINE = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Event:
    """One event: the value of its `event` field ("" without one) and its `data` lines joined."""

    name: str
    data: bytes
    is_whole: bool = True
    """False: longer than MAX_EVENT_BYTES, `data` holds only its first bytes."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider counted them; None where it said nothing."""

    input: int | None = None
    output: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """What one event shows."""

    is_token: bool = False
    """Something the client was waiting for: text, a tool call, reasoning, an end; not a ping, a role or a header."""
    is_end: bool = False
    """After it the dialect owes nothing more."""
    error: bytes | None = None
    """An in-band error, as the provider wrote it."""
    usage: Usage | None = None
    is_malformed: bool = False


NOTHING = Mark()
TOKEN = Mark(is_token=True)
END = Mark(is_token=True, is_end=True)
MALFORMED = Mark(is_malformed=True)


class Reader(Protocol):
    """What a wire format's events mean. One reader watches one stream: it may count what it has seen."""

    def read(self, event: Event) -> Mark:
        """The meaning of one event; never raises."""

    def is_dull(self, block: bytes) -> bool:
        """Whether no event in `block` can be an end, an error or a usage: then it need not be read (fast path)."""

    def ends_unmarked(self) -> bool:
        """Whether this format ends without a terminal event, so that the end of the connection is an end."""


class StreamWatch:
    """Keeps what a stream has shown: first token, end, in-band error, usage. Holds no more than one event.

    The marks are the same however the bytes are cut into chunks.
    """

    __slots__ = ("_is_oversize", "_pending", "_reader", "error", "has_ended", "has_token", "malformed", "usage")

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._pending = b""
        self._is_oversize = False
        self.has_token = False
        self.has_ended = False
        self.error: bytes | None = None
        self.malformed = 0
        """Events before the first token that could not be read."""
        self.usage = Usage()

    def feed(self, chunk: bytes) -> bytes:
        """Takes what arrived; returns what may be passed on: everything up to the last event boundary.

        The rest of a cut event is of no use to a client, and would make the error event after it unreadable.
        """
        block = self._pending + chunk if self._pending else chunk
        boundary = _last_boundary(block)
        if boundary == 0 and not self._is_oversize:
            # A CRLF may be cut in two: its second half belongs to the event before.
            boundary = len(block) - len(block.lstrip(b"\r\n"))
        if boundary == 0:
            return self._hold(block)
        self._pending = block[boundary:]
        block = block[:boundary] if self._pending else block
        if self._is_oversize:
            self._is_oversize = False
            end = _END_OF_EVENT.search(block)
            self._look(block[end.end() :] if end else b"")
        else:
            self._look(block)
        return block

    @property
    def may_end(self) -> bool:
        """Whether the stream may end here: its dialect owes nothing more."""
        return self.has_ended or self._reader.ends_unmarked()

    @property
    def held(self) -> bytes:
        """The beginning of an event that has not ended."""
        return self._pending

    def _hold(self, block: bytes) -> bytes:
        if not self._is_oversize and len(block) <= MAX_EVENT_BYTES + _CUT_END_BYTES:
            self._pending = block
            return b""
        if not self._is_oversize:
            self._is_oversize = True
            self._note(self._reader.read(_event(block[:_HEAD_BYTES], is_whole=False)))
        # The last bytes may be the first half of a boundary.
        self._pending = block[-_CUT_END_BYTES:]
        return block[:-_CUT_END_BYTES]

    def _look(self, block: bytes) -> None:
        if self.has_token and self._reader.is_dull(block):
            return
        start = 0
        for end in _END_OF_EVENT.finditer(block):
            raw = block[start : end.start()]
            is_whole = len(raw) <= MAX_EVENT_BYTES
            event = _event(raw if is_whole else raw[:_HEAD_BYTES], is_whole=is_whole)
            start = end.end()
            if event.data or event.name:
                self._note(self._reader.read(event))

    def _note(self, mark: Mark) -> None:
        # Behind the first token not every event is read: what is counted there would depend on how bytes arrive.
        self.malformed += mark.is_malformed and not self.has_token
        self.has_token = self.has_token or mark.is_token
        self.has_ended = self.has_ended or mark.is_end
        if mark.error is not None and self.error is None:
            self.error = mark.error
        if mark.usage is not None:
            self.usage = Usage(
                self.usage.input if mark.usage.input is None else mark.usage.input,
                self.usage.output if mark.usage.output is None else mark.usage.output,
            )


def _last_boundary(block: bytes) -> int:
    """Where the last complete event of `block` ends; 0 when none does."""
    if b"\r" not in block:
        return block.rfind(b"\n\n") + 2 if b"\n\n" in block else 0
    last = 0
    for end in _END_OF_EVENT.finditer(block):
        last = end.end()
    return last


def _event(raw: bytes, *, is_whole: bool = True) -> Event:
    name = ""
    data: list[bytes] = []
    for line in _LINE.split(raw):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
        elif field == b"error":
            # llama.cpp before 2025 wrote its errors in a field of that name.
            name = "error"
            data.append(value)
    return Event(name, b"\n".join(data), is_whole)
