"""Writes a response as the stream of Messages. `whole_response` writes one that is not streamed.

One content block is open at a time, with indexes from 0. Chats may interleave tool calls: what belongs to a later block
waits until the open one is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_guard.dialects.translation.canonical import InvalidCallError, JsonObject, StopCause, TokenCounts
from llm_guard.dialects.translation.wire_json import encode, object_of

STOP_REASONS: dict[StopCause, str] = {
    "end": "end_turn", "stop_sequence": "stop_sequence", "length": "max_tokens", "tool_calls": "tool_use",
    "context": "model_context_window_exceeded", "refusal": "refusal", "pause": "pause_turn",
}  # fmt: skip
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_MOST_KEPT = 16 << 20
"""Characters of arguments, and of blocks that wait for an open one, that are kept of a response."""
_MOST_CHECKED = 4 << 20
"""Characters that are read of interleaved calls to find the end of one. Further calls wait for the end of the response:
a provider that sends braces one by one would have the same arguments parsed again and again, for seconds."""
_UNFINISHED: frozenset[StopCause] = frozenset({"length", "context", "refusal"})
"""The last tool call of such a response may be cut."""


def messages_usage(counts: TokenCounts) -> JsonObject:
    """Returns the usage of Messages. Its input excludes cached tokens."""
    cached, created = counts.cached or 0, counts.created or 0
    fresh = max(0, (counts.prompt or 0) - cached - created)
    usage: JsonObject = {"input_tokens": fresh, "output_tokens": counts.output or 0}
    return {**usage, "cache_read_input_tokens": cached, "cache_creation_input_tokens": created}


def is_whole_call(arguments: str, stop: StopCause) -> bool:
    """Returns whether a tool call is complete; False for one that an early end has cut. Raises InvalidCallError for
    arguments that are not JSON although the response ended well."""
    if not arguments.strip() or object_of(arguments) is not None:
        return True
    if stop in _UNFINISHED:
        return False
    raise InvalidCallError("the arguments of a tool call are not a JSON object")


_Kind = Literal["text", "refusal", "thinking", "tool_use"]


@dataclass(slots=True, eq=False)
class _OpenBlock:
    kind: _Kind
    start: bytes
    """The block's JSON in its first event."""
    pieces: list[str] = field(default_factory=list)
    """Text that is not yet written; of a tool call all of its arguments."""
    written: int = 0
    """Number of pieces written."""

    @property
    def is_complete(self) -> bool:
        """True if nothing of it can follow."""
        return self.kind != "tool_use" or object_of("".join(self.pieces)) is not None


