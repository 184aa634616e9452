"""What OpenAI's bytes mean, and how the gateway speaks to an OpenAI client.

Owns the event formats of chat, completions, Responses and the other streams, and the shape of errors.
Formats: the OpenAI API description, and what compatible servers (vLLM, SGLang, llama.cpp, OpenRouter) really send.
"""

from __future__ import annotations

import json
import re
from typing import Any

from llm_guard.dialect.sse import END, MALFORMED, NOTHING, TOKEN, Event, Mark, Reader, Usage
from llm_guard.outcome import Refusal

NEEDS_MODEL = frozenset({
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/audio/speech",
    "/v1/audio/transcriptions", "/v1/audio/translations",
})  # fmt: skip
"""POST here without a model is an error that the gateway can name; elsewhere the model is optional."""

_TYPE_OF_STATUS = {
    401: "authentication_error", 403: "permission_error", 429: "rate_limit_error",
    500: "server_error", 502: "server_error", 503: "service_unavailable_error", 504: "timeout_error",
}  # fmt: skip
_DONE = b"[DONE]"
# Only what is not empty matters. Text cannot fake these: its quotes are escaped.
_TELLING_IN_CHAT = re.compile(rb'"(?:finish_reason|usage|error)"(?!: ?(?:null|""))')
_LAST_OF_RESPONSE = re.compile(rb"response\.(?:completed|failed|incomplete)")
# The generation was broken off by the server: OpenRouter; DeepSeek; Z.ai; vLLM and SGLang.
_BROKEN_OFF = ("error", "insufficient_system_resource", "network_error", "abort")
_TYPE_IN_EVENT = re.compile(rb'"type"\s*:\s*"([a-z_.]+)"')


def stream_reader(path: str, choices: int) -> Reader:
    """The reader for a stream that answers `path`; `choices` is the request's `n`, at least 1."""
    if path.endswith("/completions"):
        return ChatReader(choices)
    if "/responses" in path:
        return ResponsesReader()
    return OtherReader()


class ChatReader:
    """Chat and legacy completions: a finish_reason for every choice is the end; `[DONE]` alone proves nothing
    (vLLM sends one after an error)."""

    expects_json = True
    heeds_done = True

    def __init__(self, choices: int) -> None:
        self._awaited = choices
        self._finished: set[int] = set()
        self._is_done = False

    def read(self, event: Event) -> Mark:
        if event.data == _DONE:
            self._is_done = True
            return END if self._finished else NOTHING  # a server may answer fewer choices than `n`
        chunk = _object(event)
        if chunk is None:
            return _unreadable(event, MALFORMED if event.is_whole else TOKEN)
        choices = [choice for choice in _list(chunk.get("choices")) if isinstance(choice, dict)]
        if (error := _error(event, chunk, choices)) is not None:
            return Mark(error=error, is_heard=bool(chunk.get("error")))
        for choice in choices:
            if choice.get("finish_reason"):  # it is "" in every chunk of some servers behind Model Studio
                index = choice.get("index")
                if not self._has_finished():  # a server could go on counting for ever
                    self._finished.add(index if isinstance(index, int) else 0)
        return Mark(
            is_token=any(_says_something(choice) for choice in choices),
            is_end=self._has_finished(),
            usage=usage_in(chunk) or usage_in(_dict(chunk.get("x_groq"))),
        )

    def is_dull(self, block: bytes) -> bool:
        return _TELLING_IN_CHAT.search(block) is None

    def ends_unmarked(self) -> bool:
        return False

    def missing_end(self) -> bytes:
        return b"data: [DONE]\n\n" if self._has_finished() and not self._is_done else b""

    def _has_finished(self) -> bool:
        return len(self._finished) >= self._awaited


