"""Error responses in each dialect's own shape, as the providers send them: bodies and headers, and errors in streams.

When to send one is decided in `faults`.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from llm_guard.mock.exchange import MockDialect, MockResponse

_BAD_KEY = (
    "Incorrect API key provided: mock. You can find your API key at https://platform.openai.com/account/api-keys."
)
_NO_COUNTRY = "Country, region, or territory not supported"
_NO_MODEL = "The model `{model}` does not exist or you do not have access to it."
_RATE_LIMIT = (
    "Rate limit reached for {model} in organization org-mock on requests per min (RPM): "
    "Limit 500, Used 500, Requested 1. Please try again in {wait}."
)
_QUOTA = (
    "You exceeded your current quota, please check your plan and billing details. For more information on this error, "
    "read the docs: https://platform.openai.com/docs/guides/error-codes/api-errors."
)
_CREDIT = (
    "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase "
    "credits."
)
_HELP = "You can retry your request, or contact us through our help center at help.openai.com if"
_SERVER = f"The server had an error processing your request. Sorry about that! {_HELP} you keep seeing this error."
_BUSY = f"That model is currently overloaded with other requests. {_HELP} the error persists."

_OPENAI: dict[int, tuple[str, str | None, str]] = {
    # status: type, code, message
    400: ("invalid_request_error", "invalid_value", "Invalid value: 'mock'."),
    401: ("invalid_request_error", "invalid_api_key", _BAD_KEY),
    403: ("invalid_request_error", "unsupported_country_region_territory", _NO_COUNTRY),
    404: ("invalid_request_error", "model_not_found", _NO_MODEL),
    408: ("timeout", "request_timeout", "Request timed out."),
    409: ("invalid_request_error", None, "The request conflicts with the current state of the resource."),
    413: ("invalid_request_error", "request_too_large", "Maximum content size limit exceeded."),
    422: ("invalid_request_error", None, "The request was well-formed but could not be followed."),
    429: ("requests", "rate_limit_exceeded", _RATE_LIMIT),
    500: ("server_error", None, _SERVER),
    503: ("server_error", None, _BUSY),
    529: ("server_error", None, "Overloaded"),
}

_ANTHROPIC: dict[int, tuple[str, str]] = {
    400: ("invalid_request_error", "messages: at least one message is required"),
    401: ("authentication_error", "invalid x-api-key"),
    403: ("permission_error", "Your API key does not have permission to use the specified resource."),
    404: ("not_found_error", "model: {model}"),
    408: ("timeout_error", "Request timed out."),
    409: ("conflict_error", "The request conflicts with the current state of the resource."),
    413: ("request_too_large", "Request exceeds the maximum size"),
    422: ("invalid_request_error", "The request was well-formed but could not be followed."),
    429: (
        "rate_limit_error",
        "This request would exceed your organization's rate limit of 50 requests per minute.",
    ),
    500: ("api_error", "Internal server error"),
    502: ("api_error", "Bad gateway"),
    503: ("api_error", "Service temporarily unavailable"),
    504: ("timeout_error", "Request timed out. Please try again, or use streaming for long requests."),
    529: ("overloaded_error", "Overloaded"),
}

# Cloudflare is in front of both providers; for openai it is what responds with 502 and 504.
_CLOUDFLARE = {502: ("cf_bad_gateway", "Bad gateway."), 504: ("cf_gateway_timeout", "Gateway time-out.")}


def error_reply(dialect: MockDialect, status: int, model: str, retry_after: str | None = None) -> MockResponse:
    """The dialect's response for one of `faults.STATUSES`; `retry_after` is sent as it is."""
    headers = {} if retry_after is None else {"retry-after": retry_after}
    if status == 429:
        headers |= _rate_limit_headers(dialect, 500, 0.12 if retry_after is None else _seconds(retry_after))
    if dialect == "anthropic" and status in (429, 529):
        headers["x-should-retry"] = "true"
    return MockResponse(status, msgspec.json.encode(error_body(dialect, status, model)), headers)


def quota_reply(dialect: MockDialect) -> MockResponse:
    """The response for a spent quota or credit: 429 for openai, 400 for anthropic; without a hint when to retry."""
    if dialect == "anthropic":
        return MockResponse(400, msgspec.json.encode(_anthropic("invalid_request_error", _CREDIT)))
    return MockResponse(429, msgspec.json.encode(_openai("insufficient_quota", "insufficient_quota", _QUOTA)))


def limit_reply(
    dialect: MockDialect, model: str, rate_per_s: float, wait_s: float, *, is_bare: bool = False
) -> MockResponse:
    """429 from a bucket of `rate_per_s` that has room again in `wait_s` seconds; a bare one does not say so."""
    if is_bare:
        body = error_body(dialect, 429, model)
        body["error"]["message"] = body["error"]["message"].partition(" Please try again")[0]
        return MockResponse(429, msgspec.json.encode(body))
    headers = {"retry-after": str(math.ceil(wait_s))} | _rate_limit_headers(
        dialect, max(1, round(rate_per_s * 60)), wait_s
    )
    if dialect == "openai":
        headers["retry-after-ms"] = str(math.ceil(wait_s * 1000))
    return MockResponse(429, msgspec.json.encode(error_body(dialect, 429, model, wait_s)), headers)


def refusal_reply(dialect: MockDialect, status: int, message: str) -> MockResponse:
    """An error about the request itself: 400 for an invalid one, 404 for an unknown path."""
    if dialect == "anthropic":
        body = _anthropic("not_found_error" if status == 404 else "invalid_request_error", message)
    else:
        body = _openai("invalid_request_error", None, message)
    return MockResponse(status, msgspec.json.encode(body))


def error_body(dialect: MockDialect, status: int, model: str, wait_s: float = 0.12) -> dict[str, Any]:
    """The JSON object of an error response; an in-band error carries the same object."""
    if dialect == "anthropic":
        kind, message = _ANTHROPIC[status]
        return _anthropic(kind, message.format(model=model))
    if status in _CLOUDFLARE:
        kind, message = _CLOUDFLARE[status]
        return {"error": {"code": status, "message": message, "param": None, "type": kind}}
    kind, code, message = _OPENAI[status]
    return _openai(kind, code, message.format(model=model, wait=_go_duration(wait_s)))


def _openai(kind: str, code: str | None, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _anthropic(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _rate_limit_headers(dialect: MockDialect, limit: int, wait_s: float) -> dict[str, str]:
    if dialect == "anthropic":
        reset_at = datetime.now(UTC) + timedelta(seconds=wait_s)
        return {
            "anthropic-ratelimit-requests-limit": str(limit),
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": reset_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
    return {
        "x-ratelimit-limit-requests": str(limit),
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": _go_duration(wait_s),
    }


def _go_duration(seconds: float) -> str:
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:.3g}s" if minutes else f"{rest:.4g}s"


def _seconds(retry_after: str) -> float:
    """Seconds of a Retry-After text, which may be anything; 1 for the other headers if it is invalid."""
    try:
        seconds = float(retry_after)
    except ValueError:
        return 1.0
    return seconds if 0 <= seconds <= 86_400 else 1.0