class MessagesStreamWriter:
    """Implements `canonical.ResponseSink`."""

    def __init__(self, *, shows_reasoning: bool) -> None:
        self._shows_reasoning = shows_reasoning
        self._out = bytearray()
        self._index = -1
        self._delta = b""
        """Beginning of each delta of the open block."""
        self._open: _OpenBlock | None = None
        self._waiting: list[_OpenBlock] = []
        self._calls: dict[object, _OpenBlock] = {}
        self._kept = 0
        self._checked = 0

    def take(self) -> bytes:
        """Returns the bytes written since the last call."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def begin(self, response_id: str, model: str, created: int) -> None:
        del created
        message: JsonObject = {"id": response_id, "type": "message", "role": "assistant", "model": model, "content": []}
        message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
        self._out += b"event: message_start\ndata: " + encode({"type": "message_start", "message": message}) + b"\n\n"

    def text(self, text: str) -> None:
        block = self._open
        if block is not None and block.kind == "text" and not self._waiting:  # as in nearly every chunk
            self._out += self._delta + encode(text) + _DELTA_END
        else:
            self._say("text", text)

    def reasoning(self, text: str) -> None:
        if self._shows_reasoning:
            self._say("thinking", text)
        else:
            self.keep_alive()

    def call(self, key: object, call_id: str, name: str) -> None:
        start = encode({"type": "tool_use", "id": call_id, "name": name, "input": {}})
        block = self._calls[key] = _OpenBlock("tool_use", start)
        self._add(block)

    def arguments(self, key: object, text: str) -> None:
        block = self._calls[key]
        if not block.pieces and not text.strip():
            return  # blanks alone stand for no arguments, which SDKs expect as no text at all
        self._keep(block, text)
        if block is self._open:
            self._write_pieces(block)
            if self._waiting and text.rstrip().endswith("}") and self._may_check() and block.is_complete:
                self._release()
        elif block not in self._waiting and text.strip():
            raise ValueError("a tool call continues after its arguments were complete")

    def end_block(self) -> None:
        if self._open is not None and self._open.kind != "tool_use" and not self._waiting:
            self._close()

    def refusal(self, text: str) -> None:
        self._say("refusal", text)

    def keep_alive(self) -> None:
        self._out += _PING

    def end(self, stop: StopCause, stop_sequence: str | None, counts: TokenCounts) -> None:
        for block in self._calls.values():
            is_whole_call("".join(block.pieces), stop)
        if self._open is not None:
            self._close()
        for block in self._waiting:
            self._begin_block(block)
            self._close()
        delta: JsonObject = {"stop_reason": STOP_REASONS[stop], "stop_sequence": stop_sequence}
        event = {"type": "message_delta", "delta": delta, "usage": messages_usage(counts)}
        self._out += b"event: message_delta\ndata: " + encode(event) + b"\n\n" + _STOP

    def _say(self, kind: _Kind, text: str) -> None:
        block = self._waiting[-1] if self._waiting else self._open
        if block is not None and block is self._open and block.kind == kind:
            self._out += self._delta + encode(text) + _DELTA_END
            return
        if block is None or block.kind != kind:
            block = _OpenBlock(kind, _THOUGHT if kind == "thinking" else _TEXT)
            self._add(block)
        self._keep(block, text)
        if block is self._open:
            self._write_pieces(block)

    def _keep(self, block: _OpenBlock, text: str) -> None:
        block.pieces.append(text)
        self._kept += len(text)
        if self._kept > _MOST_KEPT:
            raise ValueError("the arguments of its tool calls are too long")

    def _may_check(self) -> bool:
        self._checked += self._kept
        return self._checked <= _MOST_CHECKED

    def _add(self, block: _OpenBlock) -> None:
        """Opens a block, unless the open one may still go on."""
        if self._open is not None and (self._waiting or not self._open.is_complete):
            self._waiting.append(block)
            return
        if self._open is not None:
            self._close()
        self._begin_block(block)

    def _release(self) -> None:
        """Opens the blocks that waited, up to one that is not complete."""
        while self._waiting and self._open is not None and self._open.is_complete:
            self._close()
            self._begin_block(self._waiting.pop(0))

    def _begin_block(self, block: _OpenBlock) -> None:
        self._index += 1
        self._open, self._delta = block, _DELTA[block.kind] % self._index
        self._out += (
            b'event: content_block_start\ndata: {"type":"content_block_start","index":%d,"content_block":%b}\n\n'
            % (self._index, block.start)
        )
        self._write_pieces(block)

    def _write_pieces(self, block: _OpenBlock) -> None:
        for text in block.pieces[block.written :]:
            self._out += self._delta + encode(text) + _DELTA_END
        if block.kind == "tool_use":
            block.written = len(block.pieces)
        else:
            block.pieces.clear()

    def _close(self) -> None:
        self._out += b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n' % self._index
        self._open = None


_TEXT = b'{"type":"text","text":""}'
_THOUGHT = b'{"type":"thinking","thinking":"","signature":""}'
_DELTA_START = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":'
_DELTA = {
    "text": _DELTA_START + b'{"type":"text_delta","text":',
    "refusal": _DELTA_START + b'{"type":"text_delta","text":',
    "thinking": _DELTA_START + b'{"type":"thinking_delta","thinking":',
    "tool_use": _DELTA_START + b'{"type":"input_json_delta","partial_json":',
}
_DELTA_END = b"}}\n\n"
