"""Messages in errors of all providers, and of the clouds."""

from __future__ import annotations

import json

import pytest

from llm_guard.dialects.translation.error_bodies import message_in, translated_error


@pytest.mark.parametrize(("body", "message"), [
    (b'{"type":"error","error":{"type":"api_error","message":"oh"}}', "oh"),
    (b'{"error":{"code":429,"message":"oh","status":"RESOURCE_EXHAUSTED"}}', "oh"),
    (b'[{"error":{"code":429,"message":"oh","status":"RESOURCE_EXHAUSTED"}}]', "oh"),
    (b'{"message":"oh"}', "oh"), (b'{"Message":"oh"}', "oh"), (b'{"error":"oh"}', "oh"),
    (b"[]", ""), (b"[5]", ""), (b"null", ""), (b"<html>", ""), (b'{"message":5}', ""),
])  # fmt: skip
def test_message_is_found(body: bytes, message: str) -> None:
    assert message_in(body) == message


def test_error_of_a_cloud_has_the_format_of_the_client() -> None:
    found = translated_error(429, b'[{"error":{"code":429,"message":"oh"}}]', "anthropic", "lg-1")
    assert json.loads(found.body) == {
        "type": "error", "error": {"type": "rate_limit_error", "message": "oh"}, "request_id": "lg-1",
    }  # fmt: skip
    found = translated_error(403, b'{"Message":"oh"}', "openai", "lg-1")
    assert json.loads(found.body)["error"] == {
        "message": "oh", "type": "permission_error", "param": None, "code": None,
    }  # fmt: skip
