"""Estimates of tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.dialects.translation.token_estimate import estimated_count, estimated_tokens, is_token_count

TEXT = "The quick brown fox jumps over the lazy dog. " * 100
SAID = {"role": "user", "content": "hi"}


@pytest.mark.parametrize("place", ["system", "messages", "tools", "result"])
def test_each_part_of_the_prompt_counts(place: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": TEXT}]}
    parts: dict[str, dict[str, Any]] = {
        "system": {"system": TEXT, "messages": [SAID]}, "messages": {"messages": [{"role": "user", "content": TEXT}]},
        "tools": {"messages": [SAID], "tools": [{"name": "f", "description": TEXT, "input_schema": {}}]},
        "result": {"messages": [{"role": "user", "content": [result]}]},
    }  # fmt: skip
    assert len(TEXT) // 4 <= estimated_tokens(parts[place]) <= len(TEXT) // 4 + 50


def test_other_fields_do_not_count() -> None:
    bare = {"messages": [SAID]}
    assert estimated_tokens({**bare, "metadata": {"user_id": TEXT}, "model": "m"}) == estimated_tokens(bare)


def test_media_count_by_their_kind_and_not_by_their_bytes() -> None:
    def with_block(kind: str, source: dict[str, Any]) -> int:
        return estimated_tokens({"messages": [{"role": "user", "content": [{"type": kind, "source": source}]}]})

    big = "A" * 4_000_000
    assert 1600 <= with_block("image", {"type": "base64", "media_type": "image/png", "data": big}) <= 1650
    assert with_block("image", {"type": "url", "url": "https://a"}) >= 1600
    assert 90_000 < with_block("document", {"type": "base64", "data": big}) < 100_000
    assert len(TEXT) // 4 <= with_block("document", {"type": "text", "data": TEXT}) <= len(TEXT) // 4 + 50


def test_response_has_the_form_of_the_endpoint() -> None:
    assert json.loads(estimated_count(b'{"messages": []}') or b"") == {"input_tokens": 1}
    assert estimated_count(b"{") is None
    assert estimated_count(b"[]") is None


def test_depth_of_a_request_does_not_matter() -> None:
    value: Any = "x"
    for _ in range(100_000):
        value = [value]
    assert estimated_tokens({"messages": value}) == 1


def test_only_calls_of_count_tokens_are_estimated() -> None:
    assert is_token_count("anthropic", "POST", "/v1/messages/count_tokens")
    assert not is_token_count("anthropic", "POST", "/v1/messages")
    assert not is_token_count("anthropic", "GET", "/v1/messages/count_tokens")
