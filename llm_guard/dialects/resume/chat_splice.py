"""Joins the chunks of a new chat or completion to those that the client has.

There are two ways: the text continues, or everything comes again and is compared. What the client has is in
`dialects.resume.chat_state`; where one text continues another is found in `dialects.resume.text_join`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator

from llm_guard.dialects.resume.base import Body, TalliedSplice, index_in, mapping
from llm_guard.dialects.resume.chat_state import (
    ANSWERS,
    DETAILS,
    REASONING,
    ChatState,
    TextPath,
    calls_in,
    choices_in,
    chunk_in,
    texts_in,
    usage_in,
)
from llm_guard.dialects.resume.text_join import TextJoin, seam
from llm_guard.dialects.resume.transcript import MAX_KEPT_BYTES
from llm_guard.dialects.sse import SseEvent, events_in

_DONE = b"[DONE]"


class _ChatSplice(TalliedSplice[ChatState]):
    """Passes chunks on under the first stream's id and model, and without a second role."""

    def feed(self, block: bytes) -> bytes:
        return b"".join(told for event in events_in(block) for told in self._told_of(event))

    def _told_of(self, event: SseEvent) -> Iterator[bytes]:
        if event.data.strip() != _DONE:
            for body in self._take(chunk_in(event)):
                yield f"data: {json.dumps(body, separators=(',', ':'))}\n\n".encode("ascii")
        elif self._told.has_ended and not self._is_over:
            # Without a finish_reason `[DONE]` proves nothing, and SDKs would take it for the end.
            self._is_over = True
            yield b"data: [DONE]\n\n"

    def _join(self, body: Body) -> Iterator[Body]:
        choices = choices_in(body)
        joined = [told for choice in choices if (told := self._join_choice(choice)) is not None]
        if not self.has_diverged and (joined or (usage_in(body) and not choices)):
            yield self._told.in_terms(body, joined)

    @abstractmethod
    def _join_choice(self, choice: Body) -> Body | None:
        """The choice for the client; None if nothing of it is to be passed on."""


class ChatContinuation(_ChatSplice):
    """Continues the text. Drops reasoning, which leads to a text that the client has; tool calls are new."""

    def __init__(self, told: ChatState, marker: Body, pieces: int, joint: TextJoin) -> None:
        """The request contained `pieces` of the text; `joint` joins the text to what the client has."""
        super().__init__(told, marker, pieces)
        self._seam = joint

    @property
    def is_searching(self) -> bool:
        return self._seam.is_searching

    @property
    def _is_settled(self) -> bool:
        return self._seam.is_settled

    def _join_choice(self, choice: Body) -> Body | None:
        told = self._told.choices.get(max(0, index_in(choice, "index")))
        if told is None or told.is_finished:
            return None
        texts = {path: text for path, text in texts_in(choice).items() if path[0] not in REASONING}
        came = "".join(texts.pop(path, "") for path in ANSWERS)
        text = self._seam.feed(came)
        if texts or choice.get("finish_reason"):
            text += self._seam.end()
        self.has_diverged = self._seam.has_diverged
        delta = mapping(choice.get("delta"))
        others = {key: value for key, value in delta.items() if key not in ("role", "content", DETAILS, *REASONING)}
        return _choice_with(choice, {"content": text, **others}, text, is_cut=text != came)


class ChatRestart(_ChatSplice):
    """Compares each text with what the client has, and keeps the client's ids; buffers everything new until all texts
    have come again."""

    def __init__(self, told: ChatState, marker: Body) -> None:
        super().__init__(told, marker, 0)
        self._seams = {
            (index, path): seam("restart", "".join(pieces))
            for index, choice in told.choices.items()
            for path, pieces in choice.texts.items()
        }
        self._held: list[Body] = []
        self._held_bytes = 0

    @property
    def _is_settled(self) -> bool:
        return all(known.is_settled for known in self._seams.values())

    def feed(self, block: bytes) -> bytes:
        told = super().feed(block)
        self._held_bytes = self._held_bytes + len(block) if self._held else 0
        self.has_diverged = self.has_diverged or self._held_bytes > MAX_KEPT_BYTES
        return told

    def _join(self, body: Body) -> Iterator[Body]:
        for told in super()._join(body):
            self._held.append(told)
        if self._is_settled and not self.has_diverged:
            held, self._held = self._held, []
            yield from held

    def _join_choice(self, choice: Body) -> Body | None:
        index = max(0, index_in(choice, "index"))
        told = self._told.choices.get(index)
        texts = {path: new for path, text in texts_in(choice).items() if (new := self._new_in(index, path, text))}
        # A choice that exceeds what the client has must have repeated all of it.
        if (texts or choice.get("finish_reason")) and not self._has_repeated(index):
            self.has_diverged = True
        if told is not None and told.is_finished:
            self.has_diverged = self.has_diverged or (bool(texts) and not self._told.has_ended)
            return None
        delta = mapping(choice.get("delta"))
        others = {key: value for key, value in delta.items() if key not in _COMPARED}
        answer = "".join(texts.get(path, "") for path in ANSWERS)
        is_cut = answer != "".join(texts_in(choice).get(path, "") for path in ANSWERS)
        return _choice_with(choice, {**others, **self._delta_of(index, delta, texts)}, answer, is_cut=is_cut)

    def _new_in(self, index: int, path: TextPath, text: str) -> str:
        known = self._seams.get((index, path))
        if known is None:
            return text
        new = known.feed(text)
        self.has_diverged = self.has_diverged or known.has_diverged
        return new

    def _has_repeated(self, index: int) -> bool:
        return all(known.is_settled for (of, _), known in self._seams.items() if of == index)

    def _delta_of(self, index: int, delta: Body, texts: dict[TextPath, str]) -> Body:
        """The delta for the new texts. A tool call that the client knows keeps its id and is not named again."""
        told: Body = {str(path[0]): text for path, text in texts.items() if len(path) == 1}
        if function := _function_in(texts, ("function_call",)):
            told["function_call"] = function
        calls = []
        for call in calls_in(delta):
            at = index_in(call, "index")
            function = _function_in(texts, ("tool_calls", at))
            if any(of == index and path[:2] == ("tool_calls", at) for of, path in self._seams):
                calls += [{"index": at, "function": function}] if function else []
            else:
                calls.append(call)
        return {**told, "tool_calls": calls}


_COMPARED = frozenset({"role", "content", "refusal", "function_call", "tool_calls", *REASONING})


def _choice_with(choice: Body, delta: Body, text: str, *, is_cut: bool) -> Body | None:
    """The choice with another delta (or legacy text); None if that is empty. A text that was cut loses its logprobs,
    which are those of whole tokens."""
    told = dict(choice)
    if is_cut and told.get("logprobs") is not None:
        told["logprobs"] = None
    if "delta" in choice:
        told["delta"] = {key: value for key, value in delta.items() if value}
    if "text" in choice:
        told["text"] = text
    return told if told.get("delta") or told.get("text") or choice.get("finish_reason") else None


def _function_in(texts: dict[TextPath, str], of: TextPath) -> Body:
    return {str(path[-1]): text for path, text in texts.items() if len(path) > len(of) and path[: len(of)] == of}
