"""Finds errors inside a response that began as a success: in a 200 body, an event of a stream, or a stream's end.

Recognizes errors in every dialect, and what only looks like one: `"error": null`, usage trailers, pings, comments,
empty first chunks, text about errors. `resilience.classification.classify` decides what the error means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llm_guard.outcome import FailureKind, Signal
from llm_guard.resilience.classification.error_codes import plain_code
from llm_guard.resilience.classification.vocabulary.engines import SELF_HOSTED
from llm_guard.resilience.classification.vocabulary.finishes import KIND_OF_FINISH

_LINE = re.compile(r"\r\n|\n|\r")
"""Line ends of an event stream: text may have other characters that Python treats as line ends."""
_FIELD = re.compile(r"(data|event|error|id|retry)?:")
_FRAME = re.compile(
    r":message-type=(?:exception|error)\b.{0,200}?(?::exception-type|:error-code)=(\w{1,80})\s*(.*)", re.DOTALL
)
_DECODED_FRAME = re.compile(r":message-type=event\b[^{]{0,200}")
_BROKEN = re.compile(r"<(\w*(?:Error|Exception|Timeout|Disconnected)\b.{0,500})>\s*", re.DOTALL)
_BOUNDARY = re.compile(r"(?:\r\n|\n|\r){2,}")
_RESULTS = (
    "choices",
    "content",
    "candidates",
    "output",
    "data",
    "embeddings",
    "results",
    "message",
    "object",
    "generations",
)
_OWN_REASONS = ("finish_reason", "finishReason", "stop_reason", "stopReason")
_QUOTED_REASONS = ("native_finish_reason",)
"""Reasons of the provider behind OpenRouter, which may report `stop` itself. Only those of a broken answer count."""
_CUT = "<EOF>"


@dataclass(frozen=True, slots=True)
class InBandError:
    """An error: its payload, to be read as an error body, or its kind if nothing else is known."""

    payload: object = None
    kind: FailureKind | None = None
    why: str = ""
    is_transport: bool = False
    """True if the payload is the HTTP client's message about a broken connection."""


def error_in(value: object) -> InBandError | None:
    """Returns the error in one parsed event or one parsed 200 body; None: there is none."""
    for item in value[:8] if isinstance(value, list) else (value,):
        if isinstance(item, dict) and (found := _reported(item) or _stopped(item)) is not None:
            return found
    return None


