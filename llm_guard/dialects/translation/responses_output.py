"""The Response object that a translated answer becomes: its fields, and the items of its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from llm_guard.dialects.translation.canonical import (
    CUSTOM_INPUT,
    InvalidCallError,
    JsonObject,
    StopCause,
    TokenCounts,
    ToolOrigin,
)
from llm_guard.dialects.translation.messages_response_writer import is_whole_call
from llm_guard.dialects.translation.wire_json import object_of

_DEFAULTS: JsonObject = {
    "background": False, "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
    "previous_response_id": None, "reasoning": {"effort": None, "summary": None}, "service_tier": "default",
    "store": False, "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
    "top_p": 1.0, "truncation": "disabled",
}  # fmt: skip
"""Fields of a response that its request leaves to the provider."""
_REASONS: dict[StopCause, str] = {
    "length": "max_output_tokens", "context": "max_output_tokens", "refusal": "content_filter",
}  # fmt: skip
"""Why a response is incomplete."""
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
"""OpenAI refuses the id of an item that begins otherwise."""
ItemKind = Literal["message", "reasoning", "function_call", "custom_tool_call"]
PartKind = Literal["output_text", "refusal", "summary_text"]


def responses_usage(counts: TokenCounts) -> JsonObject:
    """Returns the usage of a response. Its input includes cached tokens."""
    given, output = counts.prompt or 0, counts.output or 0
    cache = {"cached_tokens": counts.cached or 0, "cache_write_tokens": counts.created or 0}
    usage: JsonObject = {"input_tokens": given, "input_tokens_details": cache, "output_tokens": output}
    return {
        **usage,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning or 0},
        "total_tokens": given + output,
    }


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """What a response repeats of its request."""

    fields: JsonObject
    origins: Mapping[str, ToolOrigin]
    seed: str
    """Differs between the requests of a conversation, whose items must not have the same id: some servers send the same
    ids in each response."""

    def begun(self, response_id: str, model: str, created: int) -> JsonObject:
        """Returns the response at its beginning. `created`: seconds since the epoch."""
        own = blake2b(f"{self.seed}:{response_id}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        head = {"id": f"resp_{own}", "object": "response", "created_at": created, "status": "in_progress"}
        given = {name: value for name, value in self.fields.items() if value is not None}
        ends: JsonObject = {"error": None, "incomplete_details": None, "output": [], "usage": None}
        return {**head, **ends, **_DEFAULTS, **given, "model": model, "store": False}


def ended(response: JsonObject, output: list[JsonObject], stop: StopCause, counts: TokenCounts) -> JsonObject:
    """Returns the response at its end."""
    reason = _REASONS.get(stop)
    details = {"reason": reason} if reason is not None else None
    status = "completed" if reason is None else "incomplete"
    end = {"status": status, "incomplete_details": details, "output": output, "usage": responses_usage(counts)}
    return {**response, **end}


@dataclass(slots=True, eq=False)
class OutputPart:
    """A text of a message, or of the summary of a reasoning."""

    kind: PartKind
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def whole(self) -> JsonObject:
        return part_of(self.kind, self.text)


def part_of(kind: PartKind, text: str) -> JsonObject:
    """Returns a content part."""
    if kind == "output_text":
        return {"type": kind, "text": text, "annotations": [], "logprobs": []}
    return {"type": kind, "refusal" if kind == "refusal" else "text": text}


@dataclass(slots=True, eq=False)
class OutputItem:
    """One item of the output."""

    kind: ItemKind
    index: int
    id: str
    call_id: str = ""
    origin: ToolOrigin | None = None
    """The tool of a call."""
    parts: list[OutputPart] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    """Arguments of a call."""
    done: JsonObject | None = None
    """The item, once it is complete."""

    @property
    def is_call(self) -> bool:
        return self.kind in ("function_call", "custom_tool_call")

    @property
    def name(self) -> str:
        """Returns the tool's name in the client's request."""
        return self.origin.name if self.origin is not None else ""

    @property
    def arguments(self) -> str:
        """Returns the arguments of a call, which are an object even if there are none."""
        text = "".join(self.pieces)
        return text if text.strip() else "{}"

    def begun(self) -> JsonObject:
        """Returns the item at its beginning."""
        return self._item("in_progress", [], "")

    def whole(self, status: str) -> JsonObject:
        """Returns the item at its end."""
        text = self.input() if self.kind == "custom_tool_call" else self.arguments if self.is_call else ""
        return self._item(status, [part.whole() for part in self.parts], text)

    def input(self) -> str:
        """Returns the text of a call of a custom tool. A call that is cut has none."""
        found = (object_of(self.arguments) or {}).get(CUSTOM_INPUT)
        return found if isinstance(found, str) else ""

    def is_complete(self, stop: StopCause) -> bool:
        """Returns whether a call is complete; False for one that an early end has cut. Raises InvalidCallError for
        arguments of another form although the response ended well."""
        arguments = "".join(self.pieces)
        if not is_whole_call(arguments, stop):
            return False
        if self.kind != "custom_tool_call" or isinstance((object_of(self.arguments) or {}).get(CUSTOM_INPUT), str):
            return True
        if stop in _REASONS:
            return False
        raise InvalidCallError("a call of a custom tool has no input")

    def _item(self, status: str, parts: list[JsonObject], text: str) -> JsonObject:
        head: JsonObject = {"id": self.id, "type": self.kind}
        if self.kind == "message":
            return {**head, "status": status, "role": "assistant", "content": parts}
        if self.kind == "reasoning":
            return {**head, "summary": parts, "encrypted_content": None}
        if self.kind == "function_call":
            call = {**head, "status": status, "call_id": self.call_id, "name": self.name, "arguments": text}
        else:
            call = {**head, "call_id": self.call_id, "name": self.name, "input": text}
            if status == "incomplete":  # requests must not have it, and the history of a client repeats the item
                call["status"] = status
        namespace = self.origin.namespace if self.origin is not None else None
        return {**call, "namespace": namespace} if namespace else call


def item_id(kind: ItemKind, response_id: str, index: int) -> str:
    """Returns the id of an item."""
    return f"{_PREFIXES[kind]}_{response_id.removeprefix('resp_')}_{index}"
