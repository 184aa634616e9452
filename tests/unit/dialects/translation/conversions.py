"""Translates for tests, and reads the results as the official SDKs do."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from anthropic import NOT_GIVEN
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from openai import omit
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from llm_guard.dialects.sse import events_in
from llm_guard.dialects.translation.canonical import RequestTarget
from llm_guard.dialects.translation.endpoints import (
    CHAT,
    MESSAGES,
    RESPONSES,
    TranslatedEndpoint,
    TranslatedRequest,
    read_request,
    write_request,
)

SAID: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "description": "Forecast", "parameters": WEATHER}}
RESPONSES_TOOL = {
    "type": "function", "name": "weather", "description": "Forecast", "parameters": WEATHER, "strict": True,
}  # fmt: skip
MESSAGES_TOOL = {"name": "weather", "description": "Forecast", "input_schema": WEATHER}
_EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_RESPONSE_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def from_chat(body: dict[str, Any] | None = None, **target: Any) -> TranslatedRequest:
    """Translates a chat request into a Messages request; `body` is merged into a small one."""
    target = {"model": "claude-sonnet-4-5", **target}
    raw = json.dumps({"model": "gpt-4o", "messages": SAID, **(body or {})}).encode()
    return write_request(read_request(CHAT, raw), CHAT, MESSAGES, RequestTarget(**target))


def from_messages(body: dict[str, Any] | None = None, **target: Any) -> TranslatedRequest:
    """Translates a Messages request into a chat request; `body` is merged into a small one."""
    target = {"model": "gpt-4o", "family": "openai", **target}
    raw = json.dumps({"model": "claude-sonnet-4-5", "max_tokens": 50, "messages": SAID, **(body or {})}).encode()
    return write_request(read_request(MESSAGES, raw), MESSAGES, CHAT, RequestTarget(**target))


def from_responses(
    body: dict[str, Any] | None = None, to: TranslatedEndpoint = MESSAGES, **target: Any
) -> TranslatedRequest:
    """Translates a Responses request; `body` is merged into a small one."""
    target = {"model": "claude-sonnet-4-5", **target} if to is MESSAGES else {"model": "gpt-4o", **target}
    raw = json.dumps({"model": "gpt-5.5", "input": "hi", **(body or {})}).encode()
    return write_request(read_request(RESPONSES, raw), RESPONSES, to, RequestTarget(**target))


def body_of(request: TranslatedRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.body)
    return found


def losses_of(request: TranslatedRequest) -> dict[str, str]:
    """Returns the class of each loss."""
    return {loss.name: loss.kind for loss in request.losses}


def streamed(request: TranslatedRequest, raw: bytes, cuts: list[int] | None = None, *, shows: bool = False) -> bytes:
    """Translates a stream that arrives in pieces, cut at these places."""
    translator = request.stream(1_700_000_000, shows_reasoning=shows)
    places = [0, *(cuts or []), len(raw)]
    pieces = [raw[start:end] for start, end in pairwise(places)]
    return b"".join(translator.feed(piece) for piece in pieces) + translator.finish()


def whole(request: TranslatedRequest, body: dict[str, Any], *, shows: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.whole(json.dumps(body).encode(), 1_700_000_000, shows_reasoning=shows))
    return found


def chat_fold(raw: bytes) -> ChatCompletion:
    """Returns what openai's SDK makes of a stream. The stream must end with `[DONE]`."""
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    events = list(events_in(raw))
    assert events[-1].data == b"[DONE]"
    for event in events[:-1]:
        state.handle_chunk(ChatCompletionChunk.model_validate_json(event.data))
    return state.current_completion_snapshot


def responses_fold(raw: bytes) -> Response:
    """Returns what openai's SDK makes of a stream, whose sequence numbers must be dense. Its deltas must add up to its
    last event."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    events = [event for event in events_in(raw) if event.data]
    for number, event in enumerate(events):
        fields = json.loads(event.data)
        assert (fields["type"], fields["sequence_number"]) == (event.name, number)
        state.handle_event(_RESPONSE_EVENTS.validate_json(event.data))
    last = _RESPONSE_EVENTS.validate_json(events[-1].data)
    assert last.type in ("response.completed", "response.incomplete")
    assert delta_texts(raw) == item_texts(last.response.model_dump())
    found: Response = last.response
    return found


def delta_texts(raw: bytes) -> list[str]:
    """Returns the text of each item that has any, from the deltas."""
    texts: dict[int, str] = {}
    for event in events_in(raw):
        fields = json.loads(event.data) if event.name.endswith(".delta") else {}
        if fields:
            texts[fields["output_index"]] = texts.get(fields["output_index"], "") + fields["delta"]
    return [text for _, text in sorted(texts.items()) if text]


def item_texts(response: dict[str, Any]) -> list[str]:
    """Returns the text of each item of a response that has any."""
    found = []
    for item in response["output"]:
        parts = item.get("content") or item.get("summary") or []
        texts = [part.get("text", part.get("refusal")) for part in parts]
        found.append("".join(texts) or item.get("arguments") or item.get("input") or "")
    return [text for text in found if text]


def messages_fold(raw: bytes) -> Message:
    """Returns what anthropic's SDK makes of a stream. The stream must end with `message_stop`."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    events = list(events_in(raw))
    assert events[-1].name == "message_stop"
    for event in events:
        parsed = _EVENTS.validate_json(event.data) if event.name != "ping" else None
        if parsed is not None:
            snapshot = accumulate_event(
                event=parsed, current_snapshot=snapshot, json_bufs=buffers, output_format=NOT_GIVEN
            )
    assert isinstance(snapshot, Message)
    return snapshot


def chat_events(*chunks: dict[str, Any], done: bool = True) -> bytes:
    """Builds a chat stream of these chunks."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    raw = b"".join(b"data: " + json.dumps({**head, **chunk}).encode() + b"\n\n" for chunk in chunks)
    return raw + (b"data: [DONE]\n\n" if done else b"")


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call_delta(index: int | None, arguments: str = "", call_id: str | None = None, name: str | None = None) -> Any:
    function: dict[str, Any] = {"arguments": arguments}
    call: dict[str, Any] = {"function": function}
    if index is not None:
        call["index"] = index
    if call_id is not None:
        call |= {"id": call_id, "type": "function"}
    if name is not None:
        function["name"] = name
    return delta(tool_calls=[call])


def message_events(*blocks: dict[str, Any], stop: str = "end_turn", usage: dict[str, Any] | None = None) -> bytes:
    """Builds a Messages stream in which each block has one delta for each of its `pieces`."""
    start: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": []}
    start |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 5, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(blocks):
        kind, pieces = block["type"], block.get("pieces", [])
        first = {key: value for key, value in block.items() if key != "pieces"}
        events.append({"type": "content_block_start", "index": index, "content_block": first})
        key, name = _DELTAS.get(kind, ("", ""))
        events += [
            {"type": "content_block_delta", "index": index, "delta": {"type": name, key: piece}} for piece in pieces
        ]
        events.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": stop, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ending, "usage": usage or {"output_tokens": 9}})
    events.append({"type": "message_stop"})
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


_DELTAS = {
    "text": ("text", "text_delta"),
    "thinking": ("thinking", "thinking_delta"),
    "tool_use": ("partial_json", "input_json_delta"),
}


def text_block(*pieces: str) -> dict[str, Any]:
    return {"type": "text", "text": "", "pieces": list(pieces)}


def tool_block(call_id: str, name: str, *pieces: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}, "pieces": list(pieces)}
