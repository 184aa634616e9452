"""Requests in the other dialect: what is not about a known defect of other translators."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from llm_guard.dialects.translation.canonical import UnreadableRequestError
from llm_guard.dialects.translation.endpoints import CHAT, MESSAGES, endpoint_of, read_request
from llm_guard.dialects.translation.output_limits import limit_in
from llm_guard.dialects.translation.reasoning import chat_effort, claude_thinking, takes_sampling
from tests.unit.dialects.translation.conversions import (
    CHAT_TOOL,
    MESSAGES_TOOL,
    SAID,
    WEATHER,
    body_of,
    from_chat,
    from_messages,
    losses_of,
)


@pytest.mark.parametrize("translate", [from_chat, from_messages])
def test_unknown_field_is_a_promise(translate: Any) -> None:
    assert losses_of(translate({"brand_new": 1})) == {"brand_new": "promise"}
    assert losses_of(translate({"brand_new": None})) == {"brand_new": "promise"}


@pytest.mark.parametrize(
    "field", ["seed", "n", "logprobs", "store", "service_tier", "user", "stop", "tools", "metadata"]
)
def test_null_is_no_loss(field: str) -> None:
    assert losses_of(from_chat({field: None})) == {}


@pytest.mark.parametrize("fields", [
    {"n": 1}, {"logprobs": False}, {"store": False}, {"modalities": ["text"]}, {"frequency_penalty": 0.0},
    {"service_tier": "auto"}, {"verbosity": "medium"}, {"functions": []}, {"temperature": 1.0},
    {"response_format": {"type": "text"}}, {"reasoning_effort": "none"}, {"parallel_tool_calls": True},
])  # fmt: skip
def test_value_that_changes_nothing_is_no_loss(fields: dict[str, Any]) -> None:
    assert losses_of(from_chat(fields)) == {}


@pytest.mark.parametrize(("fields", "name"), [
    ({"store": True}, "store"), ({"modalities": ["text", "audio"]}, "modalities"), ({"functions": [{}]}, "functions"),
    ({"response_format": {"type": "json_object"}}, "json_object"),
    ({"response_format": {"type": "x"}}, "output_format"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "custom_tools"),
    ({"tools": [{"type": "mcp"}]}, "provider_tools"), ({"tool_choice": {"type": "custom"}}, "custom_tools"),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "functions"),
    ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "audio"),
    ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]}, "file_id"),
    ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "unknown_content"),
])  # fmt: skip
def test_promises_of_a_chat(fields: dict[str, Any], name: str) -> None:
    assert losses_of(from_chat(fields))[name] == "promise"


def block(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, fields]}]}


@pytest.mark.parametrize(("fields", "name"), [
    ({"mcp_servers": [{"url": "u"}]}, "mcp_servers"), ({"inference_geo": "us"}, "inference_geo"),
    (block(type="document", source={"type": "url", "url": "u"}), "document_url"),
    (block(type="image", source={"type": "file", "file_id": "f"}), "file_id"),
    (block(type="document", source={"type": "text", "data": "x"}, citations={"enabled": True}), "citations_enabled"),
    (block(type="container_upload", file_id="f"), "container_upload"),
    (block(type="web_search_tool_result", content=[]), "server_tools"), (block(type="new"), "unknown_content"),
    ({"tools": [{**MESSAGES_TOOL, "defer_loading": True}]}, "defer_loading"),
    ({"tools": [{**MESSAGES_TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "allowed_callers"),
    ({"output_config": {"new": 1}}, "new"),
])  # fmt: skip
def test_promises_of_messages(fields: dict[str, Any], name: str) -> None:
    assert losses_of(from_messages(fields))[name] == "promise"


@pytest.mark.parametrize(("fields", "name"), [
    ({"tools": [{**MESSAGES_TOOL, "input_examples": [{}]}]}, "input_examples"),
    ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking_display"),
    ({"thinking": {"type": "between_tools"}}, "thinking"), ({"output_config": {"effort": "low"}}, "effort"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking"),
    (block(type="text", text="a", citations=[{"type": "char_location"}]), "citations"),
    (block(type="document", source={"type": "text", "data": "x"}, context="c"), "document_context"),
])  # fmt: skip
def test_hints_of_messages(fields: dict[str, Any], name: str) -> None:
    assert losses_of(from_messages(fields))[name] == "hint"


@pytest.mark.parametrize(("endpoint", "body", "param"), [
    (CHAT, {"messages": None}, "messages"), (CHAT, {"messages": ["x"]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    (CHAT, {"messages": SAID, "tool_choice": "perhaps"}, "tool_choice"),
    (CHAT, {"messages": SAID, "top_p": True}, "top_p"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}, "messages[0].content[0]"),
    (MESSAGES, {"messages": SAID}, "max_tokens"), (MESSAGES, {"messages": 5, "max_tokens": 1}, "messages"),
    (MESSAGES, {"messages": SAID, "max_tokens": 1, "tool_choice": {"type": "x"}}, "tool_choice.type"),
    (MESSAGES, {"messages": SAID, "max_tokens": 1, "output_config": {"format": {"type": "x"}}}, "output_config.format"),
    (MESSAGES, {**block(type="image"), "max_tokens": 1}, "messages[0].content[1].source"),
    (MESSAGES, {**block(type="image", source={"type": "x"}), "max_tokens": 1}, "messages[0].content[1].source.type"),
    (MESSAGES, {**block(type="tool_use", name="f"), "max_tokens": 1}, "messages[0].content[1].id"),
])  # fmt: skip
def test_request_of_another_form_is_named(endpoint: Any, body: dict[str, Any], param: str) -> None:
    with pytest.raises(UnreadableRequestError) as caught:
        read_request(endpoint, json.dumps({"model": "m", **body}).encode())
    assert caught.value.param == param


def test_results_come_before_the_text_of_their_turn() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    use = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "wait"}]
    late = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
    messages = body_of(from_chat({"messages": [*SAID, *use, late]}))["messages"]
    assert [block["type"] for block in messages[2]["content"]] == ["tool_result", "text"]


def test_arguments_that_are_no_json_are_given_back_as_anthropic_expects_them() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": '}}
    messages = body_of(from_chat({"messages": [*SAID, {"role": "assistant", "tool_calls": [call]}]}))["messages"]
    assert messages[1]["content"][0]["input"] == {"INVALID_JSON": '{"city": '}


def test_allowed_tools_are_the_only_ones_that_are_sent() -> None:
    other = {"type": "function", "function": {"name": "other"}}
    named = [{"type": "function", "function": {"name": "other"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named}}
    body = body_of(from_chat({"tools": [CHAT_TOOL, other], "tool_choice": choice}))
    assert ([tool["name"] for tool in body["tools"]], body["tool_choice"]) == (["other"], {"type": "any"})


@pytest.mark.parametrize(("chat", "messages"), [
    ("auto", {"type": "auto"}), ("required", {"type": "any"}), ("none", {"type": "none"}),
    ({"type": "function", "function": {"name": "weather"}}, {"type": "tool", "name": "weather"}),
])  # fmt: skip
def test_tool_choice_has_the_same_meaning(chat: Any, messages: dict[str, Any]) -> None:
    assert body_of(from_chat({"tools": [CHAT_TOOL], "tool_choice": chat}))["tool_choice"] == messages
    assert body_of(from_messages({"tools": [MESSAGES_TOOL], "tool_choice": messages}))["tool_choice"] == chat


def test_texts_documents_and_search_results_are_sent_as_text() -> None:
    content = [
        {"type": "document", "title": "Log", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "inner"}]}},
        {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "found"}]},
    ]
    messages = body_of(from_messages({"messages": [{"role": "user", "content": content}]}))["messages"]
    texts = [part["text"] for part in messages[0]["content"]]
    assert texts == ["Log\n\nplain", "inner", "T\nS", "found"]
    data = base64.b64encode(b"a,b").decode()
    file = {"type": "file", "file": {"filename": "a.csv", "file_data": f"data:text/csv;base64,{data}"}}
    source = body_of(from_chat({"messages": [{"role": "user", "content": [file]}]}))["messages"][0]["content"][0]
    assert (source["source"]["data"], source["title"]) == ("a,b", "a.csv")
    file["file"] = {"filename": "a.zip", "file_data": data}
    assert losses_of(from_chat({"messages": [{"role": "user", "content": [file]}]})) == {"file_format": "promise"}


def test_schema_of_an_output_is_closed_and_without_limits() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}, "required": ["a"]}
    request = from_chat({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
    found = body_of(request)["output_config"]["format"]["schema"]
    assert found == {
        "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False,
    }  # fmt: skip
    assert losses_of(request) == {"schema_limits": "hint"}
    schema["additionalProperties"] = {"type": "string"}
    request = from_chat({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
    assert losses_of(request)["open_schema"] == "promise"


@pytest.mark.parametrize(("schema", "strict"), [
    (WEATHER, True), ({**WEATHER, "required": []}, False), ({**WEATHER, "additionalProperties": True}, False),
])  # fmt: skip
def test_strict_mode_is_used_where_the_schema_allows_it(schema: dict[str, Any], strict: bool) -> None:
    body = body_of(from_messages({"output_config": {"format": {"type": "json_schema", "schema": schema}}}))
    assert body["response_format"]["json_schema"]["strict"] is strict


@pytest.mark.parametrize(("model", "means"), [
    ("claude-3-5-sonnet-20241022", "none"), ("claude-3-opus-20240229", "none"), ("claude-3-7-sonnet-latest", "budget"),
    ("claude-sonnet-4-20250514", "budget"), ("claude-haiku-4-5", "budget"), ("claude-opus-4-5-20251101", "effort"),
    ("claude-opus-4-6", "adaptive"), ("anthropic.claude-sonnet-4-6-v1:0", "adaptive"), ("claude-sonnet-5", "adaptive"),
    ("my-model", "none"),
])  # fmt: skip
def test_thinking_of_each_claude(model: str, means: str) -> None:
    assert claude_thinking(model) == means


@pytest.mark.parametrize(("model", "takes"), [
    ("claude-opus-4-6", True), ("claude-opus-4-7", False), ("claude-sonnet-5", False), ("my-model", True),
])  # fmt: skip
def test_newer_claudes_take_no_sampling_parameters(model: str, takes: bool) -> None:
    assert takes_sampling(model) is takes
    request = from_chat({"temperature": 0.5, "top_p": 0.5}, model=model)
    assert ("temperature" in body_of(request)) is takes
    assert losses_of(request) == ({"top_p": "hint"} if takes else {"temperature": "hint", "top_p": "hint"})


@pytest.mark.parametrize(("effort", "budget", "expected"), [
    ("max", None, "high"), ("low", 9000, "low"), (None, 2000, "low"), (None, 8000, "medium"), (None, 60_000, "high"),
    (None, 0, None), (None, None, None),
])  # fmt: skip
def test_effort_of_a_chat(effort: str | None, budget: int | None, expected: str | None) -> None:
    assert chat_effort(effort, budget) == expected


def test_reasoning_model_gets_the_effort() -> None:
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    request = from_messages(thinking, model="gpt-5.5")
    assert (body_of(request)["reasoning_effort"], losses_of(request)) == ("low", {})
    assert "reasoning_effort" not in body_of(from_messages(thinking, model="gpt-5.5", family="vllm"))
    forced = {"tools": [CHAT_TOOL], "tool_choice": "required", "reasoning_effort": "high"}
    assert "thinking" not in body_of(from_chat(forced, model="claude-opus-4-6"))


def test_only_posts_are_translated() -> None:
    assert endpoint_of("openai", "POST", "/v1/chat/completions") is CHAT
    assert endpoint_of("openai", "GET", "/v1/chat/completions") is None
    assert endpoint_of("anthropic", "POST", "/v1/chat/completions") is None
    assert endpoint_of("anthropic", "POST", "/v1/messages") is MESSAGES


@pytest.mark.parametrize(("message", "limit"), [
    ("max_tokens: 32000 > 8192, which is the maximum allowed number of output tokens for claude-x", 8192),
    ("max_tokens is too large: 32000. This model supports at most 16384 completion tokens, whereas", 16_384),
    ("The maximum tokens you requested exceeds the model limit of 4096. Try again", 4096),
    ("max_tokens: must be at least 1", None), ("", None),
])  # fmt: skip
def test_limit_is_found_in_the_providers_words(message: str, limit: int | None) -> None:
    assert limit_in(message) == limit
