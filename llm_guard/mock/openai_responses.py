"""The Responses API, unary and as an event stream.

It has the shapes that `client.responses` reads. Responses are not stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec.json import encode

from llm_guard.mock.content import say_json
from llm_guard.mock.continuation import speak
from llm_guard.mock.errors import error_body
from llm_guard.mock.exchange import MockRequest, MockResponse, Script


def respond(asked: MockRequest, tokens: int) -> MockResponse | Script:
    """Responds to `POST /responses` with `tokens` tokens of text."""
    wanted = (asked.fields.get("text") or {}).get("format") or {}
    schema = wanted.get("schema") if wanted.get("type") == "json_schema" else None
    pieces = speak(asked, tokens) if schema is None else say_json(schema, tokens, is_another=asked.is_another)
    if asked.wants_stream:
        return _stream(asked, pieces)
    return MockResponse(200, encode(_response(asked, pieces, "completed")), output_tokens=len(pieces))


def _stream(asked: MockRequest, pieces: list[str]) -> Script:
    event = _numbered_events()
    item = {"output_index": 0, "item_id": _item_id(asked), "content_index": 0}
    text = "".join(pieces)
    started = _response(asked, pieces, "in_progress")
    opening = (
        event("response.created", response=started),
        event("response.in_progress", response=started),
        event("response.output_item.added", output_index=0, item=_message(asked, [], "in_progress")),
        event("response.content_part.added", **item, part=_part("")),
    )
    deltas = tuple(event("response.output_text.delta", **item, delta=piece, logprobs=[]) for piece in pieces)
    closing = (
        event("response.output_text.done", **item, text=text, logprobs=[]),
        event("response.content_part.done", **item, part=_part(text)),
        event("response.output_item.done", output_index=0, item=_message(asked, [_part(text)], "completed")),
        event("response.completed", response=_response(asked, pieces, "completed")),
    )
    error = error_body("openai", 500, asked.model)["error"]
    return Script(
        opening=opening,
        tokens=deltas,
        closing=closing,
        error=event("error", code=error["type"], message=error["message"], param=None),
        broken=b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":\n\n',
    )


def _numbered_events() -> Callable[..., bytes]:
    number = -1

    def event(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        data = encode({"type": kind, **fields, "sequence_number": number})
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    return event


def _response(asked: MockRequest, pieces: list[str], status: str) -> dict[str, Any]:
    is_done = status == "completed"
    usage = {
        "input_tokens": asked.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": len(pieces),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": asked.prompt_tokens + len(pieces),
    }
    return {
        "id": f"resp_mock{asked.number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.fields.get("instructions"),
        "metadata": {},
        "model": asked.model,
        "output": [_message(asked, [_part("".join(pieces))], status)] if is_done else [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage if is_done else None,
    }


def _message(asked: MockRequest, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {
        "id": _item_id(asked),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item_id(asked: MockRequest) -> str:
    return f"msg_mock{asked.number}"
