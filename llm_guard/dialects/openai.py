"""OpenAI's wire formats: events of chat, completions, Responses and the other streams (speech, transcription, images,
Assistants runs), the shape of errors, paths and headers.

Sources: the OpenAI API description, and what compatible servers (vLLM, SGLang, llama.cpp, OpenRouter) really send.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence
from typing import Any, Literal

from llm_guard.dialects.event_inspection import KEEP_ALIVE, has_content
from llm_guard.dialects.prefill import BEGINNING, QUESTION, QUESTION_TOKENS
from llm_guard.dialects.response_schemas import Items, ResponseSchema, has_broken_off, resource
from llm_guard.dialects.resume.chat import ChatTranscript, with_beginning
from llm_guard.dialects.resume.responses import ResponsesTranscript
from llm_guard.dialects.resume.transcript import Prefill, Transcript
from llm_guard.dialects.sse import (  # fmt: skip
    END,
    FILLER,
    FOREIGN,
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


OWN_PATHS: tuple[str, ...] = (
    "/v1/chat", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/images", "/v1/audio", "/v1/moderations",
    "/v1/batches", "/v1/realtime", "/v1/uploads", "/v1/videos", "/v1/fine_tuning", "/v1/vector_stores",
)  # fmt: skip
DEFAULT_PATH, RESPONSES_PATH = "/v1/chat/completions", "/v1/responses"
MODELS_PATH = "/v1/models"
PATH_IN_BASE_URL = "/v1"
DEFAULT_AUTH: Literal["bearer", "x-api-key"] = "bearer"
REQUIRED_HEADERS: tuple[tuple[str, str], ...] = ()
BASE_URL = "https://api.openai.com/v1"
KEY_VARIABLE = "OPENAI_API_KEY"
MODEL_PATTERN = "gpt-*"
OVERLOADED_STATUS: int | None = None
WHOLE_LIST = ""
PAGE_CURSOR = "after"
END_EVENT: str | None = None
SHARED_OBJECT_TYPES = frozenset[str]()

NEEDS_MODEL = frozenset({
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/audio/speech",
    "/v1/audio/transcriptions", "/v1/audio/translations",
})  # fmt: skip
"""Paths where a POST without a model is an error that the gateway can report; elsewhere the model is optional."""

_TYPE_OF_STATUS = {
    401: "authentication_error", 403: "permission_error", 408: "timeout_error", 429: "rate_limit_error",
    500: "server_error", 502: "server_error", 503: "service_unavailable_error", 504: "timeout_error",
    529: "service_unavailable_error",
}  # fmt: skip
# Matches only values that are not empty. Text cannot fake these, since its quotes are escaped.
_TELLING_IN_CHAT = re.compile(rb'"(?:finish_reason|usage|error)"(?!: ?(?:null|""))')
_STATUS_OF_RESPONSE = frozenset({"response.created", "response.queued", "response.in_progress"})
"""Opening events of a stream; later events repeat all that they contain."""
_OTHER_CHOICE = re.compile(rb'"index"\s*:\s*[1-9]')
_MOST_CHOICES = 1024
_TEXT_IN = {"/v1/chat/completions": "delta", "/v1/completions": "text"}
"""Member of a choice that clients read. Mistral's fill-in-the-middle completions have the text in a delta."""
_LAST_OF_RESPONSE = re.compile(rb"response\.(?:completed|failed|incomplete)")

