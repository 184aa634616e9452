"""Static fallback responses. e2e/test_fallback_responses.py reads their formats with the official SDKs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.dialects import DIALECTS
from llm_guard.dialects.sse import SseEvent, events_in
from llm_guard.dialects.static_answer import StaticAnswerRequest, has_form, static_response_body

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
TEXT = 'Not now.\n"Later" – perhaps \N{GRINNING FACE}'
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
SHAPED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"response_format": SCHEMA}),
    ("/v1/chat/completions", {"response_format": {"type": "json_object"}}),
    ("/v1/responses", {"text": {"format": SCHEMA}}),
    ("/v1/messages", {"output_config": {"format": SCHEMA}}),
    ("/v1/messages", {"output_format": SCHEMA}),
]
FORCED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"tool_choice": "required"}),
    ("/v1/chat/completions", {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ("/v1/chat/completions", {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required"}}}),
    ("/v1/chat/completions", {"function_call": {"name": "f"}}),
    ("/v1/responses", {"tool_choice": {"type": "function", "name": "f"}}),
    ("/v1/responses", {"tool_choice": {"type": "allowed_tools", "mode": "required"}}),
    ("/v1/messages", {"tool_choice": {"type": "any"}}),
    ("/v1/messages", {"tool_choice": {"type": "tool", "name": "f"}}),
]
FREE: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"response_format": {"type": "text"}, "tool_choice": "auto", "function_call": "auto"}),
    ("/v1/chat/completions", {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}),
    ("/v1/chat/completions", {"tool_choice": "none", "response_format": None}),
    ("/v1/chat/completions", {"response_format": "odd", "tool_choice": 5, "text": ["odd"]}),
    ("/v1/responses", {"text": {"format": {"type": "text"}}, "tool_choice": {"type": "allowed_tools", "mode": "auto"}}),
    ("/v1/messages", {"tool_choice": {"type": "auto"}, "output_config": {"effort": "low"}}),
]


def occasion(path: str, *, stream: bool = False, choices: int = 1, **request: Any) -> StaticAnswerRequest:
    return StaticAnswerRequest(path, "lg-01", "gpt", 1_800_000_000, stream, choices, request)


def body(path: str, said: str = TEXT, /, **more: Any) -> dict[str, Any]:
    answer = static_response_body(said, occasion(path, **more))
    assert answer is not None
    found: dict[str, Any] = json.loads(answer)
    return found


def events(path: str, said: str = TEXT, /, **more: Any) -> list[SseEvent]:
    answer = static_response_body(said, occasion(path, stream=True, **more))
    assert answer is not None
    return list(events_in(answer))


def test_paths_that_have_a_form_are_those_that_answer_with_text() -> None:
    assert all(has_form(path) for path in PATHS)
    others = ("/v1/embeddings", "/v1/messages/count_tokens", "/v1/chat/completions/", "/v1/models", "/v1/responses/x")
    assert not any(has_form(path) for path in others)


@pytest.mark.parametrize("path", PATHS)
def test_response_is_recognized_by_its_id_and_costs_nothing(path: str) -> None:
    whole = body(path)
    assert whole["id"].endswith("degraded-lg-01")
    assert whole["model"] == "gpt"
    assert json.dumps(TEXT) in json.dumps(whole)
    counted = [value for value in whole["usage"].values() if isinstance(value, int)]
    assert counted
    assert not any(counted)


@pytest.mark.parametrize("path", PATHS)
def test_stream_is_one_that_the_gateway_itself_takes_for_whole(path: str) -> None:
    reader = DIALECTS["anthropic" if path == "/v1/messages" else "openai"].stream_reader(path, 1)
    marks = [reader.read(event) for event in events(path)]
    assert any(mark.is_token for mark in marks)
    assert any(mark.is_end for mark in marks)
    assert not any(mark.error for mark in marks)
    assert reader.missing_end() == b""


@pytest.mark.parametrize("path", PATHS)
def test_stream_has_the_text_of_the_whole_response(path: str) -> None:
    data = b"".join(event.data for event in events(path))
    assert json.dumps(TEXT).encode() in data
    assert b"degraded-lg-01" in data


def test_stream_has_usage_only_on_request() -> None:
    path = "/v1/chat/completions"
    assert not any(b"usage" in event.data for event in events(path))
    *_, counted, done = events(path, stream_options={"include_usage": True})
    assert json.loads(counted.data)["choices"] == []
    assert json.loads(counted.data)["usage"]["total_tokens"] == 0
    assert done.data == b"[DONE]"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_every_choice_has_the_same_text_up_to_a_bound(path: str) -> None:
    assert [choice["index"] for choice in body(path, choices=3)["choices"]] == [0, 1, 2]
    assert len(body(path, choices=999)["choices"]) == 16
    streamed = [json.loads(event.data) for event in events(path, choices=3)[:-1]]
    ended = [each["choices"][0]["index"] for each in streamed if each["choices"][0]["finish_reason"] == "stop"]
    assert ended == [0, 1, 2]


# requested response format


@pytest.mark.parametrize(("path", "request_"), FREE)
def test_free_request_gets_the_text(path: str, request_: dict[str, Any]) -> None:
    assert body(path, **request_) == body(path)


@pytest.mark.parametrize(("path", "request_"), [*SHAPED, *FORCED])
def test_prose_is_no_json_and_no_call_of_a_tool(path: str, request_: dict[str, Any]) -> None:
    if path == "/v1/messages":
        assert static_response_body(TEXT, occasion(path, **request_)) is None
        return
    whole = json.dumps(body(path, **request_))
    assert f'"refusal": {json.dumps(TEXT)}' in whole
    assert f'"content": {json.dumps(TEXT)}' not in whole
    assert f'"text": {json.dumps(TEXT)}' not in whole
    assert any(b"refusal" in event.data for event in events(path, **request_))


@pytest.mark.parametrize(("path", "request_"), SHAPED)
def test_json_is_sent_to_clients_that_accept_json(path: str, request_: dict[str, Any]) -> None:
    assert body(path, '{"a": 1}', **request_) == body(path, '{"a": 1}')


@pytest.mark.parametrize(("path", "request_"), FORCED)
def test_json_is_no_call_of_a_tool(path: str, request_: dict[str, Any]) -> None:
    answer = static_response_body('{"a": 1}', occasion(path, **request_))
    assert answer is None if path == "/v1/messages" else answer is not None and b'"refusal":"{' in answer


@pytest.mark.parametrize("text", ["5", '"text"', "[" * 100_000, "{", "null"])
def test_non_object_is_no_json_response(text: str) -> None:
    assert static_response_body(text, occasion("/v1/messages", output_format=SCHEMA)) is None
