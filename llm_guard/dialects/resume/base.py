"""Shared base of all formats' transcripts and splices: reading and writing events, and the cost of each stream.

The meaning of events is in `dialects.resume.chat_state`, `dialects.resume.messages` and
`dialects.resume.responses_state`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Generic, TypeVar

from llm_guard.dialects.resume.text_join import TextJoin
from llm_guard.dialects.resume.transcript import MAX_TEXT, Splice, Transcript
from llm_guard.dialects.sse import SseEvent, Usage, events_in, object_in

_PLACES = 10_000
"""Bound for indices, more than any response has of choices, blocks, items or parts: code counts up to an index."""
Body = dict[str, Any]
"""The data of an event."""


@dataclass(slots=True)
class StreamTally:
    """Cost of one stream, and how much of it reached the client."""

    given_back: int = 0
    """Pieces of the response so far that this stream's request contained."""
    usage: Body = field(default_factory=dict)
    """The usage as the provider wrote it."""
    is_final: bool = False
    """True if the provider has counted the complete output."""
    pieces: int = 0
    characters: int = 0
    told: int = 0
    """Number of characters that were passed on."""

    def count(self, came: str, told: str) -> None:
        self.pieces += bool(came)
        self.characters += len(came)
        self.told += len(told)

    @property
    def wasted_tokens(self) -> int:
        """Wasted tokens: one per piece, or the part of a piece that was not passed on."""
        lost = max(0, self.characters - self.told)
        return round(self.pieces * lost / self.characters) if self.characters else 0

    def counted(self, prompt: int | None) -> Body:
        """The usage, estimated where the provider had not reported it; `prompt`: tokens of the client's own prompt."""
        if not self.pieces and not self.usage:
            return {}  # the stream produced nothing to sum
        usage = dict(self.usage)
        if not _is_number(usage.get("input_tokens")) and prompt is not None:
            usage["input_tokens"] = prompt + self.given_back
        if not self.is_final:
            usage["output_tokens"] = max(self.pieces, count_of(usage.get("output_tokens")))
        return usage


class TalliedTranscript(Transcript):
    """Keeps a tally for each stream, the first included."""

    def __init__(self) -> None:
        super().__init__()
        self.tallies = [StreamTally()]
        self._kept = 0

    @abstractmethod
    def note(self, body: Body) -> None:
        """Records one event that the client got, rewritten for the client."""

    @abstractmethod
    def said(self, body: Body) -> str:
        """The text of any kind (answer, reasoning, arguments) that this event adds."""

    @abstractmethod
    def count(self, tally: StreamTally, body: Body) -> None:
        """Takes the provider's own count from an event of its stream."""

    @property
    def usage(self) -> Usage:
        self._fold()
        total = self.total()
        counts = (total.get(key) for key in ("input_tokens", "output_tokens"))
        return Usage(*(count if _is_number(count) else None for count in counts))

    @property
    def wasted_tokens(self) -> int:
        self._fold()
        return sum(tally.wasted_tokens for tally in self.tallies)

    def total(self) -> Body:
        """The usage of all streams together. A stream that died before it reported its prompt had the same one as the
        others."""
        named = [tally for tally in self.tallies if _is_number(tally.usage.get("input_tokens"))]
        prompt = max(0, named[-1].usage["input_tokens"] - named[-1].given_back) if named else None
        total: Body = {}
        for tally in self.tallies:
            total = _added(total, tally.counted(prompt))
        if "total_tokens" in total:
            total["total_tokens"] = count_of(total.get("input_tokens")) + count_of(total.get("output_tokens"))
        return total

    @property
    def _can_be_kept(self) -> bool:
        return not self.has_ended and not self.is_strange and self._kept <= MAX_TEXT

    def _take(self, event: SseEvent) -> None:
        body = _body_of(event)
        if body is None:
            return
        text = self.said(body)
        self.tallies[0].count(text, text)
        self.count(self.tallies[0], body)
        self.note(body)

    def _keep(self, text: str, pieces: list[str]) -> None:
        """Adds a text to those that were sent, unless the response has become too long to be resumed."""
        self._kept += len(text)
        if text and self._kept <= MAX_TEXT:
            pieces.append(text)


_T = TypeVar("_T", bound=TalliedTranscript)


class TalliedSplice(Splice, Generic[_T]):
    """Reads the new stream's events one by one; marks and records those that it passes on."""

    def __init__(self, told: _T, marker: Body, given_back: int) -> None:
        self._told = told
        self._marker: Body | None = marker
        self._tally = StreamTally(given_back)
        self._is_over = False
        told.tallies.append(self._tally)

    def feed(self, block: bytes) -> bytes:
        return b"".join(_written(told) for event in events_in(block) for told in self._take(_body_of(event)))

    @abstractmethod
    def _join(self, body: Body) -> Iterator[Body]:
        """Yields the client's events for this one. Each is recorded before the next is generated."""

    @property
    @abstractmethod
    def _is_settled(self) -> bool:
        """True if everything from now on is new."""

    def _take(self, body: Body | None) -> Iterator[Body]:
        if body is None or self.has_diverged or self._is_over:
            return
        text = ""
        self._told.count(self._tally, body)
        for event in takewhile(lambda _: not self.has_diverged, self._join(body)):
            if self._marker is not None:
                event["llm_guard"], self._marker = self._marker, None
            text += self._told.said(event)
            self._told.note(event)
            self.is_joined = True
            yield event
        self._tally.count(self._told.said(body), text)
        self.is_joined = self.is_joined or (self._is_settled and not self.has_diverged)

    def _gone_on(self, seam: TextJoin, text: str | None) -> str:
        """The new part of a text that continues; None ends the text."""
        new = seam.end() if text is None else seam.feed(text)
        self.has_diverged = seam.has_diverged
        return new


def mapping(value: object) -> Body:
    """The value if it is an object, else {}."""
    return value if isinstance(value, dict) else {}


def text_in(body: Body, key: str) -> str:
    value = body.get(key)
    return value if isinstance(value, str) else ""


def index_in(body: Body, key: str) -> int:
    """An index into a list; -1 if there is none."""
    value: Any = body.get(key)
    return int(value) if _is_number(value) and value < _PLACES else -1


def count_of(value: Any) -> int:
    """A number of tokens; 0 if it is none."""
    return int(value) if _is_number(value) else 0


def _body_of(event: SseEvent) -> Body | None:
    """The event's data; None if it is not an object or has no type."""
    body = object_in(event)
    if body is None:
        return None
    kind = body.setdefault("type", event.name)
    return body if isinstance(kind, str) and kind and kind.isprintable() else None


def _written(body: Body) -> bytes:
    # Escaped to ASCII: a provider may have cut a surrogate pair between two events, and half of one cannot be encoded.
    data = json.dumps(body, separators=(",", ":"))
    return f"event: {body['type']}\ndata: {data}\n\n".encode("ascii", "backslashreplace")


def _added(one: Body, other: Body) -> Body:
    """Adds two usages as providers write them: sums numbers, and takes the later of any other values."""
    total = dict(one)
    for key, value in other.items():
        before = total.get(key)
        if _is_number(before) and _is_number(value):
            total[key] = before + value
        elif isinstance(before, dict) and isinstance(value, dict):
            total[key] = _added(before, value)
        elif value is not None or key not in total:
            total[key] = value
    return total


def _is_number(value: Any) -> bool:
    """True for a number that providers could mean: one of thousands of digits could be read but not written."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
