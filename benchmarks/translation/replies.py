"""What a client makes of a response, in one form for whole responses and streams, of the gateway and of libraries.

It reads as strictly as the official SDKs do: a stream that they could not put together is `wrong`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]


class WrongStreamError(ValueError):
    """A stream that no SDK can put together."""


def reply_of(client: str, body: Json | None, events: Iterable[Json] | None) -> Json:
    """Returns the reply for a whole response or for the events of a stream.

    Its members, where they apply: text, blocks, calls, indexes, stop, usage, ids, input_tokens, error, ended, is_broken
    and wrong."""
    whole = {"ended": True}
    try:
        reply = _WHOLES[client](body or {}) | whole if events is None else _FOLDS[client](list(events))
    except WrongStreamError as error:
        return {"wrong": str(error)}
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        return {"wrong": f"{type(error).__name__}: {error}"}
    return {**reply, "is_broken": not reply["ended"] or "error" in reply}


def _object(text: str | None) -> Any:
    try:
        found = json.loads(text or "")
    except ValueError:
        return text
    return found if isinstance(found, dict) else text


def _chat(body: Json) -> Json:
    choice = body["choices"][0]
    message = choice["message"]
    return {
        "id": body.get("id"),
        "text": message.get("content") or "",
        "refusal": message.get("refusal"),
        "calls": [_chat_call(call["id"], call["function"]) for call in message.get("tool_calls") or ()],
        "stop": choice["finish_reason"],
        "usage": body.get("usage"),
    }


def _chat_call(call_id: str, function: Json) -> Json:
    return {"id": call_id, "name": function["name"], "arguments": _object(function["arguments"])}


def _chat_stream(chunks: list[Json]) -> Json:
    reply: Json = {"text": "", "stop": None, "usage": None, "ids": [], "indexes": [], "ended": False}
    calls: list[Json] = []
    for chunk in chunks:
        if chunk.get("error"):
            return {**reply, "error": chunk["error"], "calls": _parsed(calls)}
        reply["ids"].append(chunk.get("id"))
        reply["usage"] = chunk.get("usage") or reply["usage"]
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            reply["text"] += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                _add_call(calls, call)
            reply["stop"] = choice.get("finish_reason") or reply["stop"]
    reply["ended"] = reply["stop"] is not None
    return {**reply, "indexes": list(range(len(calls))), "calls": _parsed(calls)}


def _add_call(calls: list[Json], delta: Json) -> None:
    function = delta.get("function") or {}
    index = delta["index"]
    if index > len(calls):
        raise WrongStreamError(f"the first delta of call {len(calls)} has index {index}")
    if index == len(calls):
        if not delta.get("id") or not function.get("name"):
            raise WrongStreamError(f"call {index} begins without an id or a name")
        calls.append({"id": delta["id"], "name": function["name"], "arguments": ""})
    calls[index]["arguments"] += function.get("arguments") or ""


def _parsed(calls: list[Json]) -> list[Json]:
    return [{**call, "arguments": _object(call["arguments"])} for call in calls]


def _messages(body: Json) -> Json:
    blocks = body["content"]
    return {
        "id": body.get("id"),
        "text": "".join(block.get("text") or "" for block in blocks if block["type"] == "text"),
        "blocks": blocks,
        "calls": [
            {"id": block["id"], "name": block["name"], "arguments": block["input"]}
            for block in blocks
            if block["type"] == "tool_use"
        ],
        "stop": body["stop_reason"],
        "usage": body.get("usage"),
    }


class _MessageStream:
    """Puts the events of a message together."""

    def __init__(self) -> None:
        self.message: Json = {"content": [], "stop_reason": None, "usage": {}}
        self.has_ended = False
        self._is_open = False
        self._inputs: dict[int, str] = {}

    def take(self, event: Json) -> None:
        """Takes an event. Raises WrongStreamError if an SDK could not."""
        kind = event["type"]
        if kind == "message_start":
            usage = event["message"].get("usage") or {}
            self.message = {**event["message"], "content": [], "usage": dict(usage)}
        elif kind.startswith("content_block"):
            self._take_block(kind, event)
        elif kind == "message_delta":
            self.message["stop_reason"] = event["delta"].get("stop_reason") or self.message["stop_reason"]
            given = {name: value for name, value in (event.get("usage") or {}).items() if value is not None}
            self.message["usage"] |= given
        elif kind == "message_stop":
            self.has_ended = True
            if self._is_open:
                raise WrongStreamError("the last block does not end")

    def _take_block(self, kind: str, event: Json) -> None:
        blocks, index = self.message["content"], event["index"]
        if kind == "content_block_start":
            if self._is_open or index != len(blocks):
                raise WrongStreamError(f"block {index} begins while another one is open, or out of turn")
            blocks.append(dict(event["content_block"]))
            self._is_open = True
        elif not self._is_open or index != len(blocks) - 1:
            raise WrongStreamError(f"an event for block {index}, which is not open")
        elif kind == "content_block_stop":
            self._is_open = False
        else:
            self._take_delta(blocks[-1], event["delta"], index)

    def _take_delta(self, block: Json, delta: Json, index: int) -> None:
        if delta["type"] == "text_delta":
            block["text"] += delta["text"]
        elif delta["type"] == "thinking_delta":
            block["thinking"] += delta["thinking"]
        elif delta["type"] == "input_json_delta":
            text = self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
            block["input"] = _object(text) if text else {}


def _messages_stream(events: list[Json]) -> Json:
    stream = _MessageStream()
    for event in events:
        if event["type"] == "error":
            return {**_messages(stream.message), "error": event["error"], "ended": False}
        stream.take(event)
    return {**_messages(stream.message), "ended": stream.has_ended}


def _responses(body: Json) -> Json:
    items = body["output"]
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    calls = [item for item in items if item["type"] == "function_call"]
    return {
        "id": body.get("id"),
        "text": "".join(part.get("text") or "" for part in parts),
        "calls": [{"id": c["call_id"], "name": c["name"], "arguments": _object(c["arguments"])} for c in calls],
        "stop": body["status"],
        "usage": body.get("usage"),
        "items": items,
    }


def _responses_stream(events: list[Json]) -> Json:
    ids, texts, final = [], "", None
    for event in events:
        if event["type"] == "error":
            return {"text": texts, "error": event, "ended": False}
        if isinstance(event.get("response"), dict):
            ids.append(event["response"].get("id"))
        if event["type"] == "response.output_text.delta":
            texts += event["delta"]
        if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
            final = event["response"]
    if final is None:
        return {"text": texts, "ids": ids, "ended": False}
    reply = _responses(final)
    if reply["text"] != texts:
        raise WrongStreamError("the deltas are not the text of the response")
    return {**reply, "ids": ids, "ended": True}


def _count(body: Json) -> Json:
    return {"input_tokens": body["input_tokens"]}


_WHOLES = {"chat": _chat, "messages": _messages, "responses": _responses, "count_tokens": _count}
_FOLDS = {"chat": _chat_stream, "messages": _messages_stream, "responses": _responses_stream}
