"""Joins two Responses streams into one response, with the ids, indices and sequence numbers of the first.

Where one text continues another is found in `dialects.resume.text_join`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from llm_guard.dialects.resume.base import Body, TalliedSplice, index_in, mapping, text_in
from llm_guard.dialects.resume.responses_state import (
    ENDS,
    OPENINGS,
    Item,
    ResponsesState,
    TextPosition,
    nature_of,
    part_place,
    text_place,
)
from llm_guard.dialects.resume.text_join import TextJoin, given_back, seam
from llm_guard.dialects.resume.transcript import ResumeMode


class _ResponseSplice(TalliedSplice[ResponsesState]):
    def _join(self, body: Body) -> Iterator[Body]:
        for event in self._tell(body):
            yield self._told.numbered(event)

    @abstractmethod
    def _tell(self, body: Body) -> Iterator[Body]:
        """Yields the client's events for this one, not yet numbered."""


class ResponsesContinuation(_ResponseSplice):
    """Continues the text in the client's open message, or in a new one; drops reasoning.

    Also drops annotations of the continued text: they refer to positions in the new stream's text."""

    def __init__(self, told: ResponsesState, resume_mode: ResumeMode, marker: Body) -> None:
        super().__init__(told, marker, told.text_pieces)
        self._seam: TextJoin = seam(resume_mode if given_back(told.text) else "prefill", told.text)
        self._source: int | None = None
        """Index of the new stream's first message."""
        self._source_part: int | None = None
        """Index of its part in which the text continues."""
        self._at = next((at for at, item in told.items.items() if item.is_open), None)
        """Index of the client's message in which the text continues."""
        self._id: object = told.items[self._at].start.get("id") if self._at is not None else None
        self._part = 0
        self._late: list[Body] = []
        """Start events of that message and that part, held until there is text for them."""
        self._indices: dict[int, int] = {}
        """The client's index for each other item of the new stream."""
        self._parts: dict[int, int] = {}
        """The client's index for each other part of its first message."""

    @property
    def is_searching(self) -> bool:
        return self._seam.is_searching

    @property
    def _is_settled(self) -> bool:
        return self._seam.is_settled

    def _tell(self, body: Body) -> Iterator[Body]:
        kind, at = body["type"], index_in(body, "output_index")
        if kind in OPENINGS:
            return
        if kind in ENDS:
            yield from self._finish(_status(body.get("response")))
            self._is_over = True
            yield self._told.ended(body)
        elif kind == "response.output_item.added":
            yield from self._begin(at, body)
        elif at == self._source:
            yield from self._inside(body)
        elif at in self._indices:
            yield {**body, "output_index": self._indices[at]}
        elif at < 0 and self.is_joined:
            yield body

    def _begin(self, at: int, body: Body) -> Iterator[Body]:
        kind = text_in(mapping(body.get("item")), "type")
        if kind == "reasoning":
            return
        index = max(self._told.next_index, 0 if self._at is None else self._at + 1)
        if kind != "message" or self._source is not None:
            yield from self._join_text()
            self._indices[at] = index
            yield {**body, "output_index": index}
            return
        self._source = at
        if self._at is None:
            self._at, self._id = index, mapping(body.get("item")).get("id")
            self._late.append({**body, "output_index": index})

    def _inside(self, body: Body) -> Iterator[Body]:
        kind, part = body["type"], index_in(body, "content_index")
        if kind == "response.output_item.done":
            yield from self._finish(_status(body.get("item")))
        elif part in self._parts:
            yield {**body, **self._place(self._parts[part])}
        elif kind == "response.content_part.added":
            yield from self._begin_part(part, body)
        elif kind == "response.output_text.delta":
            if self._source_part is None:
                self._locate(part)
            yield from self._go_on(body)
        elif kind in ("response.output_text.done", "response.content_part.done"):
            yield from self._end_text()

    def _begin_part(self, part: int, body: Body) -> Iterator[Body]:
        if self._source_part is None and mapping(body.get("part")).get("type") == "output_text":
            if self._locate(part):
                self._late.append({**body, **self._place(self._part)})
            return
        yield from self._end_text()
        yield from self._begin_late()
        index = self._parts[part] = self._told.items[self._at or 0].next_part
        yield {**body, **self._place(index)}

    def _locate(self, part: int) -> bool:
        """Finds the client's part in which the text continues; returns True if it is a new one."""
        self._source_part = part
        item = self._told.items.get(-1 if self._at is None else self._at)
        known = item.open_text if item else None
        self._part = known if known is not None else item.next_part if item else 0
        return known is None

    def _go_on(self, body: Body | None) -> Iterator[Body]:
        """Passes on the new part of a delta; None ends the text."""
        new = self._gone_on(self._seam, None if body is None else text_in(body, "delta"))
        if not new:
            return
        yield from self._begin_late()
        if body is None or body.get("delta") != new:
            body = {"type": "response.output_text.delta", "logprobs": []}
        yield {**body, **self._place(self._part), "delta": new}

    def _join_text(self) -> Iterator[Body]:
        """Ends the search for the join before something else follows: no further text can join."""
        if not self._seam.is_settled:
            yield from self._go_on(None)

    def _end_text(self) -> Iterator[Body]:
        yield from self._join_text()
        if self._source_part is not None:
            yield from self._go_on(None)
        if self._source_part is not None and not self._late and self._at is not None:
            yield from self._told.items[self._at].end_text(self._at, self._part)

    def _finish(self, status: str) -> Iterator[Body]:
        """Ends the message in which the text continued."""
        yield from self._end_text()
        if self._at is not None and self._at in self._told.items and self._told.items[self._at].is_open:
            yield from self._told.items[self._at].end(self._at, status)
        self._at, self._source_part = None, None
        self._source = None if self._source is None else -2

    def _begin_late(self) -> Iterator[Body]:
        late, self._late = self._late, []
        yield from late

    def _place(self, part: int) -> Body:
        return {"item_id": self._id, "output_index": self._at, "content_index": part}