def error_in_answer(body: bytes | str, status: int, *, family: str = "") -> InBandError | None:
    """Returns the error in a whole response with a success status, or None."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    if not text.strip():
        if status == 204:
            return None
        # DeepSeek keeps a queued call alive with blank lines, for up to ten minutes.
        kind = FailureKind.TIMEOUT if text else FailureKind.MALFORMED
        return InBandError(kind=kind, why="blank lines instead of a response" if text else "an empty response")
    text = text.strip()
    if text.startswith(("data:", "event:", ":")):
        return error_in_events(_BOUNDARY.split(text), family=family)
    if text[0] not in "{[":
        return (
            InBandError(kind=FailureKind.MALFORMED, why="an HTML page instead of a response")
            if text[0] == "<"
            else InBandError(text)
        )
    try:
        return error_in(json.loads(text))
    except ValueError:
        return InBandError(kind=FailureKind.TRUNCATED, why="the JSON of the response was cut off")
    except RecursionError:
        return None


def error_in_events(events: Iterable[str], *, family: str = "") -> InBandError | None:
    """Returns the error in a stream, given event by event as received; `<EOF>` stands for the end of the connection."""
    stream = _Stream()
    for event in events:
        found = stream.read(event)
        if found is not None:
            return found
    return stream.verdict(family)


def _reported(value: dict[str, Any]) -> InBandError | None:
    kind = value.get("type")
    response = value.get("response")
    if kind == "response.failed" and isinstance(response, dict):
        return InBandError(response.get("error") or response.get("status_details") or {"type": "server_error"})
    if value.get("error") or value.get("object") == "error" or kind == "error":
        return InBandError(value)
    choices = value.get("choices")
    for choice in choices[:8] if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("error"):
            return InBandError(choice["error"])
    base = value.get("base_resp")
    if isinstance(base, dict) and base.get("status_code") not in (0, None):
        return InBandError({"code": f"minimax{base['status_code']}", "message": base.get("status_msg")})
    if isinstance(response, dict) and kind is None and response.get("error"):
        return InBandError(response)
    if _is_bare_error(value):
        return InBandError(value)
    return None


def _is_bare_error(value: dict[str, Any]) -> bool:
    """Returns whether there are top-level `code` and `message`, but no field of a result (Cerebras, SiliconFlow,
    DashScope)."""
    code = value.get("code", value.get("error_code", value.get("errors")))
    text = value.get("message", value.get("msg", value.get("error_msg", value.get("errors"))))
    if code in (None, 0, 200, "0", "200", "success", "ok", [], "") or not text or isinstance(text, dict):
        return False
    return not any(value.get(name) for name in _RESULTS if name != "message")


def _stopped(value: dict[str, Any]) -> InBandError | None:
    """Returns an error for a finish reason that is not a proper end."""
    for reason in _finish_reasons(value, _OWN_REASONS):
        kind = KIND_OF_FINISH.get(plain_code(reason))
        if kind is not None:
            return InBandError(kind=kind, why=f"finish reason {reason[:40]}")
    for reason in _finish_reasons(value, _QUOTED_REASONS):
        kind = KIND_OF_FINISH.get(plain_code(reason))
        if kind is not None and kind.signal is Signal.UNHEALTHY:
            return InBandError(kind=kind, why=f"finish reason {reason[:40]} of the provider behind it")
    feedback = value.get("promptFeedback")
    if isinstance(feedback, dict) and feedback.get("blockReason"):
        return InBandError(kind=FailureKind.CONTENT_POLICY, why="promptFeedback.blockReason")
    response = value.get("response")
    if value.get("type") == "response.incomplete" and isinstance(response, dict):
        details = response.get("incomplete_details")
        if isinstance(details, dict) and details.get("reason") == "content_filter":
            return InBandError(kind=FailureKind.CONTENT_POLICY, why="incomplete: content_filter")
    return None


def _finish_reasons(value: dict[str, Any], names: tuple[str, ...]) -> Iterable[str]:
    holders: list[object] = [value, value.get("delta"), value.get("messageStop"), value.get("output")]
    for name in ("choices", "candidates"):
        listed = value.get(name)
        holders += listed[:8] if isinstance(listed, list) else ()
    for holder in holders:
        if isinstance(holder, dict):
            for name in names:
                reason = holder.get(name)
                if isinstance(reason, str) and reason:
                    yield reason


class _Stream:
    """State of a stream as read so far."""

    def __init__(self) -> None:
        self._has_ended = False
        self._has_content = False
        self._is_cut = False
        self._events = 0
        self._has_data = False
        self._empty_completion = False

    def read(self, event: str) -> InBandError | None:
        """Returns the error in one event, or None."""
        if event == _CUT:
            self._is_cut = True
            return None
        self._events += 1
        frame = _FRAME.search(event[:4000])
        if frame:
            return InBandError(_frame_payload(frame[1], frame[2]))
        if broken := _BROKEN.fullmatch(event[:600]):
            return InBandError(broken[1], is_transport=True)
        name, data = _fields(_DECODED_FRAME.sub("", event, count=1) if event.startswith(":m") else event)
        if not data:
            return None
        self._has_data = True
        if data == "[DONE]":
            self._has_ended = True
            return None
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return self._text(name, data)
        found = error_in(value)
        if found is None and name == "error":
            found = InBandError(value)
        if found is None and isinstance(value, dict):
            self._note(value)
        return found

    def verdict(self, family: str) -> InBandError | None:
        """Returns the error that follows from the stream's end, or None."""
        if self._is_cut and self._events and not self._has_data:
            return InBandError(kind=FailureKind.TIMEOUT, why="comments and no event")
        if self._is_cut and not self._has_ended:
            return InBandError(kind=FailureKind.TRUNCATED, why="the stream ended without its terminal event")
        if not self._events:
            return InBandError(kind=FailureKind.MALFORMED, why="an empty stream")
        if family in SELF_HOSTED and self._has_ended and not self._has_content and self._empty_completion:
            # LM Studio on overflow of a GGUF model's context window: a well-formed stream without any content.
            return InBandError(kind=FailureKind.DEPLOYMENT_CONTEXT, why="a stream without content")
        return None

    def _text(self, name: str, data: str) -> InBandError | None:
        """Returns an error for data that is not JSON, if its event is an error or it stands in place of an event."""
        if name in ("error", "raw"):
            return InBandError(data)
        return None

    def _note(self, value: dict[str, Any]) -> None:
        kind = value.get("type")
        ends = kind in ("message_stop", "response.completed", "response.incomplete", "message-end")
        ends = ends or value.get("done") is True or "messageStop" in value
        self._has_ended |= ends or any(_finish_reasons(value, _OWN_REASONS))
        usage = value.get("usage")
        if isinstance(usage, dict) and usage.get("completion_tokens") == 0:
            self._empty_completion = True
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            delta = choice.get("delta") if isinstance(choice, dict) else None
            if isinstance(delta, dict) and any(content for key, content in delta.items() if key != "role"):
                self._has_content = True


def _frame_payload(exception: str, rest: str) -> dict[str, Any]:
    try:
        payload = json.loads(rest)
    except (ValueError, RecursionError):
        payload = {"message": rest.strip()}
    return {**payload, "__type": exception} if isinstance(payload, dict) else {"__type": exception}


def _fields(event: str) -> tuple[str, str]:
    """Returns an event's name and data. A line that is not a field makes the whole event data (NDJSON, a bare body)."""
    name = ""
    data: list[str] = []
    for line in _LINE.split(event):
        field = _FIELD.match(line)
        if field is None:
            if line.strip():
                text = event.strip()
                return ("raw" if not data else name), text
            continue
        value = line[field.end() :].removeprefix(" ")
        if field[1] == "data":
            data.append(value)
        elif field[1] == "event":
            name = value.strip()
        elif field[1] == "error":
            name = "error"  # llama.cpp before 2025
            data.append(value)
    return name, "\n".join(data).strip()
