"""Rules that providers enforce beyond the form of a request, with their sentences: pairs of calls and results, ids that
repeat, empty texts, signatures."""

from __future__ import annotations

import hmac
import re
from typing import Any

from tests.fakes.typed_requests import problems_of

_ID = re.compile(r"[A-Za-z0-9_-]+")
_KEY = b"a provider's own key"


def signature_of(thinking: str) -> str:
    """Returns the signature that the strict Anthropic gives to its own thinking."""
    return hmac.digest(_KEY, thinking.encode(), "sha256").hex()


def refusals_of_anthropic(body: dict[str, Any]) -> list[str]:
    """Returns why Anthropic refuses a Messages request; empty: it accepts it."""
    found = problems_of(body)
    seen: set[str] = set()
    owed: list[str] = []
    messages = body.get("messages", [])
    if not messages or messages[0]["role"] != "user":
        found.append("messages: first message must use the user role")
    for index, message in enumerate(messages):
        blocks = message["content"]
        blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        kinds = [block["type"] == "tool_result" for block in blocks]
        if owed and sorted(owed) != sorted(results):
            found.append(f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after")
        if not owed and results:
            found.append(f"messages.{index}: unexpected `tool_use_id` found in `tool_result` blocks")
        if kinds != sorted(kinds, reverse=True):
            found.append(f"messages.{index}: `tool_result` blocks must come before text")
        owed = [block["id"] for block in blocks if block["type"] == "tool_use"]
        for block in blocks:
            found += _problems_of_block(block, f"messages.{index}", seen)
    return found


def _problems_of_block(block: dict[str, Any], place: str, seen: set[str]) -> list[str]:
    kind, found = block["type"], []
    if kind == "text" and not block["text"].strip():
        found.append(f"{place}: text content blocks must be non-empty")
    if kind == "thinking" and block.get("signature") != signature_of(block["thinking"]):
        found.append(f"{place}: Invalid `signature` in `thinking` block")
    if kind == "tool_use":
        if block["id"] in seen:
            found.append(f"{place}: `tool_use` ids must be unique")
        if not _ID.fullmatch(block["id"]):
            found.append(f"{place}: String should match pattern '^[a-zA-Z0-9_-]+$'")
        seen.add(block["id"])
    return found


def refusals_of_openai(body: dict[str, Any]) -> list[str]:
    """Returns why OpenAI refuses a chat request; empty: it accepts it."""
    found = problems_of(body)
    owed: set[str] = set()
    for index, message in enumerate(body.get("messages", [])):
        if message["role"] == "tool":
            if message["tool_call_id"] not in owed:
                found.append(f"messages.{index}: messages with role 'tool' must be a response to 'tool_calls'")
            owed.discard(message["tool_call_id"])
            continue
        if owed:
            found.append(f"messages.{index}: 'tool_calls' must be followed by tool messages")
        owed = {call["id"] for call in message.get("tool_calls") or ()}
        for call in message.get("tool_calls") or ():
            if len(call["id"]) > 40:
                found.append(f"messages.{index}: string too long. Expected a string with maximum length 40")
            if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"]):
                found.append(f"messages.{index}: string does not match pattern '^[a-zA-Z0-9_-]+$'")
        if message["role"] == "assistant" and not message.get("content") and not message.get("tool_calls"):
            found.append(f"messages.{index}: content is required")
    return found


_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}


def refusals_of_responses(body: dict[str, Any]) -> list[str]:
    """Returns why OpenAI refuses a Responses request; empty: it accepts it."""
    found = problems_of(body)
    ids: set[str] = set()
    owed: set[str] = set()
    for index, item in enumerate(body.get("input", [])):
        kind, place = item.get("type", "message"), f"input[{index}]"
        if (one := item.get("id")) is not None:
            if one in ids:
                found.append(f"{place}: Duplicate item found with id {one}")
            if not one.startswith(_PREFIXES.get(kind, "")):
                found.append(f"{place}.id: Expected an ID that begins with '{_PREFIXES[kind]}'")
            if len(one) > 64 or not _ID.fullmatch(one):
                found.append(f"{place}.id: Expected an ID that contains letters, numbers, underscores, or dashes")
            ids.add(one)
        if len(item.get("call_id", "")) > 64:
            found.append(f"{place}.call_id: string too long. Expected a string with maximum length 64")
        if kind == "reasoning" and item.get("encrypted_content") != signature_of(item["id"]):
            found.append(f"{place}: The encrypted content could not be verified")
        if kind in ("function_call", "custom_tool_call"):
            owed.add(item["call_id"])
        elif kind.endswith("_call_output"):
            if item["call_id"] not in owed:
                found.append(f"{place}: No tool call found for function call output")
            owed.discard(item["call_id"])
    found += [f"No tool output found for function call {one}" for one in sorted(owed)]
    return found
