"""Builders of stored calls for tests."""

from __future__ import annotations

from typing import Any

from llm_guard.storage.calls.store import CallFailure, StoredCall, StoredRequest, StoredResponse

BODY = b'{"model": "gpt-4", "messages": [{"role": "user", "content": "why is the sky blue?"}]}'
FAILED = CallFailure(
    kind="server_error", detail="500 from a/gpt-4", status=502, attempts=3, body=b'{"error": "broken"}'
)
ANSWER = StoredResponse(status=200, headers=(("content-type", "application/json"),), body=b'{"id": "chatcmpl-1"}')


def stored_request(body: bytes | None = BODY, **facts: Any) -> StoredRequest:
    usual = {
        "method": "POST", "path": "/v1/chat/completions", "query": "", "dialect": "openai", "model": "gpt-4",
        "headers": (("content-type", "application/json"),), "route": "gpt-4",
    }  # fmt: skip
    return StoredRequest(**{**usual, **facts}, body=body)


def new_dead_letter(call_id: str = "a", received_at: float = 1000.0, **facts: Any) -> StoredCall:
    """A dead letter; `facts` override its fields."""
    usual: dict[str, Any] = {
        "request_id": f"req-{call_id}", "purpose": "dead_letter", "state": "dead", "owner": "hash", "client": "app-1",
        "request": stored_request(), "first_failed_at": received_at, "last_failed_at": received_at, "attempts": 3,
        "ended": FAILED,
    }  # fmt: skip
    return StoredCall(**{**usual, **facts}, id=call_id, received_at=received_at)


def deferred_call(call_id: str = "a", received_at: float = 1000.0, due_at: float = 1000.0, **facts: Any) -> StoredCall:
    """A queued deferred call; `facts` override its fields."""
    usual: dict[str, Any] = {
        "purpose": "deferred", "state": "queued", "due_at": due_at, "deadline_at": received_at + 3600, "ended": None,
        "first_failed_at": None, "last_failed_at": None, "attempts": 0,
    }  # fmt: skip
    return new_dead_letter(call_id, received_at, **{**usual, **facts})
