"""From what an upstream said to what it means.

Owns the reading of an error's status, headers and body. Does not own what is done about it (`policy.next_step`).
The order of evidence: the provider's own code, then its error type, then the status. Nothing is matched over a whole
body: request ids, echoed prompts and masked keys contain "429" and "timeout" too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from llm_guard.outcome import FailureKind

MAX_BODY_BYTES = 8192
"""No more of an error body is read."""

_EPOCH_S = 1e9
"""A Retry-After above this is an instant, not a duration."""

_BY_CODE = {
    "insufficient_quota": FailureKind.QUOTA_EXHAUSTED,
    "billing_hard_limit_reached": FailureKind.QUOTA_EXHAUSTED,
    "billing_not_active": FailureKind.QUOTA_EXHAUSTED,
    "credit_balance_exhausted": FailureKind.QUOTA_EXHAUSTED,
    "organization_spend_limit_exceeded": FailureKind.QUOTA_EXHAUSTED,
    "organization_usage_limit_exceeded": FailureKind.QUOTA_EXHAUSTED,
    "project_spend_limit_exceeded": FailureKind.QUOTA_EXHAUSTED,
    "rate_limit_exceeded": FailureKind.RATE_LIMIT,
    "server_is_overloaded": FailureKind.OVERLOADED,
    "slow_down": FailureKind.OVERLOADED,
    "server_error": FailureKind.SERVER_ERROR,
    "model_not_found": FailureKind.MODEL_NOT_FOUND,
    "DeploymentNotFound": FailureKind.MODEL_NOT_FOUND,
    "context_length_exceeded": FailureKind.CONTEXT_LENGTH,
    "content_filter": FailureKind.CONTENT_POLICY,
    "content_policy_violation": FailureKind.CONTENT_POLICY,
    "invalid_api_key": FailureKind.AUTH,
}
"""`error.code` (OpenAI API reference, "Error codes"; Azure OpenAI)."""

_BY_TYPE = {
    "insufficient_quota": FailureKind.QUOTA_EXHAUSTED,
    "billing_error": FailureKind.QUOTA_EXHAUSTED,
    "rate_limit_error": FailureKind.RATE_LIMIT,
    "overloaded_error": FailureKind.OVERLOADED,
    "service_unavailable_error": FailureKind.OVERLOADED,
    "timeout_error": FailureKind.TIMEOUT,
    "api_error": FailureKind.SERVER_ERROR,
    "server_error": FailureKind.SERVER_ERROR,
    "authentication_error": FailureKind.AUTH,
    "permission_error": FailureKind.PERMISSION,
    "request_too_large": FailureKind.PAYLOAD_TOO_LARGE,
    "not_found_error": FailureKind.NOT_FOUND,
}
"""`error.type` (Anthropic API reference, "Errors"; OpenAI)."""

_BY_STATUS = {
    401: FailureKind.AUTH,
    402: FailureKind.QUOTA_EXHAUSTED,
    403: FailureKind.PERMISSION,
    404: FailureKind.NOT_FOUND,
    408: FailureKind.TIMEOUT,
    409: FailureKind.CONFLICT,
    413: FailureKind.PAYLOAD_TOO_LARGE,
    425: FailureKind.SERVER_ERROR,
    429: FailureKind.RATE_LIMIT,
    503: FailureKind.OVERLOADED,
    504: FailureKind.TIMEOUT,
    524: FailureKind.TIMEOUT,
    529: FailureKind.OVERLOADED,
}


_STATUS_OF_KIND = {
    FailureKind.AUTH: 401,
    FailureKind.PERMISSION: 403,
    FailureKind.MODEL_NOT_FOUND: 404,
    FailureKind.PAYLOAD_TOO_LARGE: 413,
    FailureKind.RATE_LIMIT: 429,
    FailureKind.QUOTA_EXHAUSTED: 429,
    FailureKind.CONTEXT_LENGTH: 400,
    FailureKind.CONTENT_POLICY: 400,
    FailureKind.INVALID_REQUEST: 400,
    FailureKind.OVERLOADED: 503,
    FailureKind.TIMEOUT: 504,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an upstream's error means, and why we think so."""

    kind: FailureKind
    retry_after_s: float | None
    """The provider's hint: > 0, or None."""
    why: str
    """The evidence that decided, for people."""
    status: int
    """The HTTP status that says it: the answer's own, or for an error event the one it should have had."""


def classify_answer(status: int, headers: Mapping[str, str], body: bytes, wall: float) -> Verdict:
    """The meaning of an HTTP error answer. `headers` with lower-case names; `wall` in epoch seconds. Never raises."""
    kind, why = _kind_of(status, _facts(body))
    return Verdict(kind, retry_after(headers, wall), why, status)


def classify_event(data: bytes) -> Verdict:
    """The meaning of an error inside a stream that began as a success. Never raises."""
    facts = _facts(data)
    kind, why = _kind_of(facts.status or (400 if facts.type == "invalid_request_error" else 500), facts)
    return Verdict(kind, None, why, facts.status or _STATUS_OF_KIND.get(kind, 500))


def retry_after(headers: Mapping[str, str], wall: float) -> float | None:
    """Seconds to wait by `retry-after-ms`, `x-ms-retry-after-ms` or `retry-after` (RFC 9110, section 10.2.3, and
    the fractions and epochs that providers send); None without a usable hint."""
    for name, scale in (("retry-after-ms", 0.001), ("x-ms-retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        seconds = _number(value)
        if seconds is None:
            seconds = _until(value, headers.get("date"), wall)
        elif scale == 1.0 and seconds > _EPOCH_S:
            seconds = (seconds / 1000 if seconds > _EPOCH_S * 1000 else seconds) - wall
        else:
            seconds *= scale
        if seconds is not None and seconds > 0:
            return seconds
    return None


@dataclass(frozen=True, slots=True)
class _Facts:
    code: str = ""
    type: str = ""
    status: int | None = None


def _kind_of(status: int, facts: _Facts) -> tuple[FailureKind, str]:
    if facts.code in _BY_CODE:
        return _BY_CODE[facts.code], f"code {facts.code}"
    if facts.type in _BY_TYPE:
        return _BY_TYPE[facts.type], f"type {facts.type}"
    if status in _BY_STATUS:
        return _BY_STATUS[status], f"status {status}"
    kind = FailureKind.SERVER_ERROR if status >= 500 else FailureKind.INVALID_REQUEST
    return kind, f"status {status}"


def _facts(body: bytes) -> _Facts:
    try:
        value: Any = json.loads(body[:MAX_BODY_BYTES])
    except (ValueError, RecursionError):
        return _Facts()
    if not isinstance(value, dict):
        return _Facts()
    response = value.get("response")
    inner = value.get("error") or (response.get("error") if isinstance(response, dict) else None)
    error = inner if isinstance(inner, dict) else value
    code = error.get("code")
    return _Facts(
        code=code if isinstance(code, str) else "",
        type=_text(error.get("type")),
        status=code if isinstance(code, int) and 400 <= code <= 599 else None,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _until(value: str, date: str | None, wall: float) -> float | None:
    """Seconds until an HTTP date, measured against the answer's own `date` where it has one."""
    at = _instant(value)
    if at is None:
        return None
    return at - ((_instant(date) if date else None) or wall)


def _instant(value: str) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
