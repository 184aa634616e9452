"""Idempotency: which calls may be sent again after they may have been executed.

Decides which calls change something at the provider, and which failures leave it open whether they did. Whether a
retry is worthwhile is decided in `resilience.retry.decision`.

A model call is safe to repeat: its only double effect is its cost (Google's rule for generateContent). Creating files,
batches or fine-tuning jobs is not, nor is a call that leaves state at the provider.
"""

from __future__ import annotations

from collections.abc import Mapping

from llm_guard.outcome import Failure

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_STATELESS = {
    "/v1/chat/completions": True,
    "/v1/completions": True,
    "/v1/responses": True,
    "/v1/responses/input_tokens": True,
    "/v1/embeddings": True,
    "/v1/moderations": True,
    "/v1/rerank": True,
    "/v1/images/*": True,
    "/v1/audio/speech": True,
    "/v1/audio/transcriptions": True,
    "/v1/audio/translations": True,
    "/v1/messages": True,
    "/v1/messages/count_tokens": True,
    "/v1/complete": True,
    "*": False,
}
"""Repeatability of POST, PUT, PATCH and DELETE, by path; a repeated DELETE that was executed gets a 404."""

_AT_THE_DOOR = frozenset({
    "rate_limit", "overloaded", "quota_exhausted", "model_loading", "auth", "permission", "model_not_found",
    "not_found", "payload_too_large", "invalid_request", "context_length", "content_policy",
})  # fmt: skip
"""Categories of errors that mean that the request was not executed."""


class Repeatable:
    """Decides by method and path which calls may be repeated."""

    def __init__(self, overrides: Mapping[str, bool]) -> None:
        """`overrides`: paths, or their beginnings followed by `*`; they take precedence over the built-in ones."""
        self._overrides = overrides

    def allows(self, method: str, path: str, *, is_stateful: bool) -> bool:
        """Returns whether a call may be sent again although it may have been executed.

        `is_stateful`: its body makes the provider store it, or continues from stored state.
        """
        if self._overrides and (said := _longest_match(self._overrides, path)) is not None:
            return said
        if method in _SAFE_METHODS:
            return True
        return not is_stateful and bool(_longest_match(_STATELESS, path))


def may_have_executed(failure: Failure) -> bool:
    """Returns whether the provider may have executed the request although the call failed."""
    if failure.is_before_sending or failure.is_incomplete:
        return False
    if failure.is_after_head:
        return True
    category, answer = failure.kind.category, failure.answer
    is_unavailable = category == "server_error" and answer is not None and answer.status == 503
    return category not in _AT_THE_DOOR and not is_unavailable


def _longest_match(table: Mapping[str, bool], path: str) -> bool | None:
    if path in table:
        return table[path]
    patterns = [key for key in table if key.endswith("*") and path.startswith(key[:-1])]
    return table[max(patterns, key=len)] if patterns else None
