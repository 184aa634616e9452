"""Continues the mock's text when a request contains the beginning of it.

Finds a beginning in a conversation or a prompt, and determines the rest. The words are in `content`.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from llm_guard.mock.content import say
from llm_guard.mock.exchange import MockRequest

NO_PREFILL = "This model does not support assistant message prefill. The conversation must end with a user message."
"""Anthropic's message for claude-opus-4-6 and claude-sonnet-4-6, with status 400 (anomalyco/opencode#19981)."""

_PREAMBLE = "Sure, here is the rest:\n\n"
_WHITESPACE = "messages: final assistant content cannot end with trailing whitespace"
_BOTH = "Cannot set both add_generation_prompt and continue_final_message to true."

_CONVERSATIONS = {"/chat/completions": "messages", "/messages": "messages", "/responses": "input"}
_MARKS = re.compile(r"""["'`\u201c-\u201f\u00ab\u00bb<>\[\](){}:\n]+""")
"""Characters around a quotation."""


class _Turn(NamedTuple):
    role: str
    text: str
    is_prefix: bool


def speak(asked: MockRequest, tokens: int) -> list[str]:
    """The pieces of a response in prose: all `tokens` of them, or those that are left after a beginning in the request.

    A last message of the assistant is continued exactly. One before the user's last message is continued after the
    words that the user quotes from its end. A legacy prompt may end in a beginning."""
    pieces = say(tokens, is_another=asked.is_another)
    if asked.path == "/completions":
        return _from(pieces, _prompted("".join(pieces), asked.fields.get("prompt")))
    turns = _turns(asked)
    if turns and turns[-1].role == "assistant":
        return _prefilled(pieces, turns[-1])
    if [turn.role for turn in turns[-2:]] == ["assistant", "user"]:
        rest = _told(pieces, turns[-2].text.rstrip(), turns[-1].text, asked.overlap)
        return [_PREAMBLE, *rest] if asked.has_preamble else rest
    return pieces


def has_prefill(asked: MockRequest) -> bool:
    """True if the conversation ends in a message of the assistant."""
    turns = _turns(asked)
    return bool(turns) and turns[-1].role == "assistant"


def why_refused(asked: MockRequest) -> str | None:
    """The message with which providers refuse a beginning, under status 400; None: it is accepted.

    Whitespace at the end: Anthropic (zed-industries/zed#33643). A final message to be continued, unless
    `add_generation_prompt` is false: llama.cpp (unslothai/unsloth#10219); vLLM has the same rule."""
    if has_prefill(asked) and asked.dialect == "anthropic" and _turns(asked)[-1].text[-1:].isspace():
        return _WHITESPACE
    if asked.fields.get("continue_final_message") and asked.fields.get("add_generation_prompt", True):
        return _BOTH
    return None


def _prefilled(pieces: list[str], given: _Turn) -> list[str]:
    """Mistral repeats a message with `prefix: true` in a separate chunk; whitespace at its end moves into the next one
    (found in vercel/ai#3256, `mistral-chat-language-model.ts`)."""
    text, begun = "".join(pieces), given.text.rstrip()
    if given.is_prefix and begun:
        return [begun, *_from(pieces, len(begun) if text.startswith(begun) else 0)]
    if text.startswith(given.text):
        return _from(pieces, len(given.text))
    return _from(pieces, len(begun) if text.startswith(begun) else 0)


def _told(pieces: list[str], begun: str, order: str, overlap: int | None) -> list[str]:
    text = "".join(pieces)
    repeated = _quoted(begun, order) if overlap is None else _last_words(begun, overlap)
    # If a complete response precedes a message that quotes nothing of it, the conversation has moved on.
    is_over = begun == text.rstrip() and not repeated
    if is_over or not text.startswith(begun):
        return pieces
    if repeated:
        return _from(pieces, len(begun) - len(repeated))
    # No model begins a response with a space.
    return _from(pieces, len(text) - len(text[len(begun) :].lstrip()))


def _quoted(begun: str, order: str) -> str:
    """The longest quotation in the order that is an end of `begun`, at least one whole word; "" if none."""
    quotes = [part.strip().lstrip(".\u2026 ") for part in _MARKS.split(order)]
    return max((quote for quote in quotes if _is_end(begun, quote)), key=len, default="")


def _is_end(begun: str, quote: str) -> bool:
    before = begun[: len(begun) - len(quote)]
    return begun.endswith(quote) and (" " in quote or not before or before[-1].isspace())


def _last_words(begun: str, count: int) -> str:
    starts = [match.start() for match in re.finditer(r"\S+", begun)]
    return begun[starts[max(0, len(starts) - count)] :] if starts and count else ""


def _prompted(text: str, prompt: Any) -> int:
    """Length of the longest beginning of the text with which the prompt ends, ignoring whitespace after it."""
    if not isinstance(prompt, str):
        return 0
    for end in (prompt, prompt.rstrip()):
        at = max(0, len(end) - len(text)) - 1
        while (at := end.find(text[0], at + 1)) >= 0:
            if text.startswith(end[at:]):
                return len(end) - at
    return 0


def _from(pieces: list[str], start: int) -> list[str]:
    """The pieces from a character on; a space left over from a cut piece is joined to the next."""
    rest = list(pieces)
    while rest and start >= len(rest[0]):
        start -= len(rest.pop(0))
    if rest:
        rest[0] = rest[0][start:]
    if len(rest) > 1 and rest[0].isspace():
        rest[:2] = [rest[0] + rest[1]]
    return rest


def _turns(asked: MockRequest) -> list[_Turn]:
    """The conversation; empty if there is none."""
    items = asked.fields.get(_CONVERSATIONS.get(asked.path, ""))
    if not isinstance(items, list):
        return []
    return [
        _Turn(str(item.get("role")), _text_of(item.get("content")), item.get("prefix") is True)
        for item in items
        if isinstance(item, dict)
    ]


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, dict)]
    return "".join(text for text in texts if isinstance(text, str))
