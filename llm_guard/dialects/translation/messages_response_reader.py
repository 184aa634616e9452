"""Reads responses of a Messages endpoint, whole and streamed, piece by piece into a sink."""

from __future__ import annotations

from llm_guard.dialects.event_inspection import KEEP_ALIVE
from llm_guard.dialects.sse import count_of, dict_of, list_of
from llm_guard.dialects.translation.canonical import JsonObject, ResponseSink, StopCause, TokenCounts, stop_with_calls
from llm_guard.dialects.translation.identifiers import CHAT_NAME_LENGTH, NameMap, valid_id
from llm_guard.dialects.translation.wire_json import decode, encode

_STOPS: dict[str, StopCause] = {
    "end_turn": "end", "stop_sequence": "stop_sequence", "max_tokens": "length", "tool_use": "tool_calls",
    "refusal": "refusal", "pause_turn": "pause", "model_context_window_exceeded": "context",
}  # fmt: skip


class MessagesResponseReader:
    """Reads one response. Raises ValueError for what cannot be read."""

    def __init__(self, sink: ResponseSink, names: NameMap, ids: NameMap, created: int) -> None:
        """`names` and `ids` are those of the request; `created` is the time to report."""
        self._sink = sink
        self._names = names
        self._ids = ids
        self._created = created
        self._id = ""
        self._calls = 0
        self._inputs: dict[int, JsonObject] = {}
        """Arguments that came with the beginning of a block, by its index; used if no others follow."""
        self._stop: StopCause = "end"
        self._stop_sequence: str | None = None
        self._usage: JsonObject = {}
        self.has_ended = False

    def whole(self, body: JsonObject) -> None:
        """Reads a response that is not streamed."""
        self._begin(body)
        for index, block in enumerate(list_of(body.get("content"))):
            self._start(index, dict_of(block))
            self._end_block(index)
        self._note_end(body)
        self.finish()

    def event(self, name: str, data: bytes) -> None:
        """Reads one event of a stream."""
        event = decode(data)
        if not isinstance(event, dict):
            raise ValueError("an event is no object")
        kind = name or event.get("type")
        if kind == "content_block_delta":
            self._delta(event["index"], event["delta"])
        elif kind == "content_block_start":
            self._start(event["index"], dict_of(event.get("content_block")))
        elif kind == "content_block_stop":
            self._end_block(event["index"])
        elif kind == "message_start":
            self._begin(dict_of(event.get("message")))
        elif kind == "message_delta":
            self._note_end(dict_of(event.get("delta")))
            self._note_usage(dict_of(event.get("usage")))
        elif kind == "message_stop":
            self.finish()
        elif isinstance(kind, str) and KEEP_ALIVE.fullmatch(kind):
            self._sink.keep_alive()

    def finish(self) -> None:
        """Ends the response."""
        if self.has_ended:
            return
        self.has_ended = True
        stop = stop_with_calls(self._stop, has_calls=self._calls > 0)
        self._sink.end(stop, self._stop_sequence, _counts_in(self._usage))

    def _begin(self, message: JsonObject) -> None:
        response_id, model = message.get("id"), message.get("model")
        self._id = response_id if isinstance(response_id, str) else ""
        self._sink.begin(self._id, model if isinstance(model, str) else "", self._created)
        self._note_usage(dict_of(message.get("usage")))

    def _start(self, index: int, block: JsonObject) -> None:
        """Reads the beginning of a block, which may have all of its content."""
        kind = block.get("type")
        if kind == "text" and isinstance(text := block.get("text"), str) and text:
            self._sink.text(text)
        elif kind == "thinking" and isinstance(text := block.get("thinking"), str) and text:
            self._sink.reasoning(text)
        elif kind == "tool_use":
            name, call_id = block.get("name"), block.get("id")
            if not isinstance(name, str) or not name:
                raise ValueError("a tool call has no name")
            original = self._names.original(name) or NameMap(CHAT_NAME_LENGTH).wire(name)
            call_id = call_id if isinstance(call_id, str) else ""
            self._sink.call(index, valid_id(call_id, self._ids, self._id, self._calls), original)
            self._calls += 1
            self._inputs[index] = dict_of(block.get("input"))

    def _delta(self, index: int, delta: JsonObject) -> None:
        kind = delta["type"]
        if kind == "text_delta":
            self._sink.text(delta["text"])
        elif kind == "input_json_delta":
            if (text := delta["partial_json"]) and index in self._inputs:
                self._inputs[index] = {}
                self._sink.arguments(index, text)
        elif kind == "thinking_delta":
            self._sink.reasoning(delta["thinking"])

    def _end_block(self, index: int) -> None:
        if given := self._inputs.get(index):
            self._sink.arguments(index, encode(given).decode())
            self._inputs[index] = {}
        self._sink.end_block()

    def _note_end(self, delta: JsonObject) -> None:
        reason, sequence = delta.get("stop_reason"), delta.get("stop_sequence")
        if isinstance(reason, str):
            self._stop = _STOPS.get(reason, "end")
        if isinstance(sequence, str):
            self._stop_sequence = sequence
        if "stop_details" in delta:
            explanation = dict_of(delta["stop_details"]).get("explanation")
            if isinstance(explanation, str) and explanation:
                self._sink.refusal(explanation)

    def _note_usage(self, usage: JsonObject) -> None:
        """Adds what an event says: later ones repeat or complete earlier ones."""
        for name, value in usage.items():
            if value is not None:
                self._usage[name] = value


def _counts_in(usage: JsonObject) -> TokenCounts:
    """Returns the usage with the parts of the prompt as one sum, which Anthropic counts apart."""
    fresh = count_of(usage.get("input_tokens"))
    cached = count_of(usage.get("cache_read_input_tokens"))
    created = count_of(usage.get("cache_creation_input_tokens"))
    prompt = None if fresh is None else fresh + (cached or 0) + (created or 0)
    reasoning = count_of(dict_of(usage.get("output_tokens_details")).get("reasoning_tokens"))
    return TokenCounts(prompt, cached, created, count_of(usage.get("output_tokens")), reasoning)
