"""Resumes a Messages stream after it has died.

Records what the client was sent, builds the request for the rest, and joins the blocks of two streams into one message.
Where one text continues another is found in `dialects.resume.text_join`.

Only text is resumed: thinking and tool use cannot be resumed in their middle (Anthropic's streaming page, "Error
recovery"), and blocks that the server executes must not be executed twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from llm_guard.dialects.resume.base import (
    Body,
    StreamTally,
    TalliedSplice,
    TalliedTranscript,
    index_in,
    mapping,
    text_in,
)
from llm_guard.dialects.resume.requests import is_message_shaped, rest_of_message, thinks
from llm_guard.dialects.resume.text_join import TextJoin, anchor, given_back, instruction_text, seam
from llm_guard.dialects.resume.transcript import Prefill, ResumeMode, Splice

_THINKING = frozenset({"thinking", "redacted_thinking"})
_REPEATABLE = _THINKING | {"text", "tool_use"}
_TEXT_OF_DELTA = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_KIND_OF_DELTA = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "tool_use"}
_COUNTS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


@dataclass(slots=True)
class _Block:
    """One content block as the client has it."""

    start: Body
    pieces: list[str] = field(default_factory=list)
    """Pieces of its text, its thinking or its arguments."""
    signature: str = ""
    is_open: bool = True

    @property
    def kind(self) -> str:
        return text_in(self.start, "type")

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class MessagesTranscript(TalliedTranscript):
    """Records one message, block by block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[int, _Block] = {}

    @property
    def text(self) -> str:
        """The text visible to the client."""
        return "".join(block.text for block in self._of_kind("text"))

    def resume_modes(self, request: Body, prefill: Prefill) -> tuple[ResumeMode, ...]:
        """No prefill with thinking: the API refuses it (Anthropic, "Extended thinking", feature compatibility)."""
        self._fold()
        if not self._can_be_kept or is_message_shaped(request):
            return ()
        if any(block.kind not in _THINKING | {"text"} for block in self.blocks.values()):
            return ()
        thinking = [block for kind in sorted(_THINKING) for block in self._of_kind(kind)]
        if any(block.is_open or (block.kind == "thinking" and not block.signature) for block in thinking):
            return ()
        if prefill == "none" or thinking or thinks(request) or not given_back(self.text):
            return ("instruction",)
        return ("prefill", "instruction")

    def can_restart(self, request: Body) -> bool:
        del request
        self._fold()
        return self._can_be_kept and all(block.kind in _REPEATABLE for block in self.blocks.values())

    def request(self, request: Body, resume_mode: ResumeMode, prefill: Prefill) -> Body:
        """For prefill and instruction, adds the text so far as the last message of the assistant."""
        del prefill
        self._fold()
        text = given_back(self.text)
        if resume_mode == "restart" or not text:
            return dict(request)  # thinking alone starts over: none of it is part of the answer
        instruction = instruction_text(anchor(self.text)) if resume_mode == "instruction" else None
        return rest_of_message(request, self._given_back(resume_mode, text), instruction, self.text_pieces)

    def splice(self, resume_mode: ResumeMode, marker: Body) -> Splice:
        self._fold()
        return _Restarted(self, marker) if resume_mode == "restart" else _Continued(self, resume_mode, marker)

    def said(self, body: Body) -> str:
        if body["type"] == "content_block_start":
            block = mapping(body.get("content_block"))
            return text_in(block, "text") or text_in(block, "thinking")
        delta = mapping(body.get("delta"))
        return text_in(delta, _TEXT_OF_DELTA.get(text_in(delta, "type"), ""))

    def count(self, tally: StreamTally, body: Body) -> None:
        usage = body.get("usage") if body["type"] == "message_delta" else mapping(body.get("message")).get("usage")
        tally.usage.update({key: value for key, value in mapping(usage).items() if value is not None})
        tally.is_final = tally.is_final or (_is_last(body) and "output_tokens" in mapping(usage))

    def note(self, body: Body) -> None:
        index = index_in(body, "index")
        match body["type"]:
            case "content_block_start":
                self.is_strange = self.is_strange or index in self.blocks  # started twice: unclear which text it is
                block = self.blocks[index] = _Block(mapping(body.get("content_block")))
                self._keep(self.said(body), block.pieces)
            case "content_block_delta":
                self._note_delta(self.blocks.get(index), body)
            case "content_block_stop" if index in self.blocks:
                self.blocks[index].is_open = False
            case "message_delta" | "message_stop":
                self.has_ended = self.has_ended or _is_last(body)
            case _:
                pass

    def _note_delta(self, block: _Block | None, body: Body) -> None:
        delta = mapping(body.get("delta"))
        kind = text_in(delta, "type")
        if block is None or (kind not in _TEXT_OF_DELTA and kind != "signature_delta"):
            self.is_strange = True  # citations, and unknown kinds
        elif kind == "signature_delta":
            block.signature = text_in(delta, "signature")
        else:
            self._keep(self.said(body), block.pieces)

    def _of_kind(self, kind: str) -> list[_Block]:
        return [block for _, block in sorted(self.blocks.items()) if block.kind == kind]

    @property
    def text_pieces(self) -> int:
        return sum(len(block.pieces) for block in self._of_kind("text"))

    def _given_back(self, resume_mode: ResumeMode, text: str) -> list[Body]:
        """The response's blocks for a request; thinking comes first and with its signature, as the API requires."""
        thinking = (block for _, block in sorted(self.blocks.items()) if block.kind in _THINKING)
        kept = [_thought(block) for block in thinking] if resume_mode == "instruction" else []
        return [*kept, {"type": "text", "text": text}]


