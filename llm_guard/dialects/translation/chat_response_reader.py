"""Reads responses of a chat endpoint, whole and streamed, piece by piece into a sink.

Compatible servers differ: arguments may come in the chunk that opens a call, all calls may have index 0, ids may be
missing or repeat, and usage may come with, before or after the finish_reason.
"""

from __future__ import annotations

from msgspec import Struct

from llm_guard.dialects.sse import count_of, dict_of, list_of
from llm_guard.dialects.translation.canonical import JsonObject, ResponseSink, StopCause, TokenCounts, stop_with_calls
from llm_guard.dialects.translation.identifiers import MESSAGES_NAME_LENGTH, NameMap, valid_id
from llm_guard.dialects.translation.wire_json import decode, encode

_STOPS: dict[str, StopCause] = {
    "stop": "end", "length": "length", "tool_calls": "tool_calls", "function_call": "tool_calls",
    "content_filter": "refusal",
}  # fmt: skip
_REASONING = ("reasoning_content", "reasoning")


class _Call(Struct):
    key: int
    id: str = ""
    name: str = ""
    waiting: list[str] = []
    """Arguments that came before the name."""
    is_begun: bool = False
    has_arguments: bool = False


class ChatResponseReader:
    """Reads one response. Raises ValueError for what cannot be read."""

    def __init__(self, sink: ResponseSink, names: NameMap, ids: NameMap, created: int) -> None:
        """`names` and `ids` are those of the request; `created` is the time of a response without one."""
        self._sink = sink
        self._names = names
        self._ids = ids
        self._created = created
        self._id = ""
        self._has_begun = False
        self._by_index: dict[int, _Call] = {}
        self._calls: list[_Call] = []
        self._stop: StopCause | None = None
        self._counts = TokenCounts()
        self.has_ended = False

    def whole(self, body: JsonObject) -> None:
        """Reads a response that is not streamed."""
        self._begin(body)
        choice = self._choice(body)
        if choice is None:
            raise ValueError("no choice")
        message = dict_of(choice.get("message"))
        if calls := list_of(message.get("tool_calls")):
            message = {**message, "tool_calls": [{**call, "index": index} for index, call in enumerate(calls)]}
        self._delta(message)
        self._note_end(choice, body)
        self._stop = self._stop or "end"
        self.finish()

    def event(self, name: str, data: bytes) -> None:
        """Reads one event of a stream."""
        del name
        if data.startswith(b"[DONE]"):
            if self._has_begun:
                self._stop = self._stop or "end"  # a server without finish_reason, which the config accepts
                self.finish()
            return
        chunk = decode(data)
        if not isinstance(chunk, dict):
            raise ValueError("an event is no object")
        if not self._has_begun:
            self._begin(chunk)
        choice = self._choice(chunk)
        if choice is not None and (delta := choice.get("delta")):
            is_usual = len(delta) == 1 and self._usual_delta(delta)  # as nearly every chunk
            if not is_usual:
                self._delta(delta)
            elif choice.get("finish_reason") is None and self._stop is None and chunk.get("usage") is None:
                return
        self._note_end(choice, chunk)
        if self._stop is not None and chunk.get("usage"):
            self.finish()

    def _usual_delta(self, delta: JsonObject) -> bool:
        """Reads a delta of text alone, or of arguments alone for a call that goes on. Returns False for any other."""
        if isinstance(content := delta.get("content"), str):
            if content:
                self._sink.text(content)
            return True
        calls = delta.get("tool_calls")
        if not isinstance(calls, list) or len(calls) != 1 or not isinstance(calls[0], dict):
            return False
        call, function = self._by_index.get(calls[0].get("index", -1)), calls[0].get("function")
        if call is None or not call.has_arguments or not call.is_begun or not isinstance(function, dict):
            return False
        arguments = function.get("arguments")
        if not isinstance(arguments, str) or not arguments or "name" in function:
            return False
        self._sink.arguments(call.key, arguments)
        return True

    def finish(self) -> None:
        """Ends the response, once the provider has said why it ended."""
        if self.has_ended or self._stop is None:
            return
        self.has_ended = True
        if any(not call.is_begun for call in self._calls):
            raise ValueError("a tool call has no name")
        stop = stop_with_calls(self._stop, has_calls=bool(self._calls))
        self._sink.end(stop, None, self._counts)

    def _begin(self, body: JsonObject) -> None:
        self._has_begun = True
        response_id, model, created = body.get("id"), body.get("model"), body.get("created")
        self._id = response_id if isinstance(response_id, str) else ""
        created = created if isinstance(created, int) else self._created
        self._sink.begin(self._id, model if isinstance(model, str) else "", created)

    def _choice(self, body: JsonObject) -> JsonObject | None:
        """Returns the first choice: the request wants no other."""
        choices = body.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        return choice if isinstance(choice, dict) and not choice.get("index") else None

    def _delta(self, delta: JsonObject) -> None:
        sink = self._sink
        content = delta.get("content")
        if content:
            if isinstance(content, str):
                sink.text(content)
            else:
                self._parts(content)
        for name in _REASONING:
            if isinstance(text := delta.get(name), str) and text:
                sink.reasoning(text)
                break
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self._stop = "refusal"
            sink.refusal(refusal)
        if delta.get("tool_calls"):
            for position, call in enumerate(list_of(delta["tool_calls"])):
                self._tool_call(dict_of(call), position)

    def _parts(self, content: object) -> None:
        """Reads content in parts, as Mistral sends it."""
        for part in list_of(content):
            if isinstance(text := dict_of(part).get("text"), str) and text:
                self._sink.text(text)
            for thought in list_of(dict_of(part).get("thinking")):
                if isinstance(text := dict_of(thought).get("text"), str) and text:
                    self._sink.reasoning(text)

    def _tool_call(self, delta: JsonObject, position: int) -> None:
        index, call_id = delta.get("index"), delta.get("id")
        index = index if isinstance(index, int) else position
        call_id = call_id if isinstance(call_id, str) else ""
        function = dict_of(delta.get("function"))
        name, arguments = function.get("name"), function.get("arguments")
        call = self._by_index.get(index)
        if call is None or (call_id and name and call.id and call_id != call.id):
            call = self._by_index[index] = _Call(len(self._calls), call_id)
            self._calls.append(call)
        call.id = call.id or call_id
        if isinstance(name, str) and name and not call.is_begun:
            self._begin_call(call, name)
        if isinstance(arguments, dict):
            arguments = encode(arguments).decode()
        if not isinstance(arguments, str) or not arguments or (arguments == "null" and not call.has_arguments):
            return  # some servers write null for no arguments
        call.has_arguments = True
        if call.is_begun:
            self._sink.arguments(call.key, arguments)
        else:
            call.waiting.append(arguments)

    def _begin_call(self, call: _Call, name: str) -> None:
        call.is_begun = True
        original = self._names.original(name) or NameMap(MESSAGES_NAME_LENGTH).wire(name)
        self._sink.call(call.key, valid_id(call.id, self._ids, self._id, call.key), original)
        for arguments in call.waiting:
            self._sink.arguments(call.key, arguments)

    def _note_end(self, choice: JsonObject | None, body: JsonObject) -> None:
        reason = choice.get("finish_reason") if choice is not None else None
        if isinstance(reason, str) and reason and self._stop != "refusal":
            self._stop = _STOPS.get(reason, "end")
        usage = body.get("usage")
        if isinstance(usage, dict):
            self._note_usage(usage)

    def _note_usage(self, usage: JsonObject) -> None:
        counts = self._counts
        cached = count_of(dict_of(usage.get("prompt_tokens_details")).get("cached_tokens"))
        counts.prompt = _newer(usage.get("prompt_tokens"), counts.prompt)
        counts.output = _newer(usage.get("completion_tokens"), counts.output)
        counts.cached = cached if cached is not None else _newer(usage.get("prompt_cache_hit_tokens"), counts.cached)
        details = dict_of(usage.get("completion_tokens_details"))
        counts.reasoning = _newer(details.get("reasoning_tokens"), counts.reasoning)


def _newer(value: object, before: int | None) -> int | None:
    count = count_of(value)
    return before if count is None else count
