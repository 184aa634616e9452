"""Collects a response that is not streamed, and writes it as the body of either dialect."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from llm_guard.dialects.translation.canonical import JsonObject, StopCause, TokenCounts
from llm_guard.dialects.translation.chat_response_writer import FINISH_REASONS, chat_usage
from llm_guard.dialects.translation.messages_response_writer import STOP_REASONS, is_whole_call, messages_usage
from llm_guard.dialects.translation.wire_json import object_of

_Kind = Literal["text", "refusal", "thinking", "tool_use"]


class _Part(Struct):
    kind: _Kind
    pieces: list[str] = []
    id: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class WholeResponse:
    """Implements `canonical.ResponseSink`."""

    def __init__(self, *, shows_reasoning: bool) -> None:
        self._shows_reasoning = shows_reasoning
        self._id = self._model = ""
        self._created = 0
        self._parts: list[_Part] = []
        self._calls: dict[object, _Part] = {}
        self._is_new_block = False
        self._stop: StopCause = "end"
        self._stop_sequence: str | None = None
        self._counts = TokenCounts()

    def begin(self, response_id: str, model: str, created: int) -> None:
        self._id, self._model, self._created = response_id, model, created

    def text(self, text: str) -> None:
        self._say("text", text)

    def reasoning(self, text: str) -> None:
        if self._shows_reasoning:
            self._say("thinking", text)

    def call(self, key: object, call_id: str, name: str) -> None:
        part = self._calls[key] = _Part("tool_use", [], call_id, name)
        self._parts.append(part)

    def arguments(self, key: object, text: str) -> None:
        self._calls[key].pieces.append(text)

    def end_block(self) -> None:
        self._is_new_block = True

    def refusal(self, text: str) -> None:
        self._say("refusal", text)

    def keep_alive(self) -> None:
        pass  # the body comes at once

    def end(self, stop: StopCause, stop_sequence: str | None, counts: TokenCounts) -> None:
        self._stop, self._stop_sequence, self._counts = stop, stop_sequence, counts

    def chat_body(self) -> JsonObject:
        """Returns the body of a chat completion."""
        texts = self._texts()
        text, refusal = texts.get("text", ""), texts.get("refusal")
        message: JsonObject = {"role": "assistant", "content": text or None, "refusal": refusal}
        if "thinking" in texts:
            message["reasoning_content"] = texts["thinking"]
        calls = [
            {
                "id": part.id,
                "type": "function",
                "function": {"name": part.name, "arguments": part.text if part.text.strip() else "{}"},
            }
            for part in self._calls.values()
        ]
        if calls:
            message["tool_calls"] = calls
        elif not refusal:
            message["content"] = text
        reason = FINISH_REASONS[self._stop]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        head = {"id": self._id, "object": "chat.completion", "created": self._created, "model": self._model}
        return {**head, "choices": [choice], "usage": chat_usage(self._counts)}

    def messages_body(self) -> JsonObject:
        """Returns the body of a message. Raises ValueError for a tool call that it cannot express."""
        content: list[JsonObject] = []
        for part in self._parts:
            if part.kind in ("text", "refusal"):
                content.append({"type": "text", "text": part.text})
            elif part.kind == "thinking":
                content.append({"type": "thinking", "thinking": part.text, "signature": ""})
            elif is_whole_call(part.text, self._stop):
                arguments = object_of(part.text) if part.text.strip() else {}
                content.append({"type": "tool_use", "id": part.id, "name": part.name, "input": arguments})
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._model, "content": content}
        end = {"stop_reason": STOP_REASONS[self._stop], "stop_sequence": self._stop_sequence}
        return {**head, **end, "usage": messages_usage(self._counts)}

    def _texts(self) -> dict[_Kind, str]:
        """Returns the text of each kind that has any."""
        texts: dict[_Kind, str] = {}
        for part in self._parts:
            if text := part.text:
                texts[part.kind] = texts.get(part.kind, "") + text
        return texts

    def _say(self, kind: _Kind, text: str) -> None:
        last = self._parts[-1] if self._parts and not self._is_new_block else None
        if last is None or last.kind != kind:
            last = _Part(kind)
            self._parts.append(last)
        self._is_new_block = False
        last.pieces.append(text)
