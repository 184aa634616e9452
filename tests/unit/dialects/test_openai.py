from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.dialects import openai
from llm_guard.dialects.openai import ChatReader, OtherReader, ResponsesReader, stream_reader
from llm_guard.dialects.sse import (
    END,
    FILLER,
    FOREIGN,
    MALFORMED,
    NOTHING,
    PROGRESS,
    TOKEN,
    Mark,
    SseEvent,
    StreamObserver,
    StreamReader,
    Usage,
)
from llm_guard.outcome import Refusal


def event(data: object, name: str = "", *, is_whole: bool = True) -> SseEvent:
    return SseEvent(name, data if isinstance(data, bytes) else json.dumps(data).encode(), is_whole)


def choice(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish}


def chunk(*choices: dict[str, Any], **more: Any) -> SseEvent:
    return event({"object": "chat.completion.chunk", "choices": list(choices), **more})


def chat(data: SseEvent) -> Mark:
    return ChatReader(1).read(data)


def watch(reader: StreamReader, stream: bytes) -> StreamObserver:
    watched = StreamObserver(reader)
    watched.feed(stream)
    return watched


@pytest.mark.parametrize(
    ("path", "reader"),
    [
        ("/v1/chat/completions", ChatReader),
        ("/v1/completions", ChatReader),
        ("/v1/responses", ResponsesReader),
        ("/v1/responses/resp_1", ResponsesReader),
        ("/v1/audio/speech", OtherReader),
    ],
)
def test_path_decides_how_its_stream_is_read(path: str, reader: type) -> None:
    assert isinstance(stream_reader(path, 1), reader)


# chat


@pytest.mark.parametrize(
    "data",
    [
        chunk(choice(role="assistant")),
        chunk(choice(role="assistant", content="", refusal=None)),
        chunk(choice(content="")),
        chunk(choice()),
        chunk(choice(tool_calls=[{"index": 0, "type": "function", "function": {"arguments": ""}}])),
        chunk(choice(content=[{"type": "thinking", "thinking": [{"type": "text", "text": ""}]}])),
        chunk(choice(reasoning_details=[{"type": "reasoning.text", "text": "", "format": "unknown", "index": 0}])),
        event({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}),
        event({"id": "", "object": ""}),
        event({"choices": None}),
        event(b""),
        event(b"[DONE]"),
    ],
)
def test_chat_header_is_no_token(data: SseEvent) -> None:
    assert chat(data) == NOTHING


