"""Estimates the tokens of a Messages request, for calls of `count_tokens` that no provider can serve.

Clients decide by the count when to compact a conversation, so that tools and results count as well.
"""

from __future__ import annotations

from llm_guard.dialects import DialectName
from llm_guard.dialects.sse import dict_of
from llm_guard.dialects.translation.canonical import JsonObject
from llm_guard.dialects.translation.wire_json import decode, encode

_BYTES_PER_TOKEN = 4
"""For English text, JSON included."""
_IMAGE_TOKENS = 1600
"""A large image (platform.claude.com, "Vision")."""
_BYTES_PER_DOCUMENT_TOKEN = 32
"""For a PDF, which has at least a page: text and picture of a page together have about 3,000 tokens, of 100 kB."""
_COUNTED = ("system", "tools", "messages", "tool_choice", "thinking", "mcp_servers", "output_config")


def is_token_count(dialect: DialectName, method: str, path: str) -> bool:
    """Returns whether a call counts the tokens of a request that is translated."""
    return (dialect, method, path) == ("anthropic", "POST", "/v1/messages/count_tokens")


def estimated_count(body: bytes) -> bytes | None:
    """Returns the body of the response with the estimate; None if the request is no JSON object."""
    try:
        fields = decode(body)
    except ValueError:
        return None
    return encode({"input_tokens": estimated_tokens(fields)}) if isinstance(fields, dict) else None


def estimated_tokens(request: JsonObject) -> int:
    """Returns the tokens of a request's prompt, at least one."""
    size, media = 0, 0
    waiting: list[object] = [request.get(name) for name in _COUNTED]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            size += len(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            tokens = _media_tokens(value)
            if tokens:
                media += tokens
                continue
            size += sum(len(name) + len('"":,') for name in value)
            waiting += value.values()
    return max(1, size // _BYTES_PER_TOKEN + media)


def _media_tokens(block: JsonObject) -> int:
    """Returns the tokens of an image or a document; 0 for anything else, also for a document that is text."""
    source = dict_of(block.get("source"))
    if block.get("type") == "image" and source:
        return _IMAGE_TOKENS
    if block.get("type") != "document" or source.get("type") not in ("base64", "url", "file"):
        return 0
    data = source.get("data")
    size = len(data) * 3 // 4 if isinstance(data, str) else 0
    return max(_IMAGE_TOKENS, size // _BYTES_PER_DOCUMENT_TOKEN)