_IMAGES = ResponseSchema("an image answer", {"data": Items({}, one_of=("b64_json", "url"))}, "optional")
_TRANSCRIPT = ResponseSchema(
    "a transcript", {"text": "text"}, "optional", text_formats=frozenset({"text", "srt", "vtt"})
)  # fmt: skip
_CHOICES = Items({"message": "message"}, may_break_off=True)
"""Any number of choices: several servers ignore `n`, and some put tool calls into a choice of their own."""
_TEXTS = Items({"text": "text"}, may_break_off=True, per_input="some")
_OUTPUT = Items({"type": "text"}, at_least=0, needed={"message": "content", "function_call": "name"})
_EMBEDDINGS = Items({"embedding": "vector"}, per_input="each")
_MULTI_VECTORS = Items({"embeddings": "vector"}, per_input="each")
"""Jina's, where the request has `return_multivector`."""
_RANKS = Items({"index": "count"}, one_of=("relevance_score", "score"))
_VERDICTS = Items({}, one_of=("flagged", "categories", "category_scores"), per_input="each")
ANSWERS = {
    ("POST", "/v1/chat/completions"): ResponseSchema("a chat completion", {"choices": _CHOICES}, "required"),
    ("POST", "/v1/completions"): ResponseSchema("a completion", {"choices": _TEXTS}, "required"),
    ("POST", "/v1/responses"): ResponseSchema(
        "a response", {"id": "text", "output": _OUTPUT}, "required", carries_error=True
    ),
    ("POST", "/v1/responses/compact"): ResponseSchema("a compacted response", {"id": "text", "output": _OUTPUT}),
    ("POST", "/v1/responses/input_tokens"): ResponseSchema("a token count", {"input_tokens": "count"}),
    ("POST", "/v1/embeddings"): ResponseSchema(
        "a list of embeddings", {"data": _EMBEDDINGS}, otherwise={"data": _MULTI_VECTORS}
    ),
    # Voyage has the list in `data`; llama.cpp answers it bare, as TEI does, where the request has `texts`.
    ("POST", "/v1/rerank"): ResponseSchema(
        "a ranking", {"results": _RANKS}, otherwise={"data": _RANKS}, list_of="results"
    ),
    ("POST", "/v1/moderations"): ResponseSchema("a moderation", {"results": _VERDICTS}),
    ("POST", "/v1/images/generations"): _IMAGES,
    ("POST", "/v1/images/edits"): _IMAGES,
    ("POST", "/v1/images/variations"): _IMAGES,
    ("POST", "/v1/audio/transcriptions"): _TRANSCRIPT,
    ("POST", "/v1/audio/translations"): _TRANSCRIPT,
    ("POST", "/v1/audio/speech"): ResponseSchema("speech", {}, "any"),
    ("POST", "/v1/files"): resource("a file"),
    ("POST", "/v1/uploads"): resource("an upload"),
    ("POST", "/v1/batches"): resource("a batch"),
    ("POST", "/v1/fine_tuning/jobs"): resource("a fine-tuning job"),
    ("POST", "/v1/videos"): resource("a video"),
    ("POST", "/v1/vector_stores"): resource("a vector store"),
}
"""Expected shapes of the validated responses, by method and path."""


def is_marked_by(headers: Container[str]) -> bool:  # noqa: ARG001  # a dialect's signature
    """Always False: no header shows that a request is for OpenAI."""
    return False


def probe_body(model: str, family: str) -> dict[str, Any]:
    """A chat completion of one token. `family`: the provider's, for the name of the limit."""
    return {"model": model, token_limit_field(family): 1, "messages": [{"role": "user", "content": "hi"}]}


def token_limit_field(family: str) -> str:
    """Field for the most output tokens. OpenAI's later models refuse `max_tokens` (API reference, chat/create)."""
    return "max_completion_tokens" if family in ("openai", "azure") else "max_tokens"


def prefill_body(model: str, family: str, prefill: Prefill) -> dict[str, Any]:
    """A chat completion of a few tokens that continues a given beginning, to try `prefill`."""
    messages = [{"role": "user", "content": QUESTION}]
    asked = {**probe_body(model, family), "messages": messages, token_limit_field(family): QUESTION_TOKENS}
    return with_beginning(asked, BEGINNING, prefill)


def answer_text(body: dict[str, Any]) -> str:
    """The text of a chat completion; "" if it has none."""
    first = next(iter(list_of(body.get("choices"))), None)
    text = dict_of(dict_of(first).get("message")).get("content")
    return text if isinstance(text, str) else ""


