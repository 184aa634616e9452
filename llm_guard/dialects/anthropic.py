"""Anthropic's wire format: paths, headers, the Messages events and the shape of errors (Anthropic API description;
errors and streaming pages).
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from llm_guard.dialects.event_inspection import KEEP_ALIVE, has_content
from llm_guard.dialects.prefill import BEGINNING, QUESTION, QUESTION_TOKENS
from llm_guard.dialects.response_schemas import Items, ResponseSchema, resource
from llm_guard.dialects.resume.messages import MessagesTranscript
from llm_guard.dialects.resume.transcript import Prefill, Transcript
from llm_guard.dialects.sse import (
    FILLER,
    MALFORMED,
    NOTHING,
    PROGRESS,
    TOKEN,
    Mark,
    SseEvent,
    StreamReader,
    Usage,
    count_of,
    dict_of,
    list_of,
    object_in,
)
from llm_guard.outcome import Refusal

OWN_PATHS: tuple[str, ...] = ("/v1/messages", "/v1/complete")
DEFAULT_PATH = "/v1/messages"
RESPONSES_PATH = None
MODELS_PATH = "/v1/models"
PATH_IN_BASE_URL = ""
DEFAULT_AUTH: Literal["bearer", "x-api-key"] = "x-api-key"
REQUIRED_HEADERS: tuple[tuple[str, str], ...] = (("anthropic-version", "2023-06-01"),)
BASE_URL = "https://api.anthropic.com"
KEY_VARIABLE = "ANTHROPIC_API_KEY"
MODEL_PATTERN = "claude-*"
OVERLOADED_STATUS: int | None = 529
WHOLE_LIST = "limit=1000"
PAGE_CURSOR = "after_id"
END_EVENT: str | None = "message_stop"
SHARED_OBJECT_TYPES = frozenset({"anthropic"})
"""Skills that Anthropic provides have this type; those of an account are `custom`."""

NEEDS_MODEL = frozenset({"/v1/messages", "/v1/messages/count_tokens", "/v1/complete"})
"""Paths where a POST without a model is an error that the gateway can report."""

_TYPE_OF_STATUS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 408: "timeout_error",
    413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 502: "api_error", 503: "overloaded_error",
    504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip
_ENDS_LATER = re.compile(rb'"stop_reason"\s*:\s*null')
_HAS_ENDED = re.compile(rb'"stop_reason"\s*:\s*"')
"""Match an event of a legacy completion; text cannot fake them, since its quotes are escaped."""
_BLOCK_EDGES = frozenset({"content_block_start", "content_block_stop"})

_CONTENT = Items({"type": "text"}, at_least=0, needed={"text": "text", "tool_use": "name"})
ANSWERS = {
    ("POST", "/v1/messages"): ResponseSchema("a message", {"role": "text", "content": _CONTENT}, "required"),
    ("POST", "/v1/messages/count_tokens"): ResponseSchema("a token count", {"input_tokens": "count"}),
    ("POST", "/v1/complete"): ResponseSchema("a completion", {"completion": "text"}, "required"),
    ("POST", "/v1/messages/batches"): resource("a message batch"),
    ("POST", "/v1/files"): resource("a file"),
}
"""Expected shapes of the validated responses, by method and path."""


def is_marked_by(headers: Container[str]) -> bool:
    """True if headers show that a request is for Anthropic. Newer SDKs send their key as a bearer token, always with
    `anthropic-version`; raw callers of shared paths such as `/v1/models` may send only `x-api-key`."""
    return "anthropic-version" in headers or ("x-api-key" in headers and "authorization" not in headers)


def probe_body(model: str, family: str) -> dict[str, Any]:
    """A message of one token. `family` is unused: the field for the limit is the same everywhere."""
    del family
    return {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}


def prefill_body(model: str, family: str, prefill: Prefill) -> dict[str, Any]:
    """A message of a few tokens that continues a given beginning. `prefill` is unused: it has one form here."""
    del prefill
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": BEGINNING}]
    return {**probe_body(model, family), "max_tokens": QUESTION_TOKENS, "messages": messages}


def answer_text(body: dict[str, Any]) -> str:
    """The text of a message's first block; "" if it has none."""
    first = next(iter(list_of(body.get("content"))), None)
    text = dict_of(first).get("text")
    return text if isinstance(text, str) else ""


def transcript(path: str) -> Transcript | None:
    """Creates the transcript for a stream that answers `path`; None if streams of this path cannot be resumed."""
    return MessagesTranscript() if path == "/v1/messages" else None


def stream_reader(path: str, choices: int, *, is_lenient: bool = False) -> StreamReader:  # noqa: ARG001  # a dialect's signature
    """Creates the reader for a stream that answers `path`. `choices` is unused: a message has one choice."""
    del choices
    if path.startswith("/v1/messages"):
        return MessagesReader()
    return EventsReader(expects_progress=path.startswith("/v1/complete"))


