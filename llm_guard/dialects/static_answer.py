"""A static response in the format of the called API: unary or as a stream, with a usage of zero tokens.

Supports chat, completions, responses and messages. The text is configured, and `proxy.response.fallback_response`
decides when it is sent.

A request that wants JSON or a tool call does not get prose, which its program would misread. With OpenAI's APIs the
text is placed where models put a refusal, which SDKs return unparsed ("Refusals", structured outputs guide); Messages
has no such place, so there is no response. A text that is JSON is returned to a request for JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llm_guard.dialects.event_writer import encoded
from llm_guard.dialects.resume.base import Body, mapping
from llm_guard.dialects.synthetic_stream import stream_of

FIELDS = ("stream_options", "response_format", "tool_choice", "function_call", "text", "output_config", "output_format")
"""The fields of a request that are read here."""

_FORCED = ("required", "any")
_MOST_CHOICES = 16
"""Bounds the response: all choices are the same, and a request may ask for hundreds."""


@dataclass(frozen=True, slots=True)
class StaticAnswerRequest:
    """The request to respond to."""

    path: str
    call_id: str
    """Part of the response's id, after `degraded`."""
    model: str
    """Model name in the request."""
    at: int
    """Seconds since the epoch."""
    is_stream: bool
    choices: int
    request: Mapping[str, Any]
    """Its `FIELDS`."""


def has_form(path: str) -> bool:
    """True if there is a static response for calls of this path."""
    return path in _WRITERS


def static_response_body(text: str, occasion: StaticAnswerRequest) -> bytes | None:
    """The response's body; None: the request wants something that a text cannot be."""
    place = _place(text, occasion)
    if place is None:
        return None
    answer = _WRITERS[occasion.path](text, place, occasion)
    if not occasion.is_stream:
        return encoded(answer)
    is_usage_wanted = mapping(occasion.request.get("stream_options")).get("include_usage") is True
    return stream_of(occasion.path, answer, is_usage_wanted=is_usage_wanted)


# what the request wants


def _place(text: str, asked: StaticAnswerRequest) -> str | None:
    """Member for the text: `content` or `refusal`; None: neither fits."""
    is_fit = not _wants_tool(asked.request) and (not _wants_json(asked.request) or _is_json(text))
    if is_fit or asked.path == "/v1/completions":
        return "content"
    return None if asked.path == "/v1/messages" else "refusal"


def _wants_json(request: Mapping[str, Any]) -> bool:
    formats = (
        mapping(request.get("response_format")),
        mapping(mapping(request.get("text")).get("format")),
        mapping(mapping(request.get("output_config")).get("format")),
        mapping(request.get("output_format")),
    )
    return any(form.get("type", "text") != "text" for form in formats)


def _wants_tool(request: Mapping[str, Any]) -> bool:
    choice = request.get("tool_choice")
    if isinstance(choice, dict):
        mode = mapping(choice.get("allowed_tools")).get("mode") or choice.get("mode")
        return mode != "auto" and choice.get("type") not in ("auto", "none")
    return choice in _FORCED or isinstance(request.get("function_call"), dict)


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


# chat, completions


def _chat(text: str, place: str, asked: StaticAnswerRequest) -> Body:
    message = {"role": "assistant", "content": None, "refusal": None, place: text}
    choices = [_choice(index, message=message, finish_reason="stop") for index in range(_choices(asked))]
    return _head(asked, "chatcmpl", "chat.completion") | {"choices": choices, "usage": _tokens()}


def _completion(text: str, _place: str, asked: StaticAnswerRequest) -> Body:
    choices = [_choice(index, text=text, finish_reason="stop") for index in range(_choices(asked))]
    return _head(asked, "cmpl", "text_completion") | {"choices": choices, "usage": _tokens()}


def _head(asked: StaticAnswerRequest, prefix: str, kind: str) -> Body:
    return {"id": f"{prefix}-{_id(asked)}", "object": kind, "created": asked.at, "model": asked.model}


def _choices(asked: StaticAnswerRequest) -> int:
    return max(1, min(asked.choices, _MOST_CHOICES))


def _choice(index: int, **fields: object) -> Body:
    return {"index": index, "logprobs": None, **fields}


def _tokens() -> Body:
    return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


# responses


def _response(text: str, place: str, asked: StaticAnswerRequest) -> Body:
    part: Body = {"type": "refusal", "refusal": text}
    if place == "content":
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    identity = f"msg_{_id(asked)}"
    item = {"id": identity, "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return _response_object(asked, item)


def _response_object(asked: StaticAnswerRequest, item: Body) -> Body:
    usage = {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 0,
    }
    return {
        "id": f"resp_{_id(asked)}",
        "object": "response",
        "created_at": asked.at,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": asked.model,
        "output": [item],
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": usage,
    }


# messages


def _message(text: str, _place: str, asked: StaticAnswerRequest) -> Body:
    return {
        "id": f"msg_{_id(asked)}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


_WRITERS: Mapping[str, Callable[[str, str, StaticAnswerRequest], Body]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/responses": _response,
    "/v1/messages": _message,
}


def _id(asked: StaticAnswerRequest) -> str:
    return f"degraded-{asked.call_id}"