class _Continued(TalliedSplice[MessagesTranscript]):
    """Continues the text in the client's open block, or in a new one; drops thinking."""

    def __init__(self, transcript: MessagesTranscript, resume_mode: ResumeMode, marker: Body) -> None:
        super().__init__(transcript, marker, transcript.text_pieces)
        text = transcript.text
        self._seam: TextJoin = seam(resume_mode if given_back(text) else "prefill", text)
        self._source: int | None = None
        """Index of the new stream's first text block."""
        self._target = next((at for at, block in transcript.blocks.items() if block.is_open), None)
        """Index of the client's block in which the text continues; None: one is started when there is new text."""
        self._indices: dict[int, int] = {}
        """The client's index for each other block of the new stream."""

    @property
    def is_searching(self) -> bool:
        return self._seam.is_searching

    @property
    def _is_settled(self) -> bool:
        return self._seam.is_settled

    def _join(self, body: Body) -> Iterator[Body]:
        match body["type"]:
            case "message_start":
                pass
            case "content_block_start":
                yield from self._start(body)
            case "content_block_delta" | "content_block_stop":
                yield from self._inside(body)
            case "message_delta":
                if _is_last(body):
                    yield from self._finish()
                if _is_last(body) or self.is_joined:
                    yield _with_usage(body, self._told.total())
            case "message_stop":
                yield from self._finish()
                self._is_over = True
                yield body
            case _:
                if self.is_joined:
                    yield body

    def _start(self, body: Body) -> Iterator[Body]:
        kind = text_in(mapping(body.get("content_block")), "type")
        if kind in _THINKING:
            return
        if kind == "text" and self._source is None:
            self._source = index_in(body, "index")
            yield from self._go_on(self._told.said(body))
            return
        yield from self._finish()
        index = self._indices[index_in(body, "index")] = self._next_index
        yield {**body, "index": index}

    def _inside(self, body: Body) -> Iterator[Body]:
        index = index_in(body, "index")
        if index in self._indices:
            yield {**body, "index": self._indices[index]}
        elif index != self._source:
            return  # thinking, or a delta of a block that was never started
        elif body["type"] == "content_block_stop":
            yield from self._finish()
        elif text_in(mapping(body.get("delta")), "type") == "text_delta":
            yield from self._go_on(self._told.said(body))
        elif self._target is not None:
            yield {**body, "index": self._target}  # a citation: it points into a document, not into the text

    def _go_on(self, text: str | None) -> Iterator[Body]:
        new = self._gone_on(self._seam, text)
        if not new:
            return
        if self._target is None:
            self._target = self._next_index
            yield _event("content_block_start", self._target, content_block={"type": "text", "text": ""})
        yield _event("content_block_delta", self._target, delta={"type": "text_delta", "text": new})

    def _finish(self) -> Iterator[Body]:
        """Ends the block in which the text continued."""
        yield from self._go_on(None)
        for index, block in self._told.blocks.items():
            if block.is_open:
                yield _event("content_block_stop", index)
        self._target = None

    @property
    def _next_index(self) -> int:
        return max(self._told.blocks, default=-1) + 1