class MessagesReader:
    """Reads Messages streams: `message_stop` ends a stream; `message_start`, block headers and pings are not tokens."""

    expects_json = True
    heeds_done = False
    expects_progress = True

    def read(self, event: SseEvent) -> Mark:
        if event.name == "error":
            return Mark(error=event.data, is_heard=True)
        body = object_in(event)
        if body is None:
            return MALFORMED if event.is_whole else TOKEN
        kind = event.name or body.get("type")
        if body.get("type") == "error":
            return Mark(error=event.data)
        if not isinstance(kind, str):
            return NOTHING
        if KEEP_ALIVE.fullmatch(kind) or _is_empty(body):
            return FILLER
        if kind == "message_start":
            message = body.get("message")
            return Mark(usage=usage_in(message) if isinstance(message, dict) else None)
        if kind in _BLOCK_EDGES:
            return PROGRESS
        delta = body.get("delta")
        # Without a reason to stop it is a count of tokens, which a server may repeat while the model hangs.
        is_count = kind == "message_delta" and isinstance(delta, dict) and not has_content(delta)
        is_token = bool(event.data) and not is_count
        usage = usage_in(body) if kind.startswith("message_") else None
        return Mark(is_token=is_token, is_progress=is_token, is_end=kind == "message_stop", usage=usage)

    def is_dull(self, block: bytes) -> bool:
        return block.find(b"message_") < 0 and block.find(b"error") < 0

    def ends_unmarked(self) -> bool:
        return False

    def missing_end(self) -> bytes:
        return b""


class EventsReader:
    """Reads other streams (legacy completions, agent sessions): any event with data is useful. A completion with events
    that say `"stop_reason": null` must end with one that has a stop reason; the end of sessions is not documented."""

    expects_json = False
    heeds_done = False

    def __init__(self, *, expects_progress: bool) -> None:
        """`expects_progress`: false for the events of a session, which may wait for a person."""
        self.expects_progress = expects_progress
        self._owes_end = False

    def read(self, event: SseEvent) -> Mark:
        if event.name == "error":
            return Mark(error=event.data, is_heard=True)
        if KEEP_ALIVE.fullmatch(event.name):
            return FILLER
        if _HAS_ENDED.search(event.data) is not None:
            self._owes_end = False
        elif self.expects_progress and _ENDS_LATER.search(event.data) is not None:
            self._owes_end = True
        return TOKEN if event.data else NOTHING

    def is_dull(self, block: bytes) -> bool:
        return b"error" not in block and _HAS_ENDED.search(block) is None

    def ends_unmarked(self) -> bool:
        return not self._owes_end

    def missing_end(self) -> bytes:
        return b""


def _is_empty(body: dict[str, Any]) -> bool:
    """True for a delta of a content block that adds nothing to it."""
    delta = body.get("delta")
    return body.get("type") == "content_block_delta" and isinstance(delta, dict) and not has_content(delta)


def usage_in(body: dict[str, Any]) -> Usage | None:
    """Token counts of a message or a `message_delta`."""
    usage = body.get("usage")
    return usage_of(usage) if type(usage) is dict else None


def usage_of(usage: dict[str, Any]) -> Usage:
    """Token counts in a member `usage`."""
    read = count_of(usage.get("cache_read_input_tokens"))
    return Usage(
        count_of(usage.get("input_tokens")),
        count_of(usage.get("output_tokens")),
        read,
        (read or 0) + (count_of(usage.get("cache_creation_input_tokens")) or 0) or None,
    )


def refusal_body(refusal: Refusal, request_id: str) -> dict[str, Any]:
    """An error in Anthropic's format, so that the official SDKs raise the matching exception."""
    error = {"type": _TYPE_OF_STATUS.get(refusal.status, "invalid_request_error"), "message": refusal.message}
    return {"type": "error", "error": error, "request_id": request_id}


def limit_headers(what: str, allowed: str, left: str, reset_s: float, wall: float) -> tuple[tuple[str, str], ...]:
    """Rate-limit headers under Anthropic's names. `wall`: now, in seconds since the epoch."""
    reset = datetime.fromtimestamp(wall + reset_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return (
        (f"anthropic-ratelimit-{what}-limit", allowed),
        (f"anthropic-ratelimit-{what}-remaining", left),
        (f"anthropic-ratelimit-{what}-reset", reset),
    )


def model_entry(name: str) -> dict[str, Any]:
    """Returns an entry of a list of models, for a model of which only the name is known."""
    return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def model_list(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns a complete list of models."""
    ids = [entry["id"] for entry in entries]
    ends = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return {"data": [*entries], "has_more": False, **ends}


def error_event(refusal: Refusal, request_id: str) -> bytes:
    """An `error` event, on which the official SDKs raise."""
    return b"event: error\ndata: " + json.dumps(refusal_body(refusal, request_id)).encode() + b"\n\n"
