"""Server-sent events: finds the events in a byte stream, parses their JSON, and observes what a stream has shown so
far.

Bytes are never re-framed. Events are delimited as in WHATWG HTML, section 9.2.6; their meaning comes from a reader, one
for each wire format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from llm_guard.dialects.event_inspection import is_garbled, is_plain
from llm_guard.dialects.sse_framing import COMMENTS, CUT_END_BYTES, END_OF_EVENT, MAX_EVENT_BYTES, last_boundary, spans

_HEAD_BYTES = 4096
_BOM = b"\xef\xbb\xbf"
_USUAL_ENDS = (b"\n\n", b"\r\n\r\n")
_LINE = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event: the value of its `event` field ("" without one) and its `data` lines joined."""

    name: str
    data: bytes
    is_whole: bool = True
    """False: longer than MAX_EVENT_BYTES, and `data` holds only its first bytes."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of the provider; None: not reported."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None  # read from the provider's cache; part of `input` with OpenAI, not with Anthropic
    beside: int | None = (
        None  # tokens of the prompt that `input` leaves out: read from and written to Anthropic's cache
    )

    @property
    def prompt(self) -> int:
        """All tokens of the prompt, cached ones included, with any provider; 0: not reported."""
        return (self.input or 0) + (self.beside or 0)


@dataclass(frozen=True, slots=True)
class Mark:
    """What one event shows."""

    is_token: bool = False
    """True for something that the client waits for: text, a tool call, reasoning, an end; not a ping, a role or a
    header."""
    is_progress: bool = False
    """True if the model or one of its tools is at work: a token, a new block, a search; not a ping or an empty delta.
    """
    is_filler: bool = False
    """True if a client misses nothing without it: a ping, an empty delta. False in doubt."""
    is_end: bool = False
    """True if the dialect requires nothing after it."""
    error: bytes | None = None
    """An in-band error, as the provider wrote it."""
    is_heard: bool = False
    """True if the official SDKs raise on this error."""
    usage: Usage | None = None
    is_malformed: bool = False
    is_foreign: bool = False
    """True if it has the format of another endpoint."""
    lacks_finish: bool = False
    """True if a stream that ends here lacks nothing but a reason for its end."""


NOTHING = Mark()
FILLER = Mark(is_filler=True)
PROGRESS = Mark(is_progress=True)
TOKEN = Mark(is_token=True, is_progress=True)
END = Mark(is_token=True, is_progress=True, is_end=True)
MALFORMED = Mark(is_malformed=True)
FOREIGN = Mark(is_malformed=True, is_foreign=True)


class StreamReader(Protocol):
    """Interprets the events of one stream in a wire format; may keep state."""

    expects_json: bool
    """True if the data of every event should be a JSON object."""
    heeds_done: bool
    """True if clients take `[DONE]` for the end of a stream."""
    expects_progress: bool
    """True if a stream without progress for minutes is dead, even if its connection stays open."""

    def read(self, event: SseEvent) -> Mark:
        """Interprets one event; never raises."""

    def is_dull(self, block: bytes) -> bool:
        """True if no event in `block` can be an end, an error or a usage, so that it need not be read (fast path).
        Where JSON is expected, an event is read in any case if its data is not an object or it is named `error`."""

    def ends_unmarked(self) -> bool:
        """True if this format has no terminal event, so that the end of the connection is an end."""

    def missing_end(self) -> bytes:
        """Bytes that this format still requires although the stream has shown its end; b"" if none."""


class StreamObserver:
    """Records what a stream has shown: tokens, end, in-band error, usage. Buffers at most one event.

    The result, and the bytes that are passed on, do not depend on how the bytes are cut into chunks."""

    __slots__ = (
        "_enough", "_is_filler", "_is_oversize", "_pending", "_reader",
        "dropped_bytes", "drops_filler", "error", "garbled", "has_ended", "has_enough", "has_token", "is_cut",
        "is_error_heard", "is_foreign", "is_in_comment", "lacks_finish", "malformed", "seeks_progress", "tokens",
        "usage",
    )  # fmt: skip

    def __init__(self, reader: StreamReader, enough: int = 1) -> None:
        """`enough`: number of events with a token after which `has_enough` is True, at least 1; every event is read
        until then."""
        self._reader = reader
        self._enough = enough
        self._pending = bytearray()
        self._is_oversize = False
        self._is_filler = False
        self.drops_filler = False
        """Set to drop comments and filler events from what is passed on, up to the first token."""
        self.dropped_bytes = 0
        self.tokens = 0
        """Events with a token, the end included; counted until there are enough."""
        self.has_token = False
        self.has_enough = False
        """True if there are enough tokens, or the stream has ended."""
        self.has_ended = False
        self.error: bytes | None = None
        self.is_error_heard = False
        """True if the official SDKs raise on `error` as the provider wrote it."""
        self.malformed = 0
        """Number of events before the first token that could not be read."""
        self.is_foreign = False
        """True if one of them has the format of another endpoint."""
        self.garbled = 0
        """Number of events after the first token that cannot be in the promised format, judged by both ends of their
        data: neither `{...}` nor `[DONE]` nor an error's text. They are passed on all the same."""
        self.is_cut = False
        """True if the stream has sent `[DONE]` too early. Nothing after it may be passed on, or clients would take the
        response for complete (vLLM sends `[DONE]` after an error)."""
        self.lacks_finish = False
        """True if the only missing part of the end is one that some servers never send (`stream_end: lenient`)."""
        self.is_in_comment = False
        """True inside a comment too long to buffer."""
        self.seeks_progress = False
        """Set to have events read until one shows progress, which resets it. Dull events are not read otherwise."""
        self.usage = Usage()

    def feed(self, chunk: bytes) -> bytes:
        """Takes the received bytes; returns what may be passed on: everything up to the last event boundary.

        A partial event is of no use to a client, and would make an error event after it unreadable."""
        pending = self._pending
        if not pending and chunk.endswith(_USUAL_ENDS) and not self.is_cut:
            return self._look(chunk)
        if self.is_cut:
            return b""
        # Pending bytes end in at most one line end, so only their last byte can belong to a boundary.
        seam = bytes(pending[-1:])
        boundary = last_boundary(seam + chunk) - len(seam)
        if boundary == 0:
            # Nothing is pending. If a CRLF was cut in two, its second half belongs to the event before.
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
        """True if the stream may end here: its dialect requires nothing more."""
        return self.has_ended or self._reader.ends_unmarked()

    @property
    def expects_progress(self) -> bool:
        """True if a stream of this format without progress for minutes is dead."""
        return self._reader.expects_progress

    @property
    def missing_end(self) -> bytes:
        """Events that the client still expects of a stream that has shown its end, to be sent in place of `held`; b""
        if none, and after an error."""
        return self._reader.missing_end() if self.error is None else b""

    @property
    def held(self) -> bytes:
        """The beginning of an event that has not ended."""
        return b"" if self.is_cut else bytes(self._pending)

    @property
    def is_inside(self) -> bool:
        """True if the beginning of an event was passed on, and not yet its end."""
        return self._is_oversize

    def _hold(self, chunk: bytes) -> bytes:
        if self.is_cut:
            return b""
        self._pending += chunk
        comments = b""
        if not self._is_oversize:
            # Searched only at a line end: searching again in each chunk, 1 MiB of one comment costs 4 s.
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
        """Takes complete comment lines in front of an event, so that they keep the connection alive before the event is
        complete."""
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
        """Like `_look`, but without filler until the first token."""
        kept = bytearray()
        for start, end in spans(block):
            if self.has_token:
                self.dropped_bytes += start - len(kept)
                return bytes(kept) + self._look(block[start:])
            self._is_filler = True  # `_read` may reset it
            if not self._read(block[start:end]):
                break
            if not self._is_filler:
                kept += block[start:end] + b"\n\n"
        self.dropped_bytes += len(block) - len(kept)
        return bytes(kept)

    def _read(self, raw: bytes) -> bool:
        """Notes what an event shows; returns True if it may be passed on."""
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
        # After the first token not every event is read: a count would depend on how the bytes arrive.
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
            pairs = (
                (new.input, old.input),
                (new.output, old.output),
                (new.cached, old.cached),
                (new.beside, old.beside),
            )
            self.usage = Usage(*(before if now is None else now for now, before in pairs))


