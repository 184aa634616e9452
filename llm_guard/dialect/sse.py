"""Server-sent events, looked at and never re-framed.

Owns where one event ends and the next begins (WHATWG HTML, section 9.2.6), and the watch that keeps what a stream has
shown so far. Does not own what an event means: that is the reader's, one for each wire format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from llm_guard.dialect.event_look import is_garbled, is_plain
from llm_guard.dialect.framing import (
    COMMENTS,
    CUT_END_BYTES,
    END_OF_EVENT,
    MAX_EVENT_BYTES,
    last_boundary,
    spans,
)

_HEAD_BYTES = 4096
_BOM = b"\xef\xbb\xbf"
_USUAL_ENDS = (b"\n\n", b"\r\n\r\n")
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
    cached: int | None = None  # read from the provider's cache; OpenAI counts it in `input`, Anthropic beside it


@dataclass(frozen=True, slots=True)
class Mark:
    """What one event shows."""

    is_token: bool = False
    """Something the client was waiting for: text, a tool call, reasoning, an end; not a ping, a role or a header."""
    is_progress: bool = False
    """The model or one of its tools is at work: a token, a new block, a search; not a ping or an empty delta."""
    is_filler: bool = False
    """A client misses nothing without it: a ping, an empty delta. False in doubt."""
    is_end: bool = False
    """After it the dialect owes nothing more."""
    error: bytes | None = None
    """An in-band error, as the provider wrote it."""
    is_heard: bool = False
    """The official SDKs raise on that."""
    usage: Usage | None = None
    is_malformed: bool = False
    is_foreign: bool = False
    """It belongs to another endpoint."""
    lacks_finish: bool = False
    """If the stream ends here, the only thing wrong with it is that it has not said why it ends."""


NOTHING = Mark()
FILLER = Mark(is_filler=True)
PROGRESS = Mark(is_progress=True)
TOKEN = Mark(is_token=True, is_progress=True)
END = Mark(is_token=True, is_progress=True, is_end=True)
MALFORMED = Mark(is_malformed=True)
FOREIGN = Mark(is_malformed=True, is_foreign=True)


class Reader(Protocol):
    """What a wire format's events mean. One reader watches one stream: it may count what it has seen."""

    expects_json: bool
    """Whether the data of every event ought to be a JSON object."""
    heeds_done: bool
    """Whether its clients take `[DONE]` for the end of a stream."""
    expects_progress: bool
    """Whether a stream without progress for minutes is dead, whatever keeps its connection open."""

    def read(self, event: Event) -> Mark:
        """The meaning of one event; never raises."""

    def is_dull(self, block: bytes) -> bool:
        """Whether no event in `block` can be an end, an error or a usage: then it need not be read (fast path). Where
        JSON is expected, an event is read in any case when its data is no object or it is named `error`."""

    def ends_unmarked(self) -> bool:
        """Whether this format ends without a terminal event, so that the end of the connection is an end."""

    def missing_end(self) -> bytes:
        """What this format still owes although all evidence of its end is there; b"" when nothing."""