def transcript(path: str) -> Transcript | None:
    """Creates the transcript for a stream that answers `path`; None if streams of this path cannot be resumed."""
    if path in ("/v1/chat/completions", "/v1/completions"):
        return ChatTranscript()
    return ResponsesTranscript() if path == RESPONSES_PATH else None


def stream_reader(path: str, choices: int, *, is_lenient: bool = False) -> StreamReader:
    """Creates the reader for a stream that answers `path`; `choices` is how many the request expects, 0 if unknown.
    `is_lenient`: a chat or completion may end with `[DONE]` and no finish_reason."""
    if path.endswith("/completions"):
        is_chat = path.endswith("/chat/completions")
        return ChatReader(choices, is_chat=is_chat, is_lenient=is_lenient, text_in=_TEXT_IN.get(path, ""))
    if "/responses" in path:
        return ResponsesReader()
    return OtherReader(is_lenient=is_lenient)


class ChatReader:
    """Reads chat and legacy completions: a finish_reason for every choice is the end. `[DONE]` alone proves nothing
    (vLLM sends one after an error), nor does a finish_reason while another choice has begun and not finished."""

    expects_json = True
    heeds_done = True
    expects_progress = True

    def __init__(
        self, choices: int, *, is_chat: bool = True, is_lenient: bool = False, text_in: str = ""
    ) -> None:  # fmt: skip
        """`choices`: as many as the request expects, for all prompts of a legacy completion together. 0: unknown, so
        that only `[DONE]` ends the stream. `text_in`: the member of a choice in which clients look for its text; "" for
        any."""
        self._text_in = text_in
        self._awaited = choices
        self._is_chat = is_chat
        self._is_lenient = is_lenient
        self._has_token = False
        self._can_begin = choices != 1 or not is_chat
        """True if further choices may still begin."""
        self._begun: set[int] = set()
        self._finished: set[int] = set()
        self._is_done = False

    def read(self, event: SseEvent) -> Mark:
        if event.data == DONE:
            self._is_done = True
            if not self._finished and self._has_token:
                return END if self._is_lenient else Mark(lacks_finish=True)
            # A server may return fewer choices than `n`.
            return END if self._finished and self._begun <= self._finished else NOTHING
        chunk = object_in(event)
        if chunk is None:
            return unreadable(event, MALFORMED if event.is_whole else TOKEN)
        choices = [choice for choice in list_of(chunk.get("choices")) if isinstance(choice, dict)]
        if (error := error_of(event, chunk, choices)) is not None:
            return Mark(error=error, is_heard=bool(chunk.get("error")))
        if not self._has_token and any(self._is_foreign(choice) for choice in choices):
            return FOREIGN
        begun = len(self._begun)
        for choice in choices:
            self._note_choice(choice)
        is_token = any(_says_something(choice) for choice in choices)
        self._has_token = self._has_token or is_token
        is_progress = is_token or any(_is_sampled(choice) for choice in choices)
        usage = usage_in(chunk) or usage_in(dict_of(chunk.get("x_groq")))
        if not is_progress and usage is None and 0 < begun == len(self._begun):
            return FILLER
        return Mark(is_token=is_token, is_progress=is_progress, is_end=self._has_finished(), usage=usage)

    def is_dull(self, block: bytes) -> bool:
        if self._can_begin and (self._is_chat or self._begun != {0} or _OTHER_CHOICE.search(block) is not None):
            return False
        return _TELLING_IN_CHAT.search(block) is None

    def ends_unmarked(self) -> bool:
        return False

    def missing_end(self) -> bytes:
        return b"data: [DONE]\n\n" if self._has_finished() and not self._is_done else b""

    def _is_foreign(self, choice: dict[str, Any]) -> bool:
        """True if a chunk has its text where a client of this endpoint does not look for it."""
        return bool(self._text_in) and self._text_in not in choice and ("delta" in choice or "text" in choice)

    def _note_choice(self, choice: dict[str, Any]) -> None:
        index = choice.get("index")
        index = index if isinstance(index, int) else 0
        most = self._awaited if self._is_chat else _MOST_CHOICES  # bounded: a server could go on counting for ever
        if len(self._begun) < most:
            self._begun.add(index)
            self._can_begin = self._can_begin and len(self._begun) < most
        # It is "" in every chunk of some servers behind Model Studio.
        if choice.get("finish_reason") and len(self._finished) < most:
            self._finished.add(index)

    def _has_finished(self) -> bool:
        if not self._awaited or len(self._finished) < self._awaited:
            return False
        return self._begun <= self._finished or (self._is_chat and self._awaited == 1)


