"""OpenAI's other streams: speech, transcription, images, Assistants runs, and how each of them ends.

Also has the helpers that all of OpenAI's formats share. Chat, completions and the Responses API are in
`dialects.openai`.
"""

from __future__ import annotations

import re
from typing import Any

from llm_guard.dialects.event_inspection import KEEP_ALIVE, has_content
from llm_guard.dialects.event_json import count_of, dict_of, list_of, object_in
from llm_guard.dialects.response_schemas import has_broken_off
from llm_guard.dialects.sse import END, FILLER, NOTHING, TOKEN, Mark, SseEvent, Usage

DONE = b"[DONE]"

_TYPE_IN_EVENT = re.compile(rb'"type"\s*:\s*"([a-z_.]+)"')
_FAMILIES = ("transcript.text.", "speech.audio.", "image_generation.", "image_edit.", "thread.")
"""Prefixes of event names in streams with a documented end."""
_ENDS = frozenset({
    "transcript.text.done", "speech.audio.done", "image_generation.completed", "image_edit.completed",
})  # fmt: skip
"""Events that end a stream. An Assistants run ends with `[DONE]`."""
_TELLING = re.compile(rb'error|usage|\[DONE\]|\.done|\.completed|"finish_reason"(?!: ?null)')


class OtherReader:
    """Reads other streams: any event with data is useful. A stream with a documented end must show it; others may end
    anywhere."""

    expects_json = False
    heeds_done = True
    expects_progress = True

    def __init__(self, *, is_lenient: bool = False) -> None:
        """`is_lenient`: no stream needs an end."""
        self._is_lenient = is_lenient
        self._has_begun = False
        self._owes_end = False

    def read(self, event: SseEvent) -> Mark:
        if event.data == DONE:
            return END
        chunk = object_in(event) if event.is_whole else {}
        if chunk is None:
            self._has_begun = True
            return unreadable(event, TOKEN)
        if (error := error_of(event, chunk, [])) is not None and not _is_of_session(chunk):
            return Mark(error=error, is_heard=bool(chunk.get("error")))
        kind = kind_of(event, chunk)
        if KEEP_ALIVE.fullmatch(kind) or is_empty(chunk):
            return FILLER
        if not event.data:
            return NOTHING
        self._note_end(kind, chunk)
        return Mark(is_token=True, is_progress=True, usage=usage_in(chunk), lacks_finish=self._owes_end)

    def is_dull(self, block: bytes) -> bool:
        return _TELLING.search(block) is None

    def ends_unmarked(self) -> bool:
        return not self._owes_end

    def missing_end(self) -> bytes:
        return b""

    def _note_end(self, kind: str, chunk: dict[str, Any]) -> None:
        """Updates whether an end is missing. The first event with data shows the family; later ones matter only if they
        can be the end."""
        choices = list_of(chunk.get("choices"))  # vLLM streams transcripts in chunks like those of a chat
        if kind in _ENDS or (choices and dict_of(choices[0]).get("finish_reason")):
            self._owes_end = False
        elif not self._has_begun:
            self._owes_end = not self._is_lenient and (bool(choices) or kind.startswith(_FAMILIES))
        self._has_begun = True


def usage_in(body: dict[str, Any]) -> Usage | None:
    """Token counts of a chat, completion, embedding or Responses object."""
    usage = body.get("usage")
    return usage_of(usage) if type(usage) is dict else None


def usage_of(usage: dict[str, Any]) -> Usage:
    """Token counts in a member `usage`."""
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    return Usage(
        count_of(usage.get("prompt_tokens", usage.get("input_tokens"))),
        count_of(usage.get("completion_tokens", usage.get("output_tokens"))),
        count_of(details.get("cached_tokens")) if isinstance(details, dict) else None,
    )


def error_of(event: SseEvent, chunk: dict[str, Any], choices: list[dict[str, Any]]) -> bytes | None:
    """The event's data if it is an in-band error. `"error": null` is normal."""
    if chunk.get("error") or event.name == "error" or "error" in (chunk.get("type"), chunk.get("object")):
        return event.data  # vLLM has also sent the error object bare: {"object": "error", "message": ...}
    return event.data if any(has_broken_off(choice) for choice in choices) else None


def unreadable(event: SseEvent, otherwise: Mark) -> Mark:
    """Mark of an event that is not a JSON object: an error if its name says so, else `otherwise`."""
    return Mark(error=event.data) if event.name == "error" else otherwise


def kind_of(event: SseEvent, body: dict[str, Any]) -> str:
    """The event's name, or else the type in its data; "" without any."""
    kind = event.name or body.get("type")
    if isinstance(kind, str):
        return kind
    found = _TYPE_IN_EVENT.search(event.data[:4096])
    return found[1].decode() if found else ""


def is_empty(body: dict[str, Any]) -> bool:
    """True for a delta that adds nothing."""
    return "delta" in body and not has_content(body["delta"])


def _is_of_session(chunk: dict[str, Any]) -> bool:
    """True for an event from the log of an agent session. Such a stream reports the session's errors as events, which
    the official SDK passes to its caller (`stream_mode="events"`), and continues after them."""
    return isinstance(chunk.get("session_id"), str)
