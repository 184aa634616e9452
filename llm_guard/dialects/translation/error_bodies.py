"""Errors of one dialect in the format of the other, so that the client's SDK raises the matching exception."""

from __future__ import annotations

from typing import NamedTuple

from llm_guard.dialects import DialectName
from llm_guard.dialects.sse import dict_of
from llm_guard.dialects.translation.canonical import JsonObject
from llm_guard.dialects.translation.wire_json import encode, value_of

_MOST_TEXT = 2000
"""Characters of an error that is not JSON that the client gets."""
_ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 408: "timeout_error", 409: "conflict_error", 413: "request_too_large",
    422: "invalid_request_error", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
    529: "overloaded_error",
}  # fmt: skip
_OPENAI_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 402: "insufficient_quota", 403: "permission_error",
    404: "invalid_request_error", 409: "conflict_error", 413: "invalid_request_error", 422: "invalid_request_error",
    429: "rate_limit_error", 503: "service_unavailable_error", 504: "timeout_error",
}  # fmt: skip
_OVERLOADED = 529
"""Anthropic's status; SDKs of OpenAI know 503."""
_REQUEST_IDS = {"openai": "x-request-id", "anthropic": "request-id"}
_OF_ONE_PROVIDER = ("anthropic-", "openai-", "x-ratelimit-", "cf-", "set-cookie", "strict-transport-security")
_DESCRIBE_BODY = frozenset({
    "content-type", "content-encoding", "content-length", "content-digest", "content-md5", "digest", "etag",
    "repr-digest", "transfer-encoding",
})  # fmt: skip


class TranslatedError(NamedTuple):
    status: int
    body: bytes


def message_in(body: bytes) -> str:
    """Returns the message of any provider's error; "" if there is none."""
    error = _error_in(value_of(body))
    return _text(error.get("message")) or _text(error.get("Message"))  # Amazon's services differ


def translated_error(status: int, body: bytes, client: DialectName, request_id: str) -> TranslatedError:
    """Returns an error response of the other dialect for a client of the dialect `client`."""
    error = _error_in(value_of(body))
    message = message_in(body) or body.decode("utf-8", "replace")[:_MOST_TEXT].strip() or f"status {status}"
    if client == "openai":
        status = 503 if status == _OVERLOADED else status
        kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        code = error.get("code") if isinstance(error.get("code"), str) else error.get("type")
        described: JsonObject = {
            "message": message,
            "type": kind,
            "param": error.get("param"),
            "code": _text(code) or None,
        }
        return TranslatedError(status, encode({"error": described, "request_id": request_id}))
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    whole = {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
    return TranslatedError(status, encode(whole))


def translated_error_event(data: bytes, status: int, client: DialectName, request_id: str) -> bytes:
    """Returns an error that came inside a stream as an event on which the client's SDK raises. `status` is the one that
    the error would have had as a response."""
    status, body = translated_error(status, data, client, request_id)
    if client != "openai":
        return b"event: error\ndata: " + body + b"\n\n"
    error = dict_of(value_of(body)).get("error")
    event = {"type": "error", **dict_of(error), "error": error}
    return b"event: error\ndata: " + encode(event) + b"\n\n"


def translated_headers(headers: tuple[tuple[str, str], ...], client: DialectName) -> tuple[tuple[str, str], ...]:
    """Returns the headers that a client gets of a response of the other dialect: without those that describe the
    original body or belong to one provider, and with the request id under its own name."""
    kept = []
    for name, value in headers:
        lower = name.lower()
        if lower in _REQUEST_IDS.values():
            kept.append((_REQUEST_IDS[client], value))
        elif lower not in _DESCRIBE_BODY and not lower.startswith(_OF_ONE_PROVIDER):
            kept.append((name, value))
    return tuple(kept)


def _error_in(body: object) -> JsonObject:
    """Returns the error object of any provider's body."""
    fields = dict_of(body[0] if isinstance(body, list) and body else body)  # Google's streams are lists
    error = fields.get("error")
    if isinstance(error, dict):
        return error
    if isinstance(error, str):
        return {"message": error}
    return fields


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
