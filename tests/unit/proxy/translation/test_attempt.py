"""Translates the response of one attempt."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from llm_guard.dialects.translation.canonical import RequestTarget
from llm_guard.dialects.translation.endpoints import CHAT
from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy.call import Opened
from llm_guard.proxy.translation.attempt import TranslatedAttempt
from tests.unit.dialects.translation.conversions import from_chat
from tests.unit.proxy.translation.test_call import call_with

MESSAGE: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn",
    "stop_sequence": None, "content": [{"type": "text", "text": "Salt"}],
    "usage": {"input_tokens": 1, "output_tokens": 1},
}  # fmt: skip
HEADERS = (
    ("Content-Type", "application/json; charset=utf-8"), ("request-id", "req_1"), ("Date", "today"),
    ("anthropic-ratelimit-requests-limit", "5"), ("anthropic-organization-id", "org"), ("retry-after", "3"),
)  # fmt: skip


def attempt() -> TranslatedAttempt:
    request = from_chat()
    return TranslatedAttempt(call_with(), CHAT, request, RequestTarget("claude"), (), 17.9, shows_reasoning=False)


def opened(body: bytes, *extra: tuple[str, str], exchange: Any = None) -> Opened:
    return Opened(200, "OK", (*HEADERS, *extra), body, exchange)


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_whole_response_is_the_clients(encoding: str) -> None:
    raw = json.dumps(MESSAGE).encode()
    extra = (("Content-Encoding", "gzip"),) if encoding else ()
    found = attempt().opened(opened(gzip.compress(raw) if encoding else raw, *extra))
    assert isinstance(found, Opened)
    body = json.loads(found.buffered)
    assert (body["object"], body["created"], body["choices"][0]["message"]["content"]) == (
        "chat.completion",
        17,
        "Salt",
    )
    assert found.headers == (
        ("x-request-id", "req_1"), ("Date", "today"), ("retry-after", "3"), ("Content-Type", "application/json"),
    )  # fmt: skip


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"content": [{"type": "tool_use"}]}', b'{"content": [5]}x'])
def test_whole_response_that_cannot_be_read_is_malformed(body: bytes) -> None:
    found = attempt().opened(opened(body))
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.MALFORMED
    assert "cannot be translated" in found.detail


def test_response_that_was_not_read_whole_is_a_failure() -> None:
    found = attempt().opened(opened(b"{", exchange=object()))
    assert isinstance(found, Failure)
    assert "too large" in found.detail
    assert found.kind is FailureKind.UNTRANSLATED  # another request would end alike