@pytest.mark.parametrize(
    "said",
    [
        {"content": "x"},
        {"role": "assistant", "content": "x"},
        {"reasoning_content": "hm"},
        {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": ""}}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
        {"content": " "},
        {"refusal": "no"},
        {"audio": {"id": "1"}},
    ],
)
def test_any_content_in_a_chat_is_a_token(said: dict[str, Any]) -> None:
    assert chat(chunk(choice(**said))) == TOKEN


@pytest.mark.parametrize("sampled", [{"token_ids": [5]}, {"logprobs": {"content": [{"token": "x", "logprob": -0.1}]}}])
def test_chunk_of_a_sampled_token_without_text_is_progress(sampled: dict[str, Any]) -> None:
    assert chat(chunk({**choice(content=""), **sampled})) == PROGRESS
    assert chat(chunk({**choice(content=""), **dict.fromkeys(sampled)})) == NOTHING


def test_deep_delta_is_a_token_and_raises_nothing() -> None:
    deep = b'{"choices": [{"delta": {"a": ' + b"[" * 900 + b"]" * 900 + b"}}]}"
    assert chat(event(deep)) == TOKEN


@pytest.mark.parametrize(
    "data",
    [
        chunk(choice(role="assistant", content="")),
        chunk(choice(content="")),
        chunk(choice()),
        chunk(),
    ],
)
def test_empty_chunk_of_a_chat_is_filler_once_its_choice_has_begun(data: SseEvent) -> None:
    reader = ChatReader(1)
    assert reader.read(chunk(choice(role="assistant"))) == NOTHING
    assert reader.read(data) == FILLER
    assert reader.read(chunk(choice(content="x"))) == TOKEN


def test_text_of_a_legacy_completion_is_a_token() -> None:
    data = event({"choices": [{"index": 0, "text": "x", "finish_reason": None}]})
    assert ChatReader(1, is_chat=False).read(data) == TOKEN
    empty = event({"choices": [{"index": 0, "text": "", "finish_reason": None}]})
    assert ChatReader(1, is_chat=False).read(empty) == NOTHING


def test_chunk_of_the_other_endpoint_is_foreign() -> None:
    """A client of one endpoint does not see the text of the other."""
    text = event({"choices": [{"index": 0, "text": "x", "finish_reason": None}]})
    delta = chunk(choice(content="x"))
    both = event({"choices": [{"index": 0, "text": "x", "delta": {"content": "x"}}]})
    for path, foreign in (("/v1/chat/completions", text), ("/v1/completions", delta)):
        assert stream_reader(path, 1).read(foreign) == FOREIGN
        assert stream_reader(path, 1).read(both).is_token
    for own in (text, delta, both):
        assert stream_reader("/v1/fim/completions", 1).read(own).is_token


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter", "anything_new"])
def test_chat_ends_with_a_finish_reason(reason: str) -> None:
    assert chat(chunk(choice(finish=reason))) == END


def test_empty_finish_reason_is_none() -> None:
    assert chat(chunk(choice(finish="", role="assistant", content=""))) == NOTHING
    assert chat(chunk(choice(finish="", content="x"))) == TOKEN


def test_chat_of_two_choices_ends_when_both_have_finished() -> None:
    reader = ChatReader(2)
    assert not reader.read(chunk(choice(0, "stop"))).is_end
    assert not reader.read(chunk(choice(0, "stop"))).is_end
    assert reader.read(chunk(choice(1, "stop"))).is_end
    assert ChatReader(2).read(chunk(choice(0, "stop"), choice(1, "length"))).is_end


def test_done_after_fewer_choices_than_requested_is_the_end() -> None:
    reader = ChatReader(3)
    reader.read(chunk(choice(0, content="x"), choice(1, content="y")))
    assert not reader.read(chunk(choice(0, "stop"), choice(1, "stop"))).is_end
    assert reader.read(event(b"[DONE]")) == END


@pytest.mark.parametrize("choices", [2, 3])
def test_done_before_a_choice_that_has_begun_is_finished_is_no_end(choices: int) -> None:
    reader = ChatReader(choices)
    reader.read(chunk(choice(0, content="x")))
    reader.read(chunk(choice(1, role="assistant")))
    reader.read(chunk(choice(0, "stop")))
    assert reader.read(event(b"[DONE]")) == NOTHING


def text(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": text, "finish_reason": finish}]}


def test_legacy_completion_of_several_prompts_ends_when_all_that_have_begun_are_finished() -> None:
    reader = ChatReader(1, is_chat=False)
    for one in (text(0, "x"), text(1, "y"), text(0, "", "stop"), text(2, "z"), text(2, "", "length")):
        assert not reader.read(event(one)).is_end
    assert reader.read(event(text(1, "", "stop"))).is_end


@pytest.mark.parametrize(("choices", "is_ended"), [(2, [False, True]), (0, [False, False])])
def test_legacy_completion_of_several_prompts_may_answer_them_one_after_the_other(
    choices: int, is_ended: list[bool]
) -> None:
    reader = ChatReader(choices, is_chat=False)
    marks = [reader.read(event(each)) for each in (text(0, "x"), text(0, "", "stop"), text(1, "y"))]
    assert not any(mark.is_end for mark in marks)
    assert [bool(marks[1].is_end), reader.read(event(text(1, "", "stop"))).is_end] == is_ended
    assert reader.read(event(b"[DONE]")) == END


def test_choice_that_begins_late_is_seen_on_the_fast_path() -> None:
    stream = b"".join(
        b"data: " + json.dumps(each).encode() + b"\n\n" for each in (text(0, "x"), text(1, "y"), text(0, "", "stop"))
    )
    assert not watch(stream_reader("/v1/completions", 1), stream + b"data: [DONE]\n\n").may_end
    late = chunk(choice(0, content="x")), chunk(choice(1, content="y")), chunk(choice(0, "stop"))
    stream = b"".join(b"data: " + event.data + b"\n\n" for event in late)
    assert not watch(ChatReader(2), stream + b"data: [DONE]\n\n").may_end
    assert not watch(ChatReader(3), stream + b"data: [DONE]\n\n").may_end


def test_unfinished_choices_are_stored_up_to_a_bound() -> None:
    for reader in (ChatReader(2), ChatReader(1, is_chat=False)):
        for index in range(3000):
            reader.read(event(text(index, "x", "stop")))
        assert len(reader._begun) <= 1024
        assert len(reader._finished) <= 1024


def test_done_alone_proves_nothing() -> None:
    seen = watch(ChatReader(1), b'data: {"choices": [{"delta": {"content": "x"}}]}\n\ndata: [DONE]\n\n')
    assert (seen.has_token, seen.has_ended, seen.may_end) == (True, False, False)


def ended(*events: SseEvent, choices: int = 1, is_lenient: bool = True) -> Mark:
    """Returns the mark of `[DONE]` after these events."""
    reader = stream_reader("/v1/chat/completions", choices, is_lenient=is_lenient)
    for sse_event in events:
        reader.read(sse_event)
    return reader.read(event(b"[DONE]"))


def test_done_without_any_finish_reason_is_the_end_where_the_upstream_is_lenient() -> None:
    said = chunk(choice(0, content="x"))
    assert ended(said) == END
    assert ended(said, chunk(choice(1, content="x")), choices=2) == END
    assert ended(said, is_lenient=False) == Mark(lacks_finish=True)
    assert ended(chunk(choice(0, "stop"))) == ended(chunk(choice(0, "stop")), is_lenient=False) == END


def test_lenience_makes_no_answer_of_nothing_and_no_whole_of_a_choice_that_others_have_finished() -> None:
    assert ended() == ended(chunk(choice(role="assistant", content=""))) == NOTHING
    assert ended(chunk(choice(0, content="x")), chunk(choice(1, "stop")), choices=2) == NOTHING


def owed(choices: int, *data: bytes | SseEvent) -> bytes:
    reader = ChatReader(choices)
    for sse_event in data:
        reader.read(event(sse_event) if isinstance(sse_event, bytes) else sse_event)
    return reader.missing_end()


def test_done_is_owed_once_every_choice_has_finished() -> None:
    said, one, two = chunk(choice(content="x")), chunk(choice(0, "stop")), chunk(choice(1, "stop"))
    assert owed(1, said) == b""
    assert owed(1, said, one) == owed(1, one, chunk(usage={})) == b"data: [DONE]\n\n"
    assert owed(1, one, b"[DONE]") == b""
    assert owed(2, one) == owed(2, one, b"[DONE]") == b""
    assert owed(2, one, two) == b"data: [DONE]\n\n"


def test_done_is_not_owed_after_an_error() -> None:
    finish = b'data: {"choices": [{"index": 0, "finish_reason": "stop"}]}\n\n'
    assert watch(ChatReader(1), finish).missing_end == b"data: [DONE]\n\n"
    assert watch(ChatReader(1), finish + b'data: {"error": {"message": "boom"}}\n\n').missing_end == b""


def test_other_formats_owe_nothing() -> None:
    end = b'data: {"type": "response.completed"}\n\n'
    assert watch(ResponsesReader(), end).missing_end == watch(OtherReader(), end).missing_end == b""


def test_usage_of_groq_is_counted_where_it_puts_it() -> None:
    trailer = chunk(choice(finish="stop"), x_groq={"id": "r", "usage": {"prompt_tokens": 4, "completion_tokens": 2}})
    assert chat(trailer).usage == Usage(4, 2)
    assert chat(chunk(choice(role="assistant"), x_groq={"id": "r"})).usage is None
    assert chat(chunk(x_groq=[])).usage is None
    assert chat(chunk(usage={"prompt_tokens": 1}, x_groq={"usage": {"prompt_tokens": 2}})).usage == Usage(1, None)


@pytest.mark.parametrize(
    ("text", "is_dull"),
    [
        (b'{"finish_reason":null,"usage": null,"error":null}', True),
        (b'{"finish_reason": null}', True),
        (b'{"finish_reason":"","usage": ""}', True),
        (rb'{"content":"\"finish_reason\":\"stop\", \"usage\", \"error\""}', True),
        (b'{"finish_reason":"stop"}', False),
        (b'{"finish_reason" :null}', False),
        (b'{"usage":{}}', False),
        (b'{"error":{}}', False),
        (b'{"type":"error"}', False),
        (b'{"finish_reason":null}, {"finish_reason": "stop"}', False),
    ],
)
def test_chunk_of_a_chat_is_dull_when_nothing_in_it_can_matter(text: bytes, is_dull: bool) -> None:
    assert ChatReader(1).is_dull(b"data: " + text + b"\n\n") is is_dull


@pytest.mark.parametrize(
    ("text", "is_dull"),
    [
        (b'{"type":"response.output_text.delta"}', True),
        (b'{"type":"response.web_search_call.completed"}', True),
        (b'{"type":"response.completed"}', False),
        (b'{"type":"response.failed"}', False),
        (b'{"type":"response.incomplete"}', False),
        (b'{"type":"error"}', False),
    ],
)
def test_event_of_a_response_is_dull_when_it_cannot_be_the_last(text: bytes, is_dull: bool) -> None:
    assert ResponsesReader().is_dull(b"data: " + text + b"\n\n") is is_dull


def test_usage_has_a_trailer_without_choices() -> None:
    mark = chat(chunk(usage={"prompt_tokens": 9, "completion_tokens": 3}))
    assert mark == Mark(usage=Usage(9, 3))
    assert chat(chunk(choice(content="x"), usage=None)) == TOKEN


@pytest.mark.parametrize("count", [-1, "3", 3.5, True, None])
def test_nonsense_is_not_counted_as_tokens(count: object) -> None:
    assert openai.usage_in({"usage": {"prompt_tokens": count, "completion_tokens": 2}}) == Usage(None, 2)


def test_usage_of_a_responses_object_is_counted_too() -> None:
    assert openai.usage_in({"usage": {"input_tokens": 5, "output_tokens": 6}}) == Usage(5, 6)
    assert openai.usage_in({"usage": "much"}) is None
    assert openai.usage_in({}) is None


@pytest.mark.parametrize(
    "data",
    [
        event({"error": {"message": "boom", "code": 500}}),  # vLLM, OpenAI
        event({"error": "boom", "choices": []}),
        event({"object": "error", "message": "boom", "code": 400}),  # vLLM until 2025
        event({"message": "boom"}, "error"),
        event(b"Internal Server Error", "error"),
        event({"type": "error", "message": "boom"}),
        chunk(choice(finish="error")),  # OpenRouter
        chunk(choice(finish="insufficient_system_resource")),  # DeepSeek
        chunk(choice(finish="network_error")),  # Z.ai
        chunk(choice(finish="abort")),  # vLLM, SGLang
        chunk(choice(finish="network-error")),
        chunk(choice(finish="ERROR")),
        chunk(choice(finish="timeout")),
        chunk({**choice(finish="stop"), "native_finish_reason": "network_error"}),  # OpenRouter
        chunk({**choice(finish="stop"), "error": {"code": 502, "message": "boom"}}),  # OpenRouter
    ],
)
def test_error_in_a_chat_is_marked_as_it_was_written(data: SseEvent) -> None:
    # The official SDKs raise an exception for a field of that name.
    is_heard = data.data.startswith(b"{") and bool(json.loads(data.data).get("error"))
    assert chat(data) == Mark(error=data.data, is_heard=is_heard)


def test_error_that_is_null_is_none() -> None:
    assert chat(chunk(choice(content="x"), error=None)) == TOKEN
    assert chat(chunk({**choice(content="x"), "error": None, "native_finish_reason": None})) == TOKEN


@pytest.mark.parametrize("native", ["stop", "STOP", "completed", "end_turn", "length", "content_filter", None])
def test_end_of_the_provider_after_it_is_no_failure(native: str | None) -> None:
    assert chat(chunk({**choice(finish="stop"), "native_finish_reason": native})) == END


def test_numbers_of_any_length_are_read() -> None:
    long = b'{"choices":[{"index":0,"delta":{"content":"x"}}],"x":1e400,"y":%b}' % (b"9" * 5000)
    assert chat(event(long)) == TOKEN
    assert (
        ResponsesReader().read(event(b'{"type":"response.output_text.delta","delta":"x","y":%b}' % (b"9" * 5000)))
        == TOKEN
    )


def test_vllm_error_then_done_is_an_error_and_no_end() -> None:
    seen = watch(ChatReader(1), b'data: {"error": {"message": "boom"}}\n\ndata: [DONE]\n\n')
    assert (seen.error, seen.has_ended) == (b'{"error": {"message": "boom"}}', False)


def test_error_field_of_llama_cpp_is_an_error() -> None:
    assert watch(ChatReader(1), b'error: {"code": 500}\n\n').error == b'{"code": 500}'


@pytest.mark.parametrize("data", [b"{", b"[1]", b"3", b'"x"', b"null", b"\xff", b"<html>", b"[" * 100_000])
def test_non_object_is_malformed(data: bytes) -> None:
    assert chat(event(data)) == MALFORMED
    assert ResponsesReader().read(event(data)) == MALFORMED


@pytest.mark.parametrize(
    "value",
    [
        {"choices": 3},
        {"choices": [None, 3, []]},
        {"choices": [{"delta": 3, "index": "a", "finish_reason": []}]},
        {"choices": {"a": 1}},
        {"usage": [], "type": []},
        {"response": 3, "type": {}},
    ],
)
def test_confused_types_raise_nothing(value: object) -> None:
    for reader in (ChatReader(1), ResponsesReader(), OtherReader()):
        reader.read(event(value))
        reader.read(event(value, "response.completed"))


def test_beginning_of_an_event_too_long_to_read_is_a_token() -> None:
    assert chat(event(b'{"choices": [{"delta": {"content": "xx', is_whole=False)) == TOKEN


# Responses


def response(kind: str, name: str | None = None, **more: Any) -> Mark:
    return ResponsesReader().read(event({"type": kind, **more}, kind if name is None else name))


@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete"])
def test_response_ends_with_its_usage(kind: str) -> None:
    mark = response(kind, response={"usage": {"input_tokens": 1, "output_tokens": 2}, "error": None})
    assert mark == Mark(is_token=True, is_progress=True, is_end=True, usage=Usage(1, 2))


@pytest.mark.parametrize("kind", ["response.failed", "error"])
def test_response_that_fails_is_an_error_and_no_end(kind: str) -> None:
    mark = response(kind, message="boom")
    assert mark.error is not None
    assert not mark.is_end


def test_completed_response_that_has_failed_is_an_error() -> None:
    error = {"code": "server_error", "message": "boom"}
    mark = response("response.completed", response={"status": "failed", "error": error})
    assert (mark.error is None, mark.is_end) == (False, False)
    assert response("response.completed", response={"status": "completed", "error": error}).is_end


def test_response_error_may_lack_a_kind() -> None:
    assert ResponsesReader().read(event({"error": {"message": "boom"}})).error is not None
    assert ResponsesReader().read(event(b"boom", "error")).error == b"boom"


@pytest.mark.parametrize(
    ("kind", "mark"),
    [
        ("response.created", NOTHING),
        ("response.in_progress", NOTHING),
        ("keepalive", FILLER),
        ("response.heartbeat", FILLER),
        ("response.output_item.added", PROGRESS),
        ("response.web_search_call.searching", PROGRESS),
        ("response.output_text.delta", TOKEN),
        ("response.reasoning_summary_text.delta", TOKEN),
        ("response.output_item.done", TOKEN),
    ],
)
def test_response_headers_are_no_tokens(kind: str, mark: Mark) -> None:
    assert response(kind, response={"error": None, "usage": None}) == mark
    assert response(kind, name="", response={"error": None, "usage": None}) == mark


@pytest.mark.parametrize("delta", ["", None, {"stdout": "", "stderr": ""}])
def test_empty_delta_of_a_response_is_filler(delta: object) -> None:
    assert response("response.output_text.delta", delta=delta) == FILLER


def test_kind_is_in_the_data_where_the_event_has_no_name() -> None:
    assert response("response.completed", name="").is_end
    data = event({"response": {"output": [{"type": "message"}]}, "type": "response.completed"})
    assert ResponsesReader().read(data).is_end


def test_completed_response_too_long_to_read_is_an_end() -> None:
    data = event(b'{"type":"response.completed","response":{"output":[', is_whole=False)
    assert ResponsesReader().read(data).is_end


# the gateway's own events


def test_refusal_reads_like_an_error_of_openai() -> None:
    body = openai.refusal_body(Refusal(429, "too_many", "slow down", by="limit", param="model"), "lg-1")
    assert body["error"] == {
        "message": "slow down", "type": "rate_limit_error", "param": "model", "code": "too_many",
    }  # fmt: skip
    assert body["request_id"] == "lg-1"


@pytest.mark.parametrize("text", ["boom", "two\nlines", 'quote " and \r\n\r\n data: x', "ümlaut \ud83d"])
def test_error_event_is_one_event_that_the_readers_take_for_an_error(text: str) -> None:
    written = openai.error_event(Refusal(502, "upstream_truncated", text, by=None), "lg-1")
    assert written.count(b"\n\n") == 1
    for reader in (ChatReader(1), ResponsesReader(), OtherReader()):
        error = watch(reader, b'data: {"a": 1}\n\n' + written).error
        assert error is not None
        assert json.loads(error)["error"]["message"] == json.loads(error)["message"] == text


@pytest.mark.parametrize("names", [("prompt", "completion"), ("input", "output")])
def test_tokens_read_from_the_cache_are_counted(names: tuple[str, str]) -> None:
    given, made = names
    usage = {f"{given}_tokens": 9, f"{made}_tokens": 1, f"{given}_tokens_details": {"cached_tokens": 8}}
    assert openai.usage_in({"usage": usage}) == Usage(9, 1, 8)
    assert openai.usage_in({"usage": {**usage, f"{given}_tokens_details": None}}) == Usage(9, 1, None)