class ResponsesRestart(_ResponseSplice):
    """Compares the new response item by item with what was sent. The client keeps its ids."""

    def __init__(self, told: ResponsesState, marker: Body) -> None:
        super().__init__(told, marker, 0)
        self._seams = {
            (at, place): seam("restart", text.whole)
            for at, item in told.items.items()
            for place, text in item.texts.items()
        }
        self._known = frozenset(told.items)
        self._awaited = set(self._known)
        """Items of which the client has more than has come again."""

    @property
    def _is_settled(self) -> bool:
        return not self._awaited

    def _tell(self, body: Body) -> Iterator[Body]:
        kind, at = body["type"], index_in(body, "output_index")
        if kind in OPENINGS:
            return
        if at in self._known:
            yield from self._compare(at, self._told.items[at], body)
        elif not self._is_settled:
            self.has_diverged = at >= 0 or kind in ENDS
        else:
            self._is_over = kind in ENDS
            yield self._told.ended(body) if self._is_over else body

    def _compare(self, at: int, item: Item, body: Body) -> Iterator[Body]:
        text, part = text_place(body), part_place(body)
        own = {**body, "item_id": item.start.get("id")} if "item_id" in body else body
        if body["type"] == "response.output_item.added":
            self.has_diverged = nature_of(mapping(body.get("item"))) != nature_of(item.start)
        elif body["type"] == "response.output_item.done":
            yield from self._end_item(at, item, body)
        elif text is not None and (at, text) in self._seams:
            yield from self._compare_text(at, text, item, own)
        elif part is not None and part in item.parts:
            self.has_diverged = mapping(body.get("part")).get("type") != item.parts[part].get("type")
            if part in item.open_parts and body["type"].endswith(".done") and not self.has_diverged:
                yield own
        elif item.is_open and self._is_settled:
            yield own
        else:
            self.has_diverged = True
        if item.is_open and all(known.is_settled for known in self._seams_of(at)):
            self._awaited.discard(at)

    def _compare_text(self, at: int, place: TextPosition, item: Item, own: Body) -> Iterator[Body]:
        known, is_open = self._seams[at, place], item.texts[place].is_open
        if own["type"].endswith(".done"):
            known.end()
            self.has_diverged = known.has_diverged
            if is_open and not self.has_diverged:
                yield own
            return
        new = known.feed(text_in(own, "delta"))
        others = [*self._seams_of(at)]
        is_new = is_open and not self._awaited - {at} and all(other.is_settled for other in others)
        self.has_diverged = known.has_diverged or (bool(new) and not is_new)
        if new and not self.has_diverged:
            yield (
                own if new == own["delta"] else {**own, "delta": new, **({"logprobs": []} if "logprobs" in own else {})}
            )

    def _end_item(self, at: int, item: Item, body: Body) -> Iterator[Body]:
        for known in self._seams_of(at):
            known.end()
            self.has_diverged = self.has_diverged or known.has_diverged
        self._awaited.discard(at)
        if item.is_open and not self.has_diverged:
            yield {**body, "item": {**mapping(body.get("item")), **item.ids}}

    def _seams_of(self, at: int) -> Iterator[TextJoin]:
        return (known for (index, _), known in self._seams.items() if index == at)


def _status(whole: object) -> str:
    """The status; `incomplete` if it ended too early, for example because of `max_output_tokens`."""
    return text_in(mapping(whole), "status") or "completed"