class ResponsesReader:
    """The Responses API: `response.completed`, `.failed` and `.incomplete` end a stream."""

    expects_json = True
    heeds_done = True

    def read(self, event: Event) -> Mark:
        if not event.data or event.data == _DONE:
            return NOTHING
        body = _object(event) if event.is_whole else {}
        if body is None:
            return _unreadable(event, MALFORMED)
        kind = _kind(event, body)
        if kind in ("error", "response.failed") or body.get("error"):
            # A failed response is a documented end, which clients look for.
            return Mark(error=event.data, is_heard=bool(body.get("error")) or kind == "response.failed")
        if kind in ("response.completed", "response.incomplete"):
            return Mark(is_token=True, is_end=True, usage=usage_in(_dict(body.get("response"))))
        return TOKEN if kind.endswith((".delta", ".done", ".partial_image")) else NOTHING

    def is_dull(self, block: bytes) -> bool:
        return block.find(b"error") < 0 and _LAST_OF_RESPONSE.search(block) is None

    def ends_unmarked(self) -> bool:
        return False

    def missing_end(self) -> bytes:
        return b""


class OtherReader:
    """Speech, transcription, images, Assistants runs: any event with data is useful; no common end is documented."""

    expects_json = False
    heeds_done = True

    def read(self, event: Event) -> Mark:
        if event.data == _DONE:
            return END
        chunk = _object(event) if event.is_whole else {}
        if chunk is None:
            return _unreadable(event, TOKEN)
        if (error := _error(event, chunk, [])) is not None and not _is_of_session(chunk):
            return Mark(error=error, is_heard=bool(chunk.get("error")))
        return Mark(is_token=bool(event.data), usage=usage_in(chunk))

    def is_dull(self, block: bytes) -> bool:
        return b"error" not in block and b"usage" not in block and _DONE not in block

    def ends_unmarked(self) -> bool:
        return True

    def missing_end(self) -> bytes:
        return b""


def usage_in(body: dict[str, Any]) -> Usage | None:
    """The tokens counted in a chat, completion, embedding or Responses object."""
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return None
    return Usage(
        _count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        _count(usage.get("completion_tokens", usage.get("output_tokens"))),
    )


def refusal_body(refusal: Refusal, request_id: str) -> dict[str, Any]:
    """An error as OpenAI writes it, so that the official SDKs raise the matching exception."""
    return {
        "error": {
            "message": refusal.message,
            "type": _TYPE_OF_STATUS.get(refusal.status, "invalid_request_error"),
            "param": refusal.param,
            "code": refusal.code,
        },
        "request_id": request_id,
    }


def error_event(refusal: Refusal, request_id: str) -> bytes:
    """An error event that makes the official SDKs raise, in a chat as in a Responses stream.

    The nested `error` is what both raise on; the flat fields are those of a Responses `error` event.
    """
    error = refusal_body(refusal, request_id)["error"]
    event = {"type": "error", "code": refusal.code, "message": refusal.message, "param": None, "error": error}
    return b"event: error\ndata: " + json.dumps(event).encode() + b"\n\n"


def _says_something(choice: dict[str, Any]) -> bool:
    if choice.get("finish_reason") or choice.get("text"):
        return True
    delta = _dict(choice.get("delta"))
    return any(value for name, value in delta.items() if name != "role")


def _error(event: Event, chunk: dict[str, Any], choices: list[dict[str, Any]]) -> bytes | None:
    """The event's data when it is an in-band error. `"error": null` is normal."""
    if chunk.get("error") or event.name == "error" or "error" in (chunk.get("type"), chunk.get("object")):
        return event.data  # vLLM has also sent the error object bare: {"object": "error", "message": ...}
    return event.data if any(choice.get("finish_reason") in _BROKEN_OFF for choice in choices) else None


def _is_of_session(chunk: dict[str, Any]) -> bool:
    """Whether an event is from the log of an agent session. Such a stream reports the session's errors as events, which
    the official SDK passes to its caller (`stream_mode="events"`); it goes on after them."""
    return isinstance(chunk.get("session_id"), str)


def _unreadable(event: Event, otherwise: Mark) -> Mark:
    """An event that is no JSON object is still an error where its name says so."""
    return Mark(error=event.data) if event.name == "error" else otherwise


def _kind(event: Event, body: dict[str, Any]) -> str:
    kind = event.name or body.get("type")
    if isinstance(kind, str):
        return kind
    found = _TYPE_IN_EVENT.search(event.data[:4096])
    return found[1].decode() if found else ""


def _object(event: Event) -> dict[str, Any] | None:
    """The event's data as an object; {} for an event without data; None when it is no JSON object."""
    if not event.data:
        return {}
    try:
        value = json.loads(event.data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: object) -> int | None:
    # A number of thousands of digits is none that a metric could count.
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None