def events_in(block: bytes) -> Iterator[SseEvent]:
    """Yields the complete events of `block` that have a name or data."""
    for start, end in spans(block):
        event = _event(block[start:end])
        if event.data or event.name:
            yield event


def split_before(block: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Splits `block` before the first event with this data; the rest is b"" if there is no such event."""
    for start, end in spans(block):
        if _event(block[start:end]).data == data:
            return block[:start], block[start:]
    return block, b""


def _event(raw: bytes, *, is_whole: bool = True) -> SseEvent:
    name = ""
    data: list[bytes] = []
    # Strips a byte order mark from every event: concatenated streams have more than one.
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
    return SseEvent(name, b"\n".join(data), is_whole)


_MOST_DIGITS = 4000
"""Python refuses to convert integers of more than 4,300 digits, because that takes quadratic time."""


def object_in(event: SseEvent) -> dict[str, Any] | None:
    """The event's data as an object; {} for an event without data; None if it is not a JSON object."""
    if not event.data:
        return {}
    try:
        value = json.loads(event.data)
    except RecursionError:
        return None
    except ValueError:
        value = _with_long_numbers(event.data)
    return value if isinstance(value, dict) else None


def dict_of(value: object) -> dict[str, Any]:
    """The value if it is an object, else {}."""
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> list[Any]:
    """The value if it is a list, else []."""
    return value if isinstance(value, list) else []


def count_of(value: object) -> int | None:
    """The value if it is a token count, else None, for example for a number of thousands of digits."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _with_long_numbers(data: bytes) -> object:
    """Parses JSON with 0 in place of integers that are too long; None if it is not JSON."""
    try:
        return json.loads(data, parse_int=_bounded)
    except (ValueError, RecursionError):
        return None


def _bounded(digits: str) -> int:
    return int(digits) if len(digits) < _MOST_DIGITS else 0
