"""Records what a Responses stream has sent to the client: items, their content parts, and the texts in those.

Knows what has started and what is finished, and creates the events that finish it. The joining of two streams is in
`dialects.resume.responses_splice`, the request for the rest in `dialects.resume.responses`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from llm_guard.dialects.resume.base import Body, StreamTally, TalliedTranscript, count_of, index_in, mapping, text_in

OPENINGS = frozenset({"response.created", "response.queued", "response.in_progress"})
ENDS = frozenset({"response.completed", "response.incomplete"})
_OF_THE_END = frozenset({"status", "error", "incomplete_details", "usage", "output", "completed_at"})
"""Fields of a response that its last stream sets; the others are those of the first stream."""

TextPosition = tuple[str, int]
"""A text within its item: its kind, as in `response.KIND.delta`, and the content part that contains it."""

_TEXTS = {
    "output_text": ("content_index", "text"),
    "refusal": ("content_index", "refusal"),
    "reasoning_text": ("content_index", "text"),
    "reasoning_summary_text": ("summary_index", "text"),
    "function_call_arguments": ("", "arguments"),
    "custom_tool_call_input": ("", "input"),
}
"""For each kind: the field with the index of the part, and the field of the `done` event with the whole text."""
_PARTS = {"content_part": "content_index", "reasoning_summary_part": "summary_index"}


class ResponsesState(TalliedTranscript):
    """Records one response, item by item."""

    def __init__(self) -> None:
        super().__init__()
        self.response: Body = {}
        self.items: dict[int, Item] = {}
        self.sequence: int | None = None
        """Number of the last event; None if the server does not number them."""

    @property
    def text(self) -> str:
        """The text visible to the client."""
        return "".join(text.whole for text in self._texts)

    @property
    def text_pieces(self) -> int:
        return sum(len(text.pieces) for text in self._texts)

    @property
    def next_index(self) -> int:
        return max(self.items, default=-1) + 1

    def said(self, body: Body) -> str:
        place = text_place(body)
        return text_in(body, "delta") if place is not None else ""

    def count(self, tally: StreamTally, body: Body) -> None:
        if body["type"] in ENDS:
            tally.usage = mapping(mapping(body.get("response")).get("usage"))
            tally.is_final = "output_tokens" in tally.usage

    def note(self, body: Body) -> None:
        kind, at = body["type"], index_in(body, "output_index")
        if "sequence_number" in body:
            self.sequence = count_of(body["sequence_number"])
        if kind in OPENINGS:
            self.response = mapping(body.get("response"))
        elif kind in ENDS:
            self.has_ended = True
        elif kind == "response.output_item.added":
            self.is_strange = self.is_strange or at in self.items  # started twice: unclear which text it is
            self.items[at] = Item(mapping(body.get("item")))
        elif at in self.items:
            self._note_inside(self.items[at], body)
        elif kind.endswith(".delta"):
            self.is_strange = True

    def numbered(self, body: Body) -> Body:
        """The event with the next sequence number of the client's stream."""
        bare = {key: value for key, value in body.items() if key != "sequence_number"}
        return bare if self.sequence is None else {**bare, "sequence_number": self.sequence + 1}

    def ended(self, body: Body) -> Body:
        """The last event, with everything that was sent to the client."""
        last = mapping(body.get("response"))
        known = {key: value for key, value in self.response.items() if key not in _OF_THE_END}
        usage = {**mapping(last.get("usage")), **self.total()} if last.get("usage") else last.get("usage")
        output = [item.whole() for _, item in sorted(self.items.items())]
        return {**body, "response": {**last, **known, "output": output, "usage": usage}}

    def _note_inside(self, item: Item, body: Body) -> None:
        text, part = text_place(body), part_place(body)
        if text is not None:
            self._note_text(item.texts.setdefault(text, OutputText()), text, body)
        elif part is not None:
            item.parts[part] = mapping(body.get("part"))
            change = item.open_parts.add if body["type"].endswith(".added") else item.open_parts.discard
            change(part)
        elif body["type"] == "response.output_item.done":
            item.done = mapping(body.get("item"))
        elif body["type"].endswith((".delta", ".annotation.added")):
            self.is_strange = True

    def _note_text(self, text: OutputText, place: TextPosition, body: Body) -> None:
        if body["type"].endswith(".delta"):
            self._keep(text_in(body, "delta"), text.pieces)
            return
        text.is_open = False
        if not text.pieces:
            self._keep(whole_text(body, place), text.pieces)

    @property
    def _texts(self) -> list[OutputText]:
        items = (item for _, item in sorted(self.items.items()) if item.kind == "message")
        return [text for item in items for (kind, _), text in sorted(item.texts.items()) if kind == "output_text"]


