"""Successful responses of an Anthropic-compatible provider: messages, token counts, models.

They have the shapes that the `anthropic` SDK reads. Batches are in `files_and_batches`, errors in `errors`.
"""

from __future__ import annotations

from typing import Any

from msgspec.json import encode

from llm_guard.mock.content import example_of, say_json, split
from llm_guard.mock.continuation import speak
from llm_guard.mock.errors import error_body
from llm_guard.mock.exchange import MockRequest, MockResponse, Script

_MODELS = ("claude-opus-4-6", "claude-sonnet-4-5", "claude-3-opus")


def answer_anthropic(asked: MockRequest, tokens: int) -> MockResponse | Script | None:
    """Returns the response, with `tokens` tokens of content where it has any; None for an unknown path."""
    if asked.method == "GET" and asked.path.startswith("/models"):
        return _models(asked)
    if asked.method != "POST":
        return None
    if asked.path == "/messages":
        return _messages(asked, tokens)
    if asked.path == "/messages/count_tokens":
        return MockResponse(200, encode({"input_tokens": asked.prompt_tokens}))
    return None


def message(asked_model: str, number: int, prompt_tokens: int, block: dict[str, Any], tokens: int) -> dict[str, Any]:
    """A complete message with one content block."""
    return {
        "id": f"msg_mock{number}",
        "type": "message",
        "role": "assistant",
        "model": asked_model,
        "content": [block],
        "stop_reason": "tool_use" if block["type"] == "tool_use" else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": prompt_tokens, "output_tokens": tokens},
    }


def _messages(asked: MockRequest, tokens: int) -> MockResponse | Script:
    tool = _wanted_tool(asked.fields)
    if tool is not None:
        arguments = example_of(tool.get("input_schema") or {}, is_another=asked.is_another)
        block = {"type": "tool_use", "id": "toolu_mock", "name": tool["name"], "input": arguments}
        pieces = split(encode(arguments).decode(), tokens)
    else:
        schema = _json_schema(asked.fields)
        pieces = speak(asked, tokens) if schema is None else say_json(schema, tokens, is_another=asked.is_another)
        block = {"type": "text", "text": "".join(pieces)}
    whole = message(asked.model, asked.number, asked.prompt_tokens, block, len(pieces))
    if asked.wants_stream:
        return _stream(whole, block, pieces)
    return MockResponse(200, encode(whole), output_tokens=len(pieces))


def _stream(whole: dict[str, Any], block: dict[str, Any], pieces: list[str]) -> Script:
    is_tool = block["type"] == "tool_use"
    empty = block | {"input" if is_tool else "text": {} if is_tool else ""}
    kind, key = ("input_json_delta", "partial_json") if is_tool else ("text_delta", "text")
    start = whole | {"content": [], "stop_reason": None, "usage": whole["usage"] | {"output_tokens": 1}}
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    return Script(
        opening=(
            _event("message_start", message=start),
            _event("content_block_start", index=0, content_block=empty),
            _event("ping"),
        ),
        tokens=tuple(_event("content_block_delta", index=0, delta={"type": kind, key: piece}) for piece in pieces),
        closing=(
            _event("content_block_stop", index=0),
            _event("message_delta", delta=end, usage={"output_tokens": len(pieces)}),
            _event("message_stop"),
        ),
        error=_event("error", error=error_body("anthropic", 529, whole["model"])["error"]),
        broken=b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":\n\n',
    )


def _wanted_tool(fields: dict[str, Any]) -> dict[str, Any] | None:
    """The tool to call: an offered one, but not after a tool result, or the conversation would never end."""
    tools = [tool for tool in fields.get("tools") or () if "input_schema" in tool]
    choice = fields.get("tool_choice") or {"type": "auto"}
    if not tools or choice["type"] == "none":
        return None
    if choice["type"] == "tool":
        return next((tool for tool in tools if tool["name"] == choice["name"]), None)
    if choice["type"] == "auto" and _ends_with_tool_result(fields.get("messages") or []):
        return None
    return dict(tools[0])


def _ends_with_tool_result(messages: list[dict[str, Any]]) -> bool:
    content = messages[-1].get("content") if messages else None
    return isinstance(content, list) and any(block.get("type") == "tool_result" for block in content)


def _json_schema(fields: dict[str, Any]) -> dict[str, Any] | None:
    wanted = (fields.get("output_config") or {}).get("format") or fields.get("output_format") or {}
    return wanted.get("schema") if wanted.get("type") == "json_schema" else None


def _models(asked: MockRequest) -> MockResponse:
    if asked.path != "/models":
        return MockResponse(200, encode(_model(asked.path.removeprefix("/models/"))))
    page = {"data": [_model(name) for name in _MODELS], "has_more": False}
    return MockResponse(200, encode(page | {"first_id": _MODELS[0], "last_id": _MODELS[-1]}))


def _model(name: str) -> dict[str, Any]:
    return {"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"}


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **fields}) + b"\n\n"
