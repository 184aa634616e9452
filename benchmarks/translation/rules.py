"""Rules that providers enforce and that the types of a request do not express.

Sources: the API references and error messages of both providers."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.strict_providers import refusals_of_anthropic, refusals_of_openai

Json = dict[str, Any]

_REASONING = re.compile(r"o\d|gpt-[5-9]")
_ADAPTIVE = re.compile(r"claude-\w+-(4-[6-9]|[5-9])")
"""These models take no budget, and go on with no beginning of a response."""
_WITHOUT_SAMPLING = re.compile(r"claude-\w+-(4-[7-9]|[5-9])")
_COMPOSITIONS = ("anyOf", "oneOf", "allOf")
_LEAST_BUDGET = 1024
_MOST_STOPS = 4
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def refusals(body: Json, most_tokens: int | None, *, is_chat: bool) -> list[str]:
    """Returns why the provider refuses a request, in its words; empty: it accepts it."""
    if is_chat:
        return [*refusals_of_openai(body), *_of_chat(body)]
    found = [*refusals_of_anthropic(body), *_of_sampling(body), *_of_thinking(body), *_of_content(body)]
    if most_tokens is not None and body.get("max_tokens", 0) > most_tokens:
        limit = f"> {most_tokens}, which is the maximum allowed number of output tokens for {body['model']}"
        found.append(f"max_tokens: {body['max_tokens']} {limit}")
    return found


def _of_chat(body: Json) -> list[str]:
    found = []
    if len(body.get("stop") or ()) > _MOST_STOPS and not isinstance(body["stop"], str):
        found.append("Invalid 'stop': array too long. Expected an array with maximum length 4")
    if _REASONING.match(body["model"]):
        if "max_tokens" in body:
            found.append("Unsupported parameter: 'max_tokens' is not supported with this model")
        found += [
            f"Unsupported value: '{name}' does not support {body[name]} with this model"
            for name in ("temperature", "top_p")
            if body.get(name, 1) != 1
        ]
    elif body.get("reasoning_effort") is not None:
        found.append("Unrecognized request argument supplied: reasoning_effort")
    return found


def _of_sampling(body: Json) -> list[str]:
    found = []
    if not 0 <= body.get("temperature", 1) <= 1:
        found.append("temperature: range: 0..1")
    if _WITHOUT_SAMPLING.match(body["model"]) and body.get("temperature", 1) != 1:
        found.append("temperature is not supported by this model")
    if any(not stop.strip() for stop in body.get("stop_sequences") or ()):
        found.append("stop_sequences: each stop sequence must contain non-whitespace")
    for tool in body.get("tools", ()):
        schema = tool.get("input_schema") or {}
        if schema.get("type") != "object":
            found.append("tools.0.custom.input_schema.type: Field required")
        if any(name in schema for name in _COMPOSITIONS):
            found.append("input_schema does not support oneOf, allOf, or anyOf at the top level")
    return found


def _of_thinking(body: Json) -> list[str]:
    thinking, found = body.get("thinking") or {}, []
    if thinking.get("type") in (None, "disabled"):
        return []
    if thinking["type"] == "enabled":
        if _ADAPTIVE.match(body["model"]):
            found.append("thinking.type.enabled is not supported for this model")
        if not _LEAST_BUDGET <= thinking.get("budget_tokens", 0) < body["max_tokens"]:
            found.append("max_tokens must be greater than thinking.budget_tokens, which is at least 1024")
        if _is_unsigned_tool_turn(body["messages"]):
            found.append("Expected `thinking` or `redacted_thinking`, but found `tool_use`")
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        found.append("Thinking may not be enabled when tool_choice forces tool use.")
    if body.get("temperature", 1) != 1:
        found.append("temperature may only be set to 1 when thinking is enabled")
    return found


def _is_unsigned_tool_turn(messages: list[Json]) -> bool:
    for message in reversed(messages):
        blocks = message["content"] if isinstance(message["content"], list) else []
        if message["role"] == "assistant":
            return bool(blocks) and blocks[0]["type"] not in ("thinking", "redacted_thinking")
        if not any(block["type"] == "tool_result" for block in blocks):
            return False
    return False


def _of_content(body: Json) -> list[str]:
    found = []
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        sources = [block.get("source") or {} for block in blocks if block["type"] == "image"]
        found += [
            f"messages.0.content.0.image.source.base64.media_type: Input should be {' or '.join(_IMAGES)}"
            for source in sources
            if source.get("type") == "base64" and source.get("media_type") not in _IMAGES
        ]
    last = body["messages"][-1] if body["messages"] else {}
    if last.get("role") == "assistant":
        text = last["content"] if isinstance(last["content"], str) else last["content"][-1].get("text", "")
        if _ADAPTIVE.match(body["model"]):
            found.append("This model does not support assistant message prefill")
        elif text != text.rstrip():
            found.append("messages: final assistant content cannot end with trailing whitespace")
    return found
