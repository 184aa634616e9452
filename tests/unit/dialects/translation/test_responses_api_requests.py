"""Requests of the Responses API, as Messages and chat requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.dialects.translation.canonical import UnreadableRequestError
from llm_guard.dialects.translation.endpoints import CHAT, MESSAGES, endpoint_of, upstream_endpoint
from tests.unit.dialects.translation.conversions import (
    RESPONSES_TOOL,
    WEATHER,
    body_of,
    from_responses,
    losses_of,
)

CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Oslo"}',
        "status": "completed"}  # fmt: skip
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "sun"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}}  # fmt: skip


def item(role: str, *content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(content) if content else "so"}


def text(words: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": kind, "text": words}


HISTORY = [
    {"role": "developer", "content": "Be brief."}, item("user", text("What "), text("weather?")),
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    item("assistant", {"type": "output_text", "text": "I see.", "annotations": []}), CALL, RESULT,
    item("user", {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"}),
]  # fmt: skip


def test_conversation_becomes_messages() -> None:
    request = from_responses({"input": HISTORY, "instructions": "You are Codex.", "tools": [RESPONSES_TOOL]})
    body = body_of(request)
    assert body["system"] == "You are Codex.\n\nBe brief."
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["user", "assistant", "user"]
    first, second, third = (message["content"] for message in body["messages"])
    assert [block["text"] for block in first] == ["What ", "weather?"]
    assert second[1] == {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}
    assert third[0] == {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "sun"}]}
    assert third[1]["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    assert losses_of(request) == {"reasoning_items": "hint", "strict": "hint"}
    assert b"gAAA" not in request.body


def test_conversation_becomes_a_chat() -> None:
    request = from_responses(
        {"input": HISTORY, "tools": [RESPONSES_TOOL], "max_output_tokens": 9}, CHAT, family="openai"
    )
    body = body_of(request)
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    assert body["messages"][2]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert body["messages"][3] == {"role": "tool", "tool_call_id": "call_1", "content": "sun"}
    assert (body["max_completion_tokens"], body["tools"][0]["function"]["parameters"]) == (9, WEATHER)


def test_request_of_codex_loses_only_hints() -> None:
    request = from_responses({
        "instructions": "You are Codex.", "input": HISTORY, "tools": [RESPONSES_TOOL, PATCH], "tool_choice": "auto",
        "parallel_tool_calls": False, "reasoning": {"effort": "high", "summary": "auto"}, "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "c1", "text": {"verbosity": "low"},
        "client_metadata": {"session": "1"},
    }, model="claude-opus-4-8")  # fmt: skip
    found = losses_of(request)
    assert found.pop("tool_grammar") == "hint"
    assert set(found.values()) == {"hint"}
    assert found.keys() >= {"include", "prompt_cache_key", "verbosity", "reasoning_summary", "client_metadata"}
    body = body_of(request)
    assert body["output_config"]["effort"] == "high"
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert "lark grammar:\nstart: x" in body["tools"][1]["description"]
    assert body["tools"][1]["input_schema"]["required"] == ["input"]


def test_custom_tools_and_their_history_are_functions_with_one_string() -> None:
    history = [
        item("user"), {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": [text("done")]},
    ]  # fmt: skip
    body = body_of(from_responses({"input": history, "tools": [PATCH]}))
    assert body["messages"][1]["content"][0]["input"] == {"input": "*** Begin"}
    assert body["messages"][2]["content"][0]["content"] == [{"type": "text", "text": "done"}]


def test_tools_of_a_namespace_have_its_name_before_their_own() -> None:
    namespace = {"type": "namespace", "name": "mail", "description": "", "tools": [RESPONSES_TOOL]}
    call = {**CALL, "namespace": "mail"}
    body = body_of(from_responses({"input": [item("user"), call, RESULT], "tools": [namespace, RESPONSES_TOOL]}))
    assert [tool["name"] for tool in body["tools"]] == ["mail__weather", "weather"]
    assert body["messages"][1]["content"][0]["name"] == "mail__weather"


@pytest.mark.parametrize(("choice", "expected"), [
    ("auto", {"type": "auto"}), ("none", {"type": "none"}), ("required", {"type": "any"}),
    ({"type": "function", "name": "weather"}, {"type": "tool", "name": "weather"}),
    ({"type": "custom", "name": "apply_patch"}, {"type": "tool", "name": "apply_patch"}),
])  # fmt: skip
def test_choice_of_a_tool(choice: Any, expected: dict[str, Any]) -> None:
    assert body_of(from_responses({"tools": [RESPONSES_TOOL, PATCH], "tool_choice": choice}))["tool_choice"] == expected


def test_choice_among_allowed_tools_leaves_only_these() -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    body = body_of(from_responses({"tools": [RESPONSES_TOOL, PATCH], "tool_choice": choice}))
    assert ([tool["name"] for tool in body["tools"]], body["tool_choice"]) == (["weather"], {"type": "any"})


def test_output_schema_is_native() -> None:
    form = {"type": "json_schema", "name": "w", "schema": WEATHER, "strict": True}
    assert body_of(from_responses({"text": {"format": form}}))["output_config"]["format"]["schema"] == WEATHER
    chat = body_of(from_responses({"text": {"format": form}}, CHAT))["response_format"]
    assert chat["json_schema"] == {"name": "w", "schema": WEATHER, "strict": True}
    assert losses_of(from_responses({"text": {"format": {"type": "json_object"}}})) == {"json_object": "promise"}


@pytest.mark.parametrize(("effort", "expected"), [("minimal", "minimal"), ("high", "high"), ("xhigh", "high")])
def test_effort_reaches_a_reasoning_model_behind_a_chat(effort: str, expected: str) -> None:
    request = from_responses({"reasoning": {"effort": effort}}, CHAT, model="gpt-5.5", family="openai")
    assert body_of(request)["reasoning_effort"] == expected


@pytest.mark.parametrize(("fields", "name"), [
    ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"store": True}, "store"),
    ({"conversation": "conv_1"}, "conversation"), ({"prompt": {"id": "p"}}, "prompt"),
    ({"background": True}, "background"),
    ({"tools": [{"type": "local_shell"}]}, "local_shell"), ({"tools": [{"type": "apply_patch"}]}, "apply_patch"),
    ({"tools": [{"type": "web_search"}]}, "web_search"), ({"tools": [{"type": "future"}]}, "provider_tools"),
    ({"tool_choice": {"type": "file_search"}}, "file_search"), ({"zzz": 1}, "zzz"),
    ({"include": ["message.output_text.logprobs"]}, "logprobs"), ({"top_logprobs": 2}, "top_logprobs"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "item_reference"),
    ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "compaction"),
    ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "web_search"),
    ({"input": [{"type": "future_call"}]}, "unknown_items"),
    ({"input": [item("user", {"type": "input_audio"})]}, "unknown_content"),
    ({"input": [item("developer", {"type": "input_image", "image_url": "https://a"})]}, "attachments"),
    ({"input": [item("system", {"type": "input_file", "file_data": "YQ==", "filename": "a.txt"})]}, "attachments"),
    ({"input": [item("assistant", {"type": "input_image", "image_url": "https://a"})]}, "attachments"),
    ({"input": [item("user", {"type": "input_image", "file_id": "f"})]}, "file_id"),
    ({"input": [item("user", {"type": "input_file", "file_id": "f"})]}, "file_id"),
    ({"input": [item("user", {"type": "input_file", "file_url": "https://a"})]}, "document_url"),
    ({"tools": [{**RESPONSES_TOOL, "async": True}]}, "async_tools"),
    ({"tools": [{**RESPONSES_TOOL, "defer_loading": True}]}, "defer_loading"),
    ({"tools": [{**RESPONSES_TOOL, "allowed_callers": ["programmatic"]}]}, "allowed_callers"),
])  # fmt: skip
def test_what_only_the_provider_has_is_a_promise(fields: dict[str, Any], name: str) -> None:
    assert losses_of(from_responses(fields)).get(name) == "promise"


@pytest.mark.parametrize(("fields", "name"), [
    ({"input": [{**item("assistant"), "phase": "commentary"}]}, "phase"),
    ({"input": [item("user", {**text("a"), "prompt_cache_breakpoint": {}})]}, "prompt_cache_breakpoint"),
    ({"input": [item("assistant", {**text("a", "output_text"), "annotations": [{}]})]}, "annotations"),
    ({"input": [{**CALL, "caller": {"type": "direct"}}]}, "caller"),
    ({"input": [{**RESULT, "caller": {"type": "direct"}}]}, "caller"),
    ({"input": [item("user", {"type": "input_image", "image_url": "https://a", "detail": "low"})]}, "detail"),
    ({"reasoning": {"context": "x"}}, "reasoning_mode"), ({"truncation": "auto"}, "truncation"),
    ({"stream_options": {"include_obfuscation": True}}, "include_obfuscation"),
    ({"tools": [{**RESPONSES_TOOL, "output_schema": {}}]}, "output_schema"),
])  # fmt: skip
def test_what_no_contract_needs_is_a_hint(fields: dict[str, Any], name: str) -> None:
    assert losses_of(from_responses(fields)).get(name) == "hint"


@pytest.mark.parametrize("fields", [
    {"store": False, "previous_response_id": None, "background": False, "truncation": "disabled", "include": []},
    {"stream_options": {"include_obfuscation": False}, "text": {"verbosity": "medium", "format": {"type": "text"}}},
    {"input": [{**item("assistant"), "phase": None}], "service_tier": "auto", "metadata": {}, "top_logprobs": 0},
])  # fmt: skip
def test_defaults_are_no_loss(fields: dict[str, Any]) -> None:
    assert losses_of(from_responses(fields)) == {}


@pytest.mark.parametrize(("fields", "param"), [
    ({"input": 3}, "input"), ({"input": [item("robot")]}, "input[0].role"), ({"instructions": [1]}, "instructions"),
    ({"input": [{**CALL, "call_id": None}]}, "input[0].call_id"), ({"tool_choice": "any"}, "tool_choice"),
    ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments"), ({"tool_choice": 3}, "tool_choice"),
    ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "n"}]}, "input[0].input"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"), ({"temperature": "hot"}, "temperature"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": 3}]}, "tools[0].tools"),
])  # fmt: skip
def test_unreadable_request_names_the_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(UnreadableRequestError) as caught:
        from_responses(fields)
    assert caught.value.param == param


def test_request_whose_response_would_be_nested_too_deeply_is_refused() -> None:
    value: Any = {}
    for _ in range(400):
        value = [value]
    with pytest.raises(UnreadableRequestError, match="nested too deeply"):
        from_responses({"metadata": {"a": value}})


def test_later_instructions_stay_in_their_place() -> None:
    given = [item("user"), item("developer", text("Now in French.")), item("user")]
    chat = body_of(from_responses({"input": given}, CHAT))
    assert [message["role"] for message in chat["messages"]] == ["user", "system", "user"]


def test_last_message_of_the_assistant_is_history_and_no_beginning() -> None:
    request = from_responses({"input": [item("user"), item("assistant")]}, CHAT)
    assert losses_of(request) == {}
    assert json.loads(request.body)["messages"][-1]["content"] == "so"


def test_endpoints() -> None:
    assert upstream_endpoint("anthropic") is MESSAGES
    assert upstream_endpoint("openai") is CHAT
    found = endpoint_of("openai", "POST", "/v1/responses")
    assert found is not None
    assert found.path == "/v1/responses"
