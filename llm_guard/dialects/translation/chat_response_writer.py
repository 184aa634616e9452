"""Writes a response as the stream of a chat. `whole_response` writes one that is not streamed."""

from __future__ import annotations

from llm_guard.dialects.translation.canonical import JsonObject, StopCause, TokenCounts
from llm_guard.dialects.translation.wire_json import encode

FINISH_REASONS: dict[StopCause, str] = {
    "end": "stop", "stop_sequence": "stop", "length": "length", "context": "length", "tool_calls": "tool_calls",
    "refusal": "content_filter", "pause": "stop",
}  # fmt: skip
_DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b": keep-alive\n\n"


def chat_usage(counts: TokenCounts) -> JsonObject:
    """Returns the usage of a chat. Its prompt includes cached tokens."""
    prompt, output = counts.prompt or 0, counts.output or 0
    usage: JsonObject = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    usage["prompt_tokens_details"] = {"cached_tokens": counts.cached or 0}
    if counts.reasoning is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": counts.reasoning}
    return usage


class ChatStreamWriter:
    """Implements `canonical.ResponseSink`; writes bytes directly, because most pieces are small texts."""

    def __init__(self, *, wants_usage: bool, shows_reasoning: bool) -> None:
        self._wants_usage = wants_usage
        self._shows_reasoning = shows_reasoning
        self._out = bytearray()
        self._head = b""
        self._before = b""
        self._after = b',"logprobs":null,"finish_reason":null}]' + self._usage_of_chunk + b"}\n\n"
        self._calls: dict[object, int] = {}
        self._without_arguments: set[int] = set()

    @property
    def _usage_of_chunk(self) -> bytes:
        return b',"usage":null' if self._wants_usage else b""

    def take(self) -> bytes:
        """Returns the bytes written since the last call."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def begin(self, response_id: str, model: str, created: int) -> None:
        head = {"id": response_id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._head = b"data: " + encode(head)[:-1]
        self._before = self._head + b',"choices":[{"index":0,"delta":'
        self._write(b'{"role":"assistant","content":"","refusal":null}')

    def text(self, text: str) -> None:
        self._write(b'{"content":' + encode(text) + b"}")

    def reasoning(self, text: str) -> None:
        if self._shows_reasoning:
            self._write(b'{"reasoning_content":' + encode(text) + b"}")
        else:
            self.keep_alive()

    def call(self, key: object, call_id: str, name: str) -> None:
        index = self._calls[key] = len(self._calls)
        self._without_arguments.add(index)
        function = {"name": name, "arguments": ""}
        call = {"index": index, "id": call_id, "type": "function", "function": function}
        self._write(encode({"tool_calls": [call]}))

    def arguments(self, key: object, text: str) -> None:
        index = self._calls[key]
        self._without_arguments.discard(index)
        self._write(b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (index, encode(text)))

    def end_block(self) -> None:
        pass  # a chat has one text

    def refusal(self, text: str) -> None:
        self._write(b'{"refusal":' + encode(text) + b"}")

    def keep_alive(self) -> None:
        self._out += _KEEP_ALIVE

    def end(self, stop: StopCause, stop_sequence: str | None, counts: TokenCounts) -> None:
        del stop_sequence
        for index in sorted(self._without_arguments):
            self._write(b'{"tool_calls":[{"index":%d,"function":{"arguments":"{}"}}]}' % index)
        reason = encode(FINISH_REASONS[stop])
        self._out += self._before + b'{},"logprobs":null,"finish_reason":' + reason + b"}]"
        self._out += self._usage_of_chunk + b"}\n\n"
        if self._wants_usage:
            self._out += self._head + b',"choices":[],"usage":' + encode(chat_usage(counts)) + b"}\n\n"
        self._out += _DONE

    def _write(self, delta: bytes) -> None:
        self._out += self._before + delta + self._after
