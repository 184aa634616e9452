"""Writes a response as the stream of the Responses API, and collects the Response object, which is also the body of one
that is not streamed.

Calls stay open until the end, because chats may interleave them: a client gets no call as complete before the response
is.
"""

from __future__ import annotations

from llm_guard.dialects.translation.canonical import JsonObject, StopCause, TokenCounts, ToolOrigin
from llm_guard.dialects.translation.responses_output import (
    ItemKind,
    OutputItem,
    OutputPart,
    PartKind,
    ResponseFrame,
    ended,
    item_id,
    part_of,
)
from llm_guard.dialects.translation.wire_json import encode

_KEEP_ALIVE = b": keep-alive\n\n"
_MOST_KEPT = 16 << 20
"""Characters of texts and arguments that are kept of a response: its last events repeat all of them."""
_PLACES: dict[PartKind, tuple[str, str]] = {
    "output_text": ("content_part", "content_index"), "refusal": ("content_part", "content_index"),
    "summary_text": ("reasoning_summary_part", "summary_index"),
}  # fmt: skip
"""For each kind of a text: its part in the names of events, and the field with the part's index."""
_TEXTS: dict[PartKind, str] = {
    "output_text": "output_text", "refusal": "refusal", "summary_text": "reasoning_summary_text",
}  # fmt: skip


class ResponsesStreamWriter:
    """Implements `canonical.ResponseSink`."""

    def __init__(self, frame: ResponseFrame, *, shows_reasoning: bool) -> None:
        self._frame = frame
        self._shows_reasoning = shows_reasoning
        self._out = bytearray()
        self._sequence = 0
        self._items: list[OutputItem] = []
        self._calls: dict[object, OutputItem] = {}
        self._open: OutputItem | None = None
        """The message or the reasoning that can go on."""
        self._part: OutputPart | None = None
        """Its open part."""
        self._before_delta = b""
        self._kept = 0
        self.response: JsonObject = {}
        """The Response object, as of the last event that has it."""

    def take(self) -> bytes:
        """Returns the bytes written since the last call."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def begin(self, response_id: str, model: str, created: int) -> None:
        self.response = self._frame.begun(response_id, model, created)
        for kind in ("response.created", "response.in_progress"):
            self._write(kind, response=self.response)

    def text(self, text: str) -> None:
        self._say("message", "output_text", text)

    def reasoning(self, text: str) -> None:
        if self._shows_reasoning:
            self._say("reasoning", "summary_text", text)
        else:
            self.keep_alive()

    def call(self, key: object, call_id: str, name: str) -> None:
        self._close()
        origin = self._frame.origins.get(name, ToolOrigin(name))
        item = self._add("custom_tool_call" if origin.is_custom else "function_call")
        item.call_id, item.origin = call_id, origin
        self._calls[key] = item
        self._write("response.output_item.added", output_index=item.index, item=item.begun())

    def arguments(self, key: object, text: str) -> None:
        item = self._calls[key]
        if not item.pieces and not text.strip():
            return  # blanks alone stand for no arguments
        self._keep(text)
        item.pieces.append(text)
        if item.kind == "function_call":
            self._write_of(item, "function_call_arguments.delta", delta=text)

    def end_block(self) -> None:
        self._close_part()

    def refusal(self, text: str) -> None:
        self._say("message", "refusal", text)

    def keep_alive(self) -> None:
        self._out += _KEEP_ALIVE

    def end(self, stop: StopCause, stop_sequence: str | None, counts: TokenCounts) -> None:
        del stop_sequence
        complete = {item.index: item.is_complete(stop) for item in self._calls.values()}
        last = ended(self.response, [], stop, counts)
        for item in self._items:
            if item is self._open:
                self._close(last["status"])
            elif item.is_call:
                self._end_call(item, "completed" if complete[item.index] else "incomplete")
        self.response = {**last, "output": [item.done for item in self._items]}
        self._write(f"response.{last['status']}", response=self.response)

    def _say(self, item_kind: ItemKind, kind: PartKind, text: str) -> None:
        self._keep(text)
        part = self._part
        if part is None or part.kind != kind:
            part = self._begin_part(item_kind, kind)
        part.pieces.append(text)
        self._out += self._before_delta + b'%b,"sequence_number":%d}\n\n' % (encode(text), self._sequence)
        self._sequence += 1

    def _begin_part(self, item_kind: ItemKind, kind: PartKind) -> OutputPart:
        """Begins a part in the open item, or in a new one."""
        if self._open is not None and self._open.kind == item_kind:
            self._close_part()
        else:
            self._close()
            self._open = self._add(item_kind)
            self._write("response.output_item.added", output_index=self._open.index, item=self._open.begun())
        item, part = self._open, OutputPart(kind)
        item.parts.append(part)
        self._part = part
        self._write_of_part(f"{_PLACES[kind][0]}.added", part=part_of(kind, ""))
        name = f"response.{_TEXTS[kind]}.delta"
        fields = {"type": name, **self._place_of_part(), **({"logprobs": []} if kind == "output_text" else {})}
        self._before_delta = f"event: {name}\ndata: ".encode() + encode(fields)[:-1] + b',"delta":'
        return part

    def _close_part(self) -> None:
        part = self._part
        if part is None:
            return
        text: JsonObject = {"refusal" if part.kind == "refusal" else "text": part.text}
        if part.kind == "output_text":
            text["logprobs"] = []
        self._write_of_part(f"{_TEXTS[part.kind]}.done", **text)
        self._write_of_part(f"{_PLACES[part.kind][0]}.done", part=part.whole())
        self._part = None

    def _close(self, status: str = "completed") -> None:
        """Ends the open message or reasoning."""
        item = self._open
        if item is None:
            return
        self._close_part()
        self._end_item(item, status)
        self._open = None

    def _end_call(self, item: OutputItem, status: str) -> None:
        if item.kind == "custom_tool_call":
            text = item.input()
            self._write_of(item, "custom_tool_call_input.delta", delta=text)
            self._write_of(item, "custom_tool_call_input.done", input=text)
        else:
            if not item.pieces:
                self._write_of(item, "function_call_arguments.delta", delta=item.arguments)
            self._write_of(item, "function_call_arguments.done", name=item.name, arguments=item.arguments)
        self._end_item(item, status)

    def _end_item(self, item: OutputItem, status: str) -> None:
        item.done = item.whole(status)
        self._write("response.output_item.done", output_index=item.index, item=item.done)

    def _add(self, kind: ItemKind) -> OutputItem:
        index = len(self._items)
        item = OutputItem(kind, index, item_id(kind, self.response["id"], index))
        self._items.append(item)
        return item

    def _keep(self, text: str) -> None:
        self._kept += len(text)
        if self._kept > _MOST_KEPT:
            raise ValueError("the response is too long")

    def _place_of_part(self) -> JsonObject:
        item, part = self._open, self._part
        if item is None or part is None:
            return {}
        index = _PLACES[part.kind][1]
        return {"item_id": item.id, "output_index": item.index, index: len(item.parts) - 1}

    def _write_of_part(self, kind: str, **fields: object) -> None:
        self._write(f"response.{kind}", **self._place_of_part(), **fields)

    def _write_of(self, item: OutputItem, kind: str, **fields: object) -> None:
        self._write(f"response.{kind}", item_id=item.id, output_index=item.index, **fields)

    def _write(self, kind: str, **fields: object) -> None:
        event = encode({"type": kind, **fields, "sequence_number": self._sequence})
        self._sequence += 1
        self._out += f"event: {kind}\ndata: ".encode() + event + b"\n\n"