class _Restarted(TalliedSplice[MessagesTranscript]):
    """Compares the new message block by block with what was sent. The client keeps its ids and signatures."""

    def __init__(self, transcript: MessagesTranscript, marker: Body) -> None:
        super().__init__(transcript, marker, 0)
        self._seams = {at: seam("restart", block.text) for at, block in transcript.blocks.items()}
        self._awaited = set(self._seams)
        """Blocks of which the client has more than has come again."""

    @property
    def _is_settled(self) -> bool:
        return not self._awaited

    def _join(self, body: Body) -> Iterator[Body]:
        index = index_in(body, "index")
        match body["type"]:
            case "message_start":
                return
            case "content_block_start" | "content_block_delta" | "content_block_stop" if index in self._seams:
                yield from self._compare(index, body)
                return
            case "content_block_delta" | "content_block_stop" if index not in self._told.blocks:
                return
            case _:
                pass
        if not self._is_settled:
            self.has_diverged = body["type"].startswith("content_block_") or _is_last(body)
            return
        self._is_over = body["type"] == "message_stop"
        yield _with_usage(body, self._told.total()) if body["type"] == "message_delta" else body

    def _compare(self, index: int, body: Body) -> Iterator[Body]:
        block, known = self._told.blocks[index], self._seams[index]
        match body["type"]:
            case "content_block_start":
                self.has_diverged = _nature(mapping(body.get("content_block"))) != _nature(block.start)
                yield from self._go_on(index, self._told.said(body), "")
            case "content_block_stop":
                known.end()
                self.has_diverged = known.has_diverged
                self._awaited.discard(index)
                if block.is_open and not self.has_diverged:
                    yield body
            case _:
                kind = text_in(mapping(body.get("delta")), "type")
                if kind == "signature_delta":
                    yield from self._sign(index, body)
                else:
                    yield from self._go_on(index, self._told.said(body), kind)

    def _go_on(self, index: int, text: str, kind: str) -> Iterator[Body]:
        """`kind` is the delta's; "" for text in a block's start event."""
        block, known = self._told.blocks[index], self._seams[index]
        new = known.feed(text) if not kind or _KIND_OF_DELTA.get(kind) == block.kind else None
        if new is None or known.has_diverged or (new and (not block.is_open or self._awaited - {index})):
            self.has_diverged = True
        if self.has_diverged:
            return
        if block.is_open and known.is_settled:
            self._awaited.discard(index)
        if new:
            key = next(kind for kind, of in _KIND_OF_DELTA.items() if of == block.kind)
            yield _event("content_block_delta", index, delta={"type": key, _TEXT_OF_DELTA[key]: new})

    def _sign(self, index: int, body: Body) -> Iterator[Body]:
        """Drops a signature if the client has one already: it is valid only for its own run."""
        block = self._told.blocks[index]
        if block.signature or not block.is_open:
            return
        self.has_diverged = index in self._awaited
        if not self.has_diverged:
            yield body


def _thought(block: _Block) -> Body:
    if block.kind == "redacted_thinking":
        return block.start
    return {"type": "thinking", "thinking": block.text, "signature": block.signature}


def _with_usage(body: Body, total: Body) -> Body:
    usage = mapping(body.get("usage"))
    told = {key: value for key, value in total.items() if key in usage or key in _COUNTS}
    return {**body, "usage": {**usage, **told}}


def _is_last(body: Body) -> bool:
    """True for the end of a message. Some servers also send counts before it, in a `message_delta` without a stop
    reason."""
    return body["type"] == "message_stop" or mapping(body.get("delta")).get("stop_reason") is not None


def _nature(start: Body) -> tuple[object, ...]:
    """Properties that a block must share with that of the first run: neither ids nor encrypted content."""
    return start.get("type"), start.get("name"), start.get("input")


def _event(kind: str, index: int, **fields: Any) -> Body:
    return {"type": kind, "index": index, **fields}
