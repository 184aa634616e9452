"""Writes a unary response as the stream that its request wanted: chat, completions, responses, messages.

Each part of a response becomes one delta. A response with content that the endpoint has no event for cannot be written:
nothing is left out. `proxy.response.unary` decides when a response is written as a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llm_guard.dialects.event_writer import data_event, encoded, named_event
from llm_guard.dialects.resume.base import Body, mapping, text_in

_DONE = b"data: [DONE]\n\n"
_TEXT_OF_PART = {"output_text": "text", "refusal": "refusal"}
_END_OF_RESPONSE = {"completed": "response.completed", "incomplete": "response.incomplete"}
_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_WHOLE_BLOCKS = frozenset({"redacted_thinking", "container_upload"})
"""Streams have these whole in `content_block_start`, like the results of tools."""


class _Unwritable(Exception):
    """The response contains something that no event of its endpoint can hold."""


def stream_of(path: str, answer: Body, *, is_usage_wanted: bool) -> bytes | None:
    """The events of a unary response to `path`; None if it cannot be written. `is_usage_wanted`: the `stream_options`
    of a chat or completion include it."""
    write = _WRITERS.get(path)
    if write is None:
        return None
    try:
        return b"".join(write(answer, is_usage_wanted))
    except (_Unwritable, ValueError, RecursionError):
        return None


# chat, completions


def _chat(answer: Body, is_usage_wanted: bool) -> Iterator[bytes]:
    head = _head(answer, "chat.completion.chunk")
    choices = _choices(answer)
    # openai-python counts log probabilities twice if they come with the first chunk of a choice.
    for choice in choices:
        role = {"role": mapping(choice.get("message")).get("role") or "assistant"}
        yield data_event(head | {"choices": [{"index": choice["index"], "delta": role, "finish_reason": None}]})
    for choice in choices:
        rest = {key: value for key, value in choice.items() if key != "message"}
        delta = _delta(mapping(choice.get("message")))
        yield data_event(head | {"choices": [rest | {"delta": delta, "finish_reason": None}]})
    for choice in choices:
        end = {"index": choice["index"], "delta": {}, "finish_reason": choice.get("finish_reason")}
        yield data_event(head | {"choices": [end]})
    yield from _end(answer, head, is_usage_wanted)


def _delta(message: Body) -> Body:
    """All of the message except its role."""
    delta = {key: value for key, value in message.items() if value is not None and key != "role"}
    if "tool_calls" in delta:
        calls = enumerate(_objects(delta["tool_calls"]))
        delta["tool_calls"] = [{"index": index, **call} for index, call in calls]
    return delta


def _completion(answer: Body, is_usage_wanted: bool) -> Iterator[bytes]:
    head = _head(answer, "text_completion")
    for choice in _choices(answer):
        yield data_event(head | {"choices": [choice]})
    yield from _end(answer, head, is_usage_wanted)


def _choices(answer: Body) -> list[Body]:
    return [{"index": index, **choice} for index, choice in enumerate(_objects(answer.get("choices")))]


def _head(answer: Body, kind: str) -> Body:
    return {key: value for key, value in answer.items() if key not in ("choices", "usage")} | {"object": kind}


def _end(answer: Body, head: Body, is_usage_wanted: bool) -> Iterator[bytes]:
    if is_usage_wanted and answer.get("usage") is not None:
        yield data_event(head | {"choices": [], "usage": answer["usage"]})
    yield _DONE


# responses


def _response(answer: Body, _is_usage_wanted: bool) -> Iterator[bytes]:
    for number, fields in enumerate(_response_events(answer)):
        yield named_event(fields | {"sequence_number": number})


def _response_events(answer: Body) -> Iterator[Body]:
    end = _END_OF_RESPONSE.get(text_in(answer, "status") or "completed")
    if end is None:
        raise _Unwritable
    begun = answer | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(_objects(answer.get("output"))):
        yield from _item(item, index)
    yield {"type": end, "response": answer}


def _item(item: Body, index: int) -> Iterator[Body]:
    at: Body = {"item_id": item.get("id"), "output_index": index}
    write = _ITEMS.get(text_in(item, "type"))
    start, deltas = write(item, at) if write is not None else (item, iter(()))
    yield {"type": "response.output_item.added", "output_index": index, "item": start}
    yield from deltas
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _message_item(item: Body, at: Body) -> tuple[Body, Iterator[Body]]:
    return item | {"status": "in_progress", "content": []}, _parts(item, at)


def _parts(item: Body, at: Body) -> Iterator[Body]:
    for index, part in enumerate(_objects(item.get("content"))):
        kind = text_in(part, "type")
        what = _TEXT_OF_PART.get(kind)
        if what is None:
            raise _Unwritable
        here: Body = {**at, "content_index": index}
        extra: Body = {"logprobs": part.get("logprobs") or []} if kind == "output_text" else {}
        yield {"type": "response.content_part.added", **here, "part": part | {what: ""}}
        yield {"type": f"response.{kind}.delta", **here, "delta": _text(part, what), **extra}
        for number, annotation in enumerate(_objects(part.get("annotations") or [])):
            noted = {"annotation_index": number, "annotation": annotation}
            yield {"type": "response.output_text.annotation.added", **here, **noted}
        yield {"type": f"response.{kind}.done", **here, what: _text(part, what), **extra}
        yield {"type": "response.content_part.done", **here, "part": part}


def _reasoning(item: Body, at: Body) -> tuple[Body, Iterator[Body]]:
    return item | {"summary": []}, _summary(item, at)


def _summary(item: Body, at: Body) -> Iterator[Body]:
    for index, part in enumerate(_objects(item.get("summary"))):
        here: Body = {**at, "summary_index": index}
        text = _text(part, "text")
        yield {"type": "response.reasoning_summary_part.added", **here, "part": part | {"text": ""}}
        yield {"type": "response.reasoning_summary_text.delta", **here, "delta": text}
        yield {"type": "response.reasoning_summary_text.done", **here, "text": text}
        yield {"type": "response.reasoning_summary_part.done", **here, "part": part}
    for index, part in enumerate(_objects(item.get("content") or [])):
        here = {**at, "content_index": index}
        yield {"type": "response.reasoning_text.delta", **here, "delta": _text(part, "text")}
        yield {"type": "response.reasoning_text.done", **here, "text": _text(part, "text")}


def _call(item: Body, at: Body) -> tuple[Body, Iterator[Body]]:
    kind = "function_call_arguments" if item["type"] == "function_call" else "custom_tool_call_input"
    name = "arguments" if item["type"] == "function_call" else "input"
    text = _text(item, name)
    done = {"type": f"response.{kind}.done", **at, name: text}
    if name == "arguments":
        done["name"] = item.get("name")
    deltas: tuple[Body, ...] = ({"type": f"response.{kind}.delta", **at, "delta": text}, done)
    return item | {"status": "in_progress", name: ""}, iter(deltas)


_ITEMS: Mapping[str, Callable[[Body, Body], tuple[Body, Iterator[Body]]]] = {
    "message": _message_item,
    "reasoning": _reasoning,
    "function_call": _call,
    "custom_tool_call": _call,
}
"""Other items are complete in `response.output_item.added`."""


# messages


def _message(answer: Body, _is_usage_wanted: bool) -> Iterator[bytes]:
    usage = mapping(answer.get("usage"))
    start: Body = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage | {"output_tokens": 0}}
    yield named_event({"type": "message_start", "message": {"type": "message", **answer, **start}})
    for index, block in enumerate(_objects(answer.get("content"))):
        first, deltas = _block(block)
        yield named_event({"type": "content_block_start", "index": index, "content_block": first})
        for delta in deltas:
            yield named_event({"type": "content_block_delta", "index": index, "delta": delta})
        yield named_event({"type": "content_block_stop", "index": index})
    end = {key: answer[key] for key in ("container", "stop_details") if answer.get(key) is not None}
    end |= {"stop_reason": answer.get("stop_reason"), "stop_sequence": answer.get("stop_sequence")}
    counts = {key: value for key, value in usage.items() if value is not None}
    yield named_event({"type": "message_delta", "delta": end, "usage": {"output_tokens": 0, **counts}})
    yield named_event({"type": "message_stop"})


def _block(block: Body) -> tuple[Body, list[Body]]:
    """The start of a content block, and the deltas that complete it."""
    kind = text_in(block, "type")
    if kind == "text":
        start: Body = block | {"text": ""} | ({"citations": []} if block.get("citations") else {})
        citations = _objects(block.get("citations") or [])
        cited = [{"type": "citations_delta", "citation": citation} for citation in citations]
        return start, [{"type": "text_delta", "text": _text(block, "text")}, *cited]
    if kind == "thinking":
        thought = {"type": "thinking_delta", "thinking": _text(block, "thinking")}
        signature = _text(block, "signature")
        signed = [{"type": "signature_delta", "signature": signature}] if signature else []
        return block | {"thinking": "", "signature": ""}, [thought, *signed]
    if kind in _CALLS:
        arguments = block.get("input")
        if not isinstance(arguments, dict):
            raise _Unwritable
        return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": encoded(arguments).decode()}]
    if kind in _WHOLE_BLOCKS or kind.endswith("_tool_result"):
        return block, []
    raise _Unwritable


def _legacy(answer: Body, _is_usage_wanted: bool) -> Iterator[bytes]:
    if not text_in(answer, "stop_reason"):  # a stream without one has no end
        raise _Unwritable
    yield named_event(answer | {"type": "completion"})


_WRITERS: Mapping[str, Callable[[Body, bool], Iterator[bytes]]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/responses": _response,
    "/v1/messages": _message,
    "/v1/complete": _legacy,
}


def _objects(value: Any) -> list[Body]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _Unwritable
    return value


def _text(body: Body, key: str) -> str:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise _Unwritable
    return value or ""