@dataclass(slots=True)
class OutputText:
    pieces: list[str] = field(default_factory=list)
    is_open: bool = True

    @property
    def whole(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class Item:
    """One item of the output."""

    start: Body
    texts: dict[TextPosition, OutputText] = field(default_factory=dict)
    parts: dict[TextPosition, Body] = field(default_factory=dict)
    """Latest state of each part: as it started, or as it ended."""
    open_parts: set[TextPosition] = field(default_factory=set)
    done: Body | None = None

    @property
    def kind(self) -> str:
        return text_in(self.start, "type")

    @property
    def is_open(self) -> bool:
        return self.done is None

    @property
    def ids(self) -> Body:
        return {name: self.start[name] for name in ("id", "call_id") if name in self.start}

    @property
    def next_part(self) -> int:
        return max(self._begun, default=-1) + 1

    @property
    def open_text(self) -> int | None:
        """Index of the text part that is still open for the client."""
        begun = (at for kind, at in self.open_parts if kind == "content_part")
        started = (at for (kind, at), text in self.texts.items() if kind == "output_text" and text.is_open)
        return next(begun, next(started, None))

    @property
    def _begun(self) -> list[int]:
        """Indices of the content parts that have come; an index may be high without any before it."""
        places = (*self.parts, *self.texts)
        return sorted({at for kind, at in places if kind in ("content_part", "output_text") and at >= 0})

    def whole(self) -> Body:
        """The finished item, with every text that was sent."""
        if self.done is not None:
            return self.done
        content = []
        for at in self._begun:
            part = self.parts.get(("content_part", at), _text_part(""))
            text = self.texts.get(("output_text", at))
            content.append(part if text is None else {**part, "text": text.whole})
        return {**self.start, "status": "completed", "content": content} if self.kind == "message" else self.start

    def end_text(self, output_index: int, at: int) -> Iterator[Body]:
        """The events that finish the text of one part."""
        place = {"item_id": self.start.get("id"), "output_index": output_index, "content_index": at}
        text = self.texts.get(("output_text", at))
        whole = text.whole if text else ""
        if text is not None and text.is_open:
            yield {"type": "response.output_text.done", **place, "text": whole, "logprobs": []}
        if ("content_part", at) in self.open_parts:
            part = {**self.parts["content_part", at], "text": whole}
            yield {"type": "response.content_part.done", **place, "part": part}

    def end(self, output_index: int, status: str) -> Iterator[Body]:
        """The events that finish a message."""
        for at in self._begun:
            yield from self.end_text(output_index, at)
        item = {**self.whole(), "status": status}
        yield {"type": "response.output_item.done", "output_index": output_index, "item": item}


def nature_of(start: Body) -> tuple[object, ...]:
    """Properties that an item of a second run must share with that of the first."""
    return start.get("type"), start.get("role"), start.get("name")


def text_place(body: Body) -> TextPosition | None:
    """The text that this `delta` or `done` event is about; None for other events."""
    kind, _, stage = body["type"].removeprefix("response.").rpartition(".")
    if kind not in _TEXTS or stage not in ("delta", "done"):
        return None
    counted_by = _TEXTS[kind][0]
    return kind, index_in(body, counted_by) if counted_by else 0


def part_place(body: Body) -> TextPosition | None:
    """The part of a content or of a summary that this `added` or `done` event is about; None for other events."""
    kind, _, stage = body["type"].removeprefix("response.").rpartition(".")
    return (kind, index_in(body, _PARTS[kind])) if kind in _PARTS and stage in ("added", "done") else None


def whole_text(body: Body, place: TextPosition) -> str:
    """The whole text in a `done` event."""
    return text_in(body, _TEXTS[place[0]][1])


def _text_part(text: str) -> Body:
    return {"type": "output_text", "text": text, "annotations": []}