class StreamWatch:
    """Keeps what a stream has shown: tokens, end, in-band error, usage. Holds no more than one event.

    The marks, and the bytes that are passed on, are the same however the bytes are cut into chunks.
    """

    __slots__ = (
        "_enough", "_is_filler", "_is_oversize", "_pending", "_reader",
        "dropped_bytes", "drops_filler", "error", "garbled", "has_ended", "has_enough", "has_token", "is_cut",
        "is_error_heard", "is_foreign", "is_in_comment", "lacks_finish", "malformed", "seeks_progress", "tokens",
        "usage",
    )  # fmt: skip

    def __init__(self, reader: Reader, enough: int = 1) -> None:
        """`enough`: how many events with a token `has_enough` waits for, at least 1; each is read until then."""
        self._reader = reader
        self._enough = enough
        self._pending = bytearray()
        self._is_oversize = False
        self._is_filler = False
        self.drops_filler = False
        """Set to have comments, and events that are filler, left out of what is passed on up to the first token."""
        self.dropped_bytes = 0
        self.tokens = 0
        """Events with a token, the end among them; counted until there are enough."""
        self.has_token = False
        self.has_enough = False
        """The tokens that were waited for are there, or there will be no more of them."""
        self.has_ended = False
        self.error: bytes | None = None
        self.is_error_heard = False
        """The official SDKs raise on it, as the provider wrote it."""
        self.malformed = 0
        """Events before the first token that could not be read."""
        self.is_foreign = False
        """One of them was read, and belongs to another endpoint."""
        self.garbled = 0
        """Events after the first token that cannot be what the format promises, by a look at the two ends of their
        data: it is no `{...}`, nor `[DONE]`, nor an error's text. They are passed on all the same."""
        self.is_cut = False
        """It has said `[DONE]` and is not done. From there on nothing may be passed on, or clients would take what they
        have for the whole (vLLM says so after an error)."""
        self.lacks_finish = False
        """What is missing of its end is what some servers never send (`stream_end: lenient`)."""
        self.is_in_comment = False
        """Inside a comment too long to hold."""
        self.seeks_progress = False
        """Set to have events read until one shows progress, which resets it. Dull ones are not read otherwise."""
        self.usage = Usage()

    def feed(self, chunk: bytes) -> bytes:
        """Takes what arrived; returns what may be passed on: everything up to the last event boundary.

        The rest of a cut event is of no use to a client, and would make the error event after it unreadable.
        """
        pending = self._pending
        if not pending and chunk.endswith(_USUAL_ENDS) and not self.is_cut:
            return self._look(chunk)
        if self.is_cut:
            return b""
        # What is pending ends in no more than one line end: its last byte is all that can belong to a boundary.
        seam = bytes(pending[-1:])
        boundary = last_boundary(seam + chunk) - len(seam)
        if boundary == 0:
            # Nothing is pending. A CRLF may be cut in two: its second half belongs to the event before.
            boundary = len(chunk) - len(chunk.lstrip(b"\r\n"))
        if boundary <= 0:
            return self._hold(chunk)
        block = bytes(pending) + chunk[:boundary]
        pending.clear()
        if self._is_oversize:
            self._is_oversize = self.is_in_comment = False
            end = END_OF_EVENT.search(block)
            at = end.end() if end else len(block)
            passed = block[:at] + self._look(block[at:])
        else:
            passed = self._look(block)
        return passed if boundary == len(chunk) else passed + self._hold(chunk[boundary:])

    @property
    def may_end(self) -> bool:
        """Whether the stream may end here: its dialect owes nothing more."""
        return self.has_ended or self._reader.ends_unmarked()

    @property
    def expects_progress(self) -> bool:
        """Whether a stream of this format without progress for minutes is dead."""
        return self._reader.expects_progress

    @property
    def missing_end(self) -> bytes:
        """Events that the client still expects of a stream that has shown its end, to be sent to it in place of `held`;
        b"" when there are none, and after an error."""
        return self._reader.missing_end() if self.error is None else b""

    @property
    def held(self) -> bytes:
        """The beginning of an event that has not ended."""
        return b"" if self.is_cut else bytes(self._pending)

    @property
    def is_inside(self) -> bool:
        """The beginning of an event was passed on, and not yet its end."""
        return self._is_oversize

    def _hold(self, chunk: bytes) -> bytes:
        if self.is_cut:
            return b""
        self._pending += chunk
        comments = b""
        if not self._is_oversize:
            # Looked for where a line has ended: again in each chunk, 1 MiB of one comment costs 4 s.
            comments = self._comments() if b"\n" in chunk or b"\r" in chunk else b""
            if self.drops_filler and not self.has_token:
                self.dropped_bytes += len(comments)
                comments = b""
            if len(self._pending) <= MAX_EVENT_BYTES + CUT_END_BYTES or not self._read(bytes(self._pending)):
                return comments
            self._is_oversize = True
            self.is_in_comment = self._pending.startswith(b":")
        self.seeks_progress = self.seeks_progress and self.is_in_comment
        # The last bytes may be the first half of a boundary.
        passed = comments + self._pending[:-CUT_END_BYTES]
        del self._pending[:-CUT_END_BYTES]
        return passed

    def _comments(self) -> bytes:
        """Whole lines of comment in front of an event keep a connection awake now, not when the event has come."""
        found = COMMENTS.match(self._pending)
        if found is None:
            return b""
        passed = bytes(found[0])
        del self._pending[: len(passed)]
        return passed

    def _look(self, block: bytes) -> bytes:
        """Reads whole events; returns those that may be passed on."""
        reader = self._reader
        is_dull = self.has_enough and reader.is_dull(block) and (not reader.expects_json or is_plain(block))
        if is_dull and not self.seeks_progress:
            return block
        if self.drops_filler and not self.has_token:
            return self._sift(block)
        for start, end in spans(block):
            if not self._read(block[start:end]):
                return block[:start]
            if is_dull and not self.seeks_progress:
                break
        return block

    def _sift(self, block: bytes) -> bytes:
        """As `_look`, without filler as long as there is no token."""
        kept = bytearray()
        for start, end in spans(block):
            if self.has_token:
                self.dropped_bytes += start - len(kept)
                return bytes(kept) + self._look(block[start:])
            self._is_filler = True  # unless it is read, and more than that
            if not self._read(block[start:end]):
                break
            if not self._is_filler:
                kept += block[start:end] + b"\n\n"
        self.dropped_bytes += len(block) - len(kept)
        return bytes(kept)

    def _read(self, raw: bytes) -> bool:
        """Notes what an event shows; says whether it may be passed on."""
        is_whole = len(raw) <= MAX_EVENT_BYTES
        event = _event(raw if is_whole else raw[:_HEAD_BYTES], is_whole=is_whole)
        if event.data or event.name:
            if self.has_token and self._reader.expects_json:
                self.garbled += is_garbled(event.name, event.data, is_whole=is_whole)
            self._note(self._reader.read(event))
            if self._reader.heeds_done and event.data.startswith(b"[DONE]"):
                self.is_cut = not self.has_ended or self.error is not None
        return not self.is_cut

    def _note(self, mark: Mark) -> None:
        # Behind the first token not every event is read: what is counted there would depend on how bytes arrive.
        self.seeks_progress = self.seeks_progress and not mark.is_progress
        self._is_filler = mark.is_filler
        self.malformed += mark.is_malformed and not self.has_token
        self.is_foreign = self.is_foreign or mark.is_foreign
        self.tokens += (mark.is_token or mark.is_end) and not self.has_ended
        self.has_token = self.tokens > 0
        self.has_ended = self.has_ended or mark.is_end
        self.has_enough = self.has_ended or self.tokens >= self._enough
        self.lacks_finish = self.lacks_finish or mark.lacks_finish
        if mark.error is not None and self.error is None:
            self.error = mark.error
            self.is_error_heard = mark.is_heard
        if (new := mark.usage) is not None:
            old = self.usage
            pairs = ((new.input, old.input), (new.output, old.output), (new.cached, old.cached))
            self.usage = Usage(*(before if now is None else now for now, before in pairs))


def events_in(block: bytes) -> Iterator[Event]:
    """Each event of `block` that ends in it and says anything."""
    for start, end in spans(block):
        event = _event(block[start:end])
        if event.data or event.name:
            yield event


def split_before(block: bytes, data: bytes) -> tuple[bytes, bytes]:
    """What of `block` comes before the first event with this data, and the rest; b"" where there is no such event."""
    for start, end in spans(block):
        if _event(block[start:end]).data == data:
            return block[:start], block[start:]
    return block, b""


def _event(raw: bytes, *, is_whole: bool = True) -> Event:
    name = ""
    data: list[bytes] = []
    # More than the one at the beginning of a stream come of streams that were put together.
    for line in _LINE.split(raw.lstrip(b"\r\n").removeprefix(_BOM)):
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