class ResponsesReader:
    """Reads the Responses API: `response.completed`, `.failed` and `.incomplete` end a stream."""

    expects_json = True
    heeds_done = True
    expects_progress = True

    def read(self, event: SseEvent) -> Mark:
        if not event.data or event.data == DONE:
            return NOTHING
        body = object_in(event) if event.is_whole else {}
        if body is None:
            return unreadable(event, MALFORMED)
        kind = kind_of(event, body)
        if kind in ("error", "response.failed") or body.get("error"):
            # A failed response is a documented end, which clients look for.
            return Mark(error=event.data, is_heard=bool(body.get("error")) or kind == "response.failed")
        if kind in ("response.completed", "response.incomplete"):
            response = dict_of(body.get("response"))
            if response.get("status") == "failed":
                return Mark(error=event.data)
            return Mark(is_token=True, is_progress=True, is_end=True, usage=usage_in(response))
        if KEEP_ALIVE.fullmatch(kind) or is_empty(body):
            return FILLER
        if not kind or kind in _STATUS_OF_RESPONSE:
            return NOTHING
        return TOKEN if kind.endswith((".delta", ".done", ".partial_image")) else PROGRESS

    def is_dull(self, block: bytes) -> bool:
        return block.find(b"error") < 0 and _LAST_OF_RESPONSE.search(block) is None

    def ends_unmarked(self) -> bool:
        return False

    def missing_end(self) -> bytes:
        return b""


def refusal_body(refusal: Refusal, request_id: str) -> dict[str, Any]:
    """An error in OpenAI's format, so that the official SDKs raise the matching exception."""
    return {
        "error": {
            "message": refusal.message,
            "type": _TYPE_OF_STATUS.get(refusal.status, "invalid_request_error"),
            "param": refusal.param,
            "code": refusal.code,
        },
        "request_id": request_id,
    }


def limit_headers(
    what: str,
    allowed: str,
    left: str,
    reset_s: float,
    wall: float,  # noqa: ARG001  # used by the other dialect
) -> tuple[tuple[str, str], ...]:
    """Rate-limit headers under OpenAI's names."""
    return (
        (f"x-ratelimit-limit-{what}", allowed),
        (f"x-ratelimit-remaining-{what}", left),
        (f"x-ratelimit-reset-{what}", f"{reset_s:.3f}s"),
    )


def model_entry(name: str) -> dict[str, Any]:
    """Returns an entry of a list of models, for a model of which only the name is known."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "llm_guard"}


def model_list(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns a complete list of models."""
    return {"object": "list", "data": [*entries]}


def error_event(refusal: Refusal, request_id: str) -> bytes:
    """An error event on which the official SDKs raise, in a chat as in a Responses stream.

    They raise on the nested `error`; the flat fields are those of a Responses `error` event."""
    error = refusal_body(refusal, request_id)["error"]
    event = {"type": "error", "code": refusal.code, "message": refusal.message, "param": None, "error": error}
    return b"event: error\ndata: " + json.dumps(event).encode() + b"\n\n"


def _says_something(choice: dict[str, Any]) -> bool:
    if choice.get("finish_reason") or choice.get("text"):
        return True
    return has_content(dict_of(choice.get("delta")))


def _is_sampled(choice: dict[str, Any]) -> bool:
    """True if a chunk without text shows sampled tokens: vLLM sends one for the first bytes of a character."""
    return bool(choice.get("token_ids")) or has_content(choice.get("logprobs"))
