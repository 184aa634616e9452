"""Records what the chunks of a chat or a legacy completion have sent to the client.

Defines where a chunk's texts are, and which are kept. They are used in `dialects.resume.chat_splice` and
`dialects.resume.chat`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_guard.dialects.resume.base import Body, StreamTally, TalliedTranscript, index_in, mapping, text_in
from llm_guard.dialects.sse import SseEvent, object_in

TextPath = tuple[str | int, ...]
"""Location of a text in a choice, such as ("content",) or ("tool_calls", 0, "arguments")."""

REASONING = ("reasoning_content", "reasoning")
DETAILS = "reasoning_details"
"""OpenRouter's copy of the reasoning, with signatures."""
ANSWERS: tuple[TextPath, ...] = (("content",), ("text",))

_TEXTS = ("content", "refusal", *REASONING)
_KNOWN = frozenset({"role", "tool_calls", "function_call", DETAILS, *_TEXTS})
_OF_FUNCTION = ("name", "arguments")
_IDENTITY = ("id", "object", "created", "model", "system_fingerprint", "service_tier", "provider")
"""Fields that identify a stream and are the same in each of its chunks."""
_COUNTS = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
_NAMES = {ours: name for name, ours in _COUNTS.items()}


@dataclass(slots=True)
class Choice:
    """One choice as the client has it."""

    texts: dict[TextPath, list[str]] = field(default_factory=dict)
    """Pieces of each text, as received."""
    is_finished: bool = False


class ChatState(TalliedTranscript):
    """Records the texts of each choice."""

    def __init__(self) -> None:
        super().__init__()
        self.identity: Body = {}
        """Identifying fields of the chunks that the client gets."""
        self.choices: dict[int, Choice] = {}
        self.has_details = False

    def said(self, body: Body) -> str:
        return "".join(text for choice in choices_in(body) for text in texts_in(choice).values())

    def count(self, tally: StreamTally, body: Body) -> None:
        usage = usage_in(body)
        if usage:
            tally.usage = {_COUNTS.get(key, key): value for key, value in usage.items() if value is not None}
            choices = choices_in(body)
            tally.is_final = not choices or any(choice.get("finish_reason") for choice in choices)

    def note(self, body: Body) -> None:
        if not self.identity.get("id"):  # Azure's first chunk has an empty one
            self.identity = {key: body[key] for key in _IDENTITY if key in body}
        for choice in choices_in(body):
            told = self.choices.setdefault(max(0, index_in(choice, "index")), Choice())
            for path, text in texts_in(choice).items():
                self._keep(text, told.texts.setdefault(path, []))
            self.is_strange = self.is_strange or is_strange(choice)
            self.has_details = self.has_details or bool(mapping(choice.get("delta")).get(DETAILS))
            told.is_finished = told.is_finished or bool(choice.get("finish_reason"))
        self.has_ended = bool(self.choices) and all(choice.is_finished for choice in self.choices.values())

    def in_terms(self, body: Body, choices: list[Body]) -> Body:
        """Rewrites a chunk of another stream for the client: with these choices, and the usage of all streams."""
        told = {**self.identity, **{key: value for key, value in body.items() if key not in _IDENTITY}}
        told["choices"] = choices
        if usage_in(body):
            usage = {**usage_in(body), **{_NAMES.get(key, key): value for key, value in self.total().items()}}
            if mapping(body.get("x_groq")).get("usage"):
                told["x_groq"] = {**body["x_groq"], "usage": usage}
            if body.get("usage"):
                told["usage"] = usage
        return told

    def _take(self, event: SseEvent) -> None:
        body = chunk_in(event)
        if body is not None:
            text = self.said(body)
            self.tallies[0].count(text, text)
            self.count(self.tallies[0], body)
            self.note(body)


def chunk_in(event: SseEvent) -> Body | None:
    """The event's chunk; None for `[DONE]`, and for what is not a chunk."""
    return object_in(event) if event.data else None


def choices_in(body: Body) -> list[Body]:
    choices = body.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def usage_in(body: Body) -> Body:
    """The token counts in this chunk; {} if none. Groq nests them in `x_groq`."""
    return mapping(body.get("usage")) or mapping(mapping(body.get("x_groq")).get("usage"))


def texts_in(choice: Body) -> dict[TextPath, str]:
    """Each text that a chunk adds to a choice, in logical order."""
    delta = mapping(choice.get("delta"))
    texts: dict[TextPath, str] = {(key,): text_in(delta, key) for key in (*REASONING, "content", "refusal")}
    texts["text",] = text_in(choice, "text")
    for key in _OF_FUNCTION:
        texts["function_call", key] = text_in(mapping(delta.get("function_call")), key)
    for call in calls_in(delta):
        for key in _OF_FUNCTION:
            texts["tool_calls", index_in(call, "index"), key] = text_in(mapping(call.get("function")), key)
    return {path: text for path, text in texts.items() if text}


def calls_in(delta: Body) -> list[Body]:
    calls = delta.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def is_strange(choice: Body) -> bool:
    """True if a chunk adds something other than known texts: audio, images, annotations, content in parts (Mistral's
    reasoning models), calls of custom tools, calls without an index."""
    delta = mapping(choice.get("delta"))
    if any(value and key not in _KNOWN for key, value in delta.items()):
        return True
    if any(delta.get(key) and not isinstance(delta[key], str) for key in _TEXTS):
        return True
    return any(call.get("custom") or index_in(call, "index") < 0 for call in calls_in(delta))
