"""The defects that users of other translators report most, each with the right behaviour."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from llm_guard.dialects.translation.endpoints import endpoint_of
from llm_guard.dialects.translation.error_bodies import translated_error, translated_error_event
from llm_guard.dialects.translation.losses import divided
from tests.unit.dialects.translation.conversions import (
    CHAT_TOOL,
    MESSAGES_TOOL,
    SAID,
    WEATHER,
    body_of,
    call_delta,
    chat_events,
    chat_fold,
    delta,
    from_chat,
    from_messages,
    losses_of,
    message_events,
    messages_fold,
    streamed,
    text_block,
    tool_block,
    whole,
)

CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}},
]
PNG = base64.b64encode(b"\x89PNG\r\n").decode()
PDF = base64.b64encode(b"%PDF-1.7").decode()


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def answer(message: dict[str, Any], finish: str = "stop", **usage: Any) -> dict[str, Any]:
    """A chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def message(*content: dict[str, Any], stop: str = "end_turn", **usage: Any) -> dict[str, Any]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": list(content)}
    return {
        **head,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1, **usage},
    }


def test_1_arguments_in_the_chunk_that_opens_a_call_are_kept() -> None:
    raw = chat_events(call_delta(0, '{"city"', "call_1", "weather"), call_delta(0, ': "Oslo"}'), delta("tool_calls"))
    found = messages_fold(streamed(from_messages({"tools": [MESSAGES_TOOL]}), raw))
    assert found.content[0].input == {"city": "Oslo"}  # type: ignore[union-attr]
    raw = chat_events(call_delta(0, '{"city": "Oslo"}', "call_1", "weather"), delta("tool_calls"))
    found = messages_fold(streamed(from_messages({"tools": [MESSAGES_TOOL]}), raw))
    assert found.content[0].input == {"city": "Oslo"}  # type: ignore[union-attr]


def test_1_input_in_the_event_that_opens_a_block_is_kept() -> None:
    block = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
    found = chat_fold(streamed(from_chat({"tools": [CHAT_TOOL]}), message_events(block, stop="tool_use")))
    assert found.choices[0].message.tool_calls[0].function.arguments == '{"city":"Oslo"}'  # type: ignore[index, union-attr]


@pytest.mark.parametrize("finish", ["stop", "tool_calls"])
def test_2_response_with_calls_stops_for_them_whatever_the_provider_says(finish: str) -> None:
    calls = answer({"content": None, "tool_calls": CALLS[:1]}, finish)
    assert whole(from_messages(), calls)["stop_reason"] == "tool_use"
    raw = chat_events(call_delta(0, "{}", "call_1", "weather"), delta(finish))
    assert messages_fold(streamed(from_messages(), raw)).stop_reason == "tool_use"


@pytest.mark.parametrize("stop", ["end_turn", "tool_use"])
def test_2_the_same_the_other_way_round(stop: str) -> None:
    raw = message_events(tool_block("toolu_1", "weather", "{}"), stop=stop)
    assert chat_fold(streamed(from_chat(), raw)).choices[0].finish_reason == "tool_calls"


def test_2_cut_call_is_not_reported_as_whole() -> None:
    raw = chat_events(call_delta(0, '{"city": "Os', "call_1", "weather"), delta("length"))
    assert messages_fold(streamed(from_messages(), raw)).stop_reason == "max_tokens"
    cut = {"content": None, "tool_calls": [{**CALLS[0], "function": {"name": "weather", "arguments": '{"city": "Os'}}]}
    found = whole(from_messages(), answer(cut, "length"))
    assert (found["stop_reason"], found["content"]) == ("max_tokens", [])


def test_3_thinking_in_a_history_is_left_out_and_none_is_minted() -> None:
    history = [
        *SAID,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "secret plan", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "done"},
        ]},
        *SAID,
    ]  # fmt: skip
    request = from_messages({"messages": history})
    assert b"secret" not in request.body
    assert losses_of(request) == {"thinking_blocks": "hint"}
    raw = chat_events(delta(reasoning_content="hm"), delta(content="ok"), delta("stop"))
    assert [block.type for block in messages_fold(streamed(from_messages(), raw)).content] == ["text"]


def test_4_parallel_results_are_in_the_one_next_message_before_text() -> None:
    turns = [*SAID, {"role": "assistant", "content": None, "tool_calls": CALLS}, result("call_1", "rain"),
             result("call_2", "sun"), {"role": "user", "content": "and?"}]  # fmt: skip
    messages = body_of(from_chat({"messages": turns}))["messages"]
    assert [turn["role"] for turn in messages] == ["user", "assistant", "user"]
    assert [block["type"] for block in messages[2]["content"]] == ["tool_result", "tool_result", "text"]


def test_4_results_follow_their_calls_at_once_in_a_chat() -> None:
    use = [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
           {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {}}]  # fmt: skip
    results = [{"type": "text", "text": "here"},
               {"type": "tool_result", "tool_use_id": "toolu_2", "content": "sun"}]  # fmt: skip
    late = [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]}]
    turns = [*SAID, {"role": "assistant", "content": use}, {"role": "user", "content": results},
             {"role": "user", "content": late}]  # fmt: skip
    messages = body_of(from_messages({"messages": turns}))["messages"]
    assert [turn["role"] for turn in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert {turn["tool_call_id"]: turn["content"] for turn in messages[2:4]} == {"toolu_2": "sun", "toolu_1": "rain"}


def test_5_empty_texts_are_left_out_and_never_filled() -> None:
    empty = {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "a"}]}
    turns = [empty, {"role": "assistant", "content": "", "tool_calls": CALLS[:1]}, result("call_1", ""), *SAID]
    request = from_chat({"messages": turns})
    assert b'"text":""' not in request.body
    assert body_of(request)["messages"][0] == {"role": "user", "content": "a"}
    use = [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}]
    back = body_of(from_messages({"messages": [*SAID, {"role": "assistant", "content": use}]}))["messages"][1]
    assert back["content"] is None


def test_6_interleaved_calls_become_blocks_that_do_not_overlap() -> None:
    raw = chat_events(
        delta(content="Look: "), call_delta(0, '{"city"', "call_1", "weather"),
        call_delta(1, '{"ci', "call_2", "weather"), call_delta(0, ': "Oslo"}'), call_delta(1, 'ty": "Rome"}'),
        delta("tool_calls"),
    )  # fmt: skip
    found = streamed(from_messages({"tools": [MESSAGES_TOOL]}), raw)
    events = [json.loads(line[6:]) for line in found.decode().splitlines() if line.startswith("data: ")]
    blocks = [(event["type"], event["index"]) for event in events if "index" in event]
    is_open: int | None = None
    order = []
    for kind, index in blocks:
        if kind == "content_block_start":
            assert is_open is None
            is_open = index
            order.append(index)
        assert is_open == index
        if kind == "content_block_stop":
            is_open = None
    assert (is_open, order) == (None, [0, 1, 2])
    content = messages_fold(found).content
    assert [block.input for block in content[1:]] == [{"city": "Oslo"}, {"city": "Rome"}]  # type: ignore[union-attr]


def test_7_calls_with_one_index_are_told_apart_by_their_ids() -> None:
    first, second = call_delta(0, '{"a": 1}', "call_1", "now"), call_delta(0, '{"b": 2}', "call_2", "weather")
    found = messages_fold(streamed(from_messages(), chat_events(first, second, delta("tool_calls"))))
    assert [block.input for block in found.content] == [{"a": 1}, {"b": 2}]  # type: ignore[union-attr]


def test_7_indexes_of_tool_calls_are_dense_from_zero() -> None:
    raw = message_events(
        text_block("a"), tool_block("t1", "weather", "{}"), text_block("b"), tool_block("t2", "x", "{}")
    )
    found = streamed(from_chat(), raw)
    events = [json.loads(line[6:]) for line in found.decode().splitlines() if line.startswith("data: {")]
    indexes = [call["index"] for event in events for call in event["choices"][0]["delta"].get("tool_calls", [])]
    assert sorted(set(indexes)) == [0, 1]
    assert [call.id for call in chat_fold(found).choices[0].message.tool_calls or []] == ["t1", "t2"]


def test_8_documents_and_images_are_translated() -> None:
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
             {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
             {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}},
             {"type": "image_url", "image_url": {"url": f"data:application/pdf;base64,{PDF}"}}]  # fmt: skip
    request = from_chat({"messages": [{"role": "user", "content": parts}]})
    assert losses_of(request) == {}
    content = body_of(request)["messages"][0]["content"]
    assert [(block["type"], block["source"]["type"]) for block in content] == [
        ("image", "base64"), ("image", "url"), ("document", "base64"), ("document", "base64"),
    ]  # fmt: skip


def test_8_image_in_a_tool_result_reaches_the_model_and_audio_is_refused_by_name() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/jpg", "data": PNG}}
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "shot", "input": {}}]}
    turns = [*SAID, use, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "see"}, image]},
    ]}]  # fmt: skip
    messages = body_of(from_messages({"messages": turns}))["messages"]
    assert [turn["role"] for turn in messages[2:]] == ["tool", "user"]
    assert messages[3]["content"][1]["image_url"]["url"] == f"data:image/jpeg;base64,{PNG}"
    audio = {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}
    request = from_chat({"messages": [{"role": "user", "content": [audio]}]})
    assert [str(loss) for loss in request.losses] == ["input_audio at messages[0].content[0]"]


def test_9_cached_tokens_are_part_of_the_input_on_one_side_and_apart_on_the_other() -> None:
    usage: Any = {"cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
    counts = whole(from_chat(), message(**usage))["usage"]
    assert (counts["prompt_tokens"], counts["prompt_tokens_details"]["cached_tokens"]) == (121, 100)
    back = whole(from_messages(), answer({"content": "a"}, prompt_tokens=121, completion_tokens=4,
                                         prompt_tokens_details={"cached_tokens": 100}))["usage"]  # fmt: skip
    assert (back["input_tokens"], back["cache_read_input_tokens"], back["output_tokens"]) == (21, 100, 4)


def test_9_usage_after_the_finish_reason_is_in_the_last_event() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3}}
    found = messages_fold(streamed(from_messages(), chat_events(delta(content="a"), delta("stop"), usage)))
    assert (found.usage.input_tokens, found.usage.output_tokens) == (12, 3)


def test_9_usage_and_end_may_come_with_a_text() -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    raw = chat_events({**delta("length", content="Salt"), "usage": usage})
    found = messages_fold(streamed(from_messages(), raw))
    assert (found.stop_reason, found.usage.input_tokens, found.usage.output_tokens) == ("max_tokens", 12, 3)


def test_10_error_event_is_an_error_for_the_client() -> None:
    data = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
    chat = translated_error_event(data, 502, "openai", "lg-1")
    assert json.loads(chat.split(b"data: ")[1])["error"]["message"] == "Overloaded"
    messages = translated_error_event(b'{"error":{"message":"boom"}}', 502, "anthropic", "lg-1")
    assert messages.startswith(b"event: error\n")
    assert json.loads(messages.split(b"data: ")[1])["error"] == {"type": "api_error", "message": "boom"}


def test_11_refusal_is_no_ordinary_end() -> None:
    assert (
        whole(from_chat(), message({"type": "text", "text": "no"}, stop="refusal"))["choices"][0]["finish_reason"]
        == "content_filter"
    )
    refused = whole(from_messages(), answer({"content": None, "refusal": "I cannot"}))
    assert (refused["stop_reason"], refused["content"]) == ("refusal", [{"type": "text", "text": "I cannot"}])
    assert whole(from_messages(), answer({"content": "a"}, "content_filter"))["stop_reason"] == "refusal"
    raw = chat_events(delta(refusal="I can"), delta(refusal="not"), delta("stop"))
    found = messages_fold(streamed(from_messages(), raw))
    assert (found.stop_reason, found.content[0].text) == ("refusal", "I cannot")  # type: ignore[union-attr]


@pytest.mark.parametrize("arguments", ["", "{}", "  ", "null"])
def test_12_call_without_arguments_has_an_empty_object_both_ways(arguments: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    turns = [*SAID, {"role": "assistant", "tool_calls": [call]}, result("call_1", "noon")]
    assert body_of(from_chat({"messages": turns}))["messages"][1]["content"][0]["input"] == {}
    found = chat_fold(streamed(from_chat(), message_events(tool_block("toolu_1", "now"), stop="tool_use")))
    assert found.choices[0].message.tool_calls[0].function.arguments == "{}"  # type: ignore[index, union-attr]
    raw = chat_events(call_delta(0, arguments, "call_1", "now"), delta("tool_calls"))
    assert messages_fold(streamed(from_messages(), raw)).content[0].input == {}  # type: ignore[union-attr]


@pytest.mark.parametrize("beside", [{}, {"role": "assistant"}])
def test_12_null_within_arguments_is_a_part_of_them(beside: dict[str, Any]) -> None:
    pieces = [call_delta(0, text) for text in ("null", "}")]
    for piece in pieces:
        piece["choices"][0]["delta"] |= beside
    raw = chat_events(call_delta(0, '{"zone": ', "call_1", "now"), *pieces, delta("tool_calls"))
    assert messages_fold(streamed(from_messages(), raw)).content[0].input == {"zone": None}  # type: ignore[union-attr]


def test_13_foreign_and_long_ids_and_names_are_mapped_and_back() -> None:
    name, call_id = "mcp.files:read/" + "x" * 80, "functions.read:0" + "y" * 60
    tool = {"type": "function", "function": {"name": name, "parameters": WEATHER}}
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
    turns = [*SAID, {"role": "assistant", "tool_calls": [call]}, result(call_id, "ok")]
    request = from_chat({"messages": turns, "tools": [tool]})
    body = body_of(request)
    wire, use = body["tools"][0]["name"], body["messages"][1]["content"][0]
    assert use["name"] == wire
    assert use["id"] == body["messages"][2]["content"][0]["tool_use_id"]
    assert len(use["id"]) <= 40
    found = chat_fold(streamed(request, message_events(tool_block("toolu_9", wire, "{}"), stop="tool_use")))
    assert found.choices[0].message.tool_calls[0].function.name == name  # type: ignore[index, union-attr]


def test_13_ids_that_a_server_repeats_in_each_response_are_made_unique() -> None:
    call = {"id": "call_0", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    turn = [{"role": "assistant", "tool_calls": [call]}, result("call_0", "noon")]
    messages = body_of(from_chat({"messages": [*SAID, *turn, *turn]}))["messages"]
    uses = [
        block["id"] for turn in messages if isinstance(turn["content"], list) for block in turn["content"]
        if block["type"] == "tool_use"
    ]  # fmt: skip
    assert len(set(uses)) == 2
    history = [
        *SAID,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_0", "name": "now", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_0", "content": "noon"}]},
    ]
    raw = chat_events(call_delta(0, "{}", "call_0", "now"), delta("tool_calls"))
    found = messages_fold(streamed(from_messages({"messages": history}), raw))
    assert found.content[0].id != "call_0"  # type: ignore[union-attr]


def test_14_limit_to_one_call_forces_none_and_none_stays_none() -> None:
    request = {"tools": [CHAT_TOOL], "parallel_tool_calls": False}
    assert body_of(from_chat(request))["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert body_of(from_chat({**request, "tool_choice": "none"}))["tool_choice"] == {"type": "none"}
    assert "tool_choice" not in body_of(from_chat({"parallel_tool_calls": False}))
    back = {"tools": [MESSAGES_TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    body = body_of(from_messages(back))
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("auto", False)
    assert body_of(from_messages({**back, "tool_choice": {"type": "none"}}))["tool_choice"] == "none"


def test_15_json_schema_is_native_and_forces_no_tool() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER, "strict": True}}
    body = body_of(from_chat({"response_format": wanted}))
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": WEATHER}}
    assert "tools" not in body
    back = body_of(from_messages({"output_config": {"format": {"type": "json_schema", "schema": WEATHER}}}))
    assert back["response_format"]["json_schema"]["schema"] == WEATHER


def test_16_budget_fits_and_thinking_is_off_in_a_turn_after_calls() -> None:
    body = body_of(from_chat({"reasoning_effort": "high", "max_tokens": 3000}))
    assert 1024 <= body["thinking"]["budget_tokens"] < 3000
    assert "thinking" not in body_of(from_chat({"reasoning_effort": "high", "max_tokens": 500}))
    newer = body_of(from_chat({"reasoning_effort": "high"}, model="claude-opus-4-6"))
    assert (newer["thinking"], newer["output_config"]) == ({"type": "adaptive"}, {"effort": "high"})
    turns = [*SAID, {"role": "assistant", "tool_calls": CALLS[:1]}, result("call_1", "rain")]
    assert "thinking" not in body_of(from_chat({"reasoning_effort": "high", "messages": turns}))
    assert losses_of(from_chat({"reasoning_effort": "high"}, model="claude-3-5-haiku")) == {"reasoning_effort": "hint"}


def test_17_missing_limit_is_the_configured_one() -> None:
    assert body_of(from_chat())["max_tokens"] == 32_000
    assert body_of(from_chat({}, default_max_tokens=64_000))["max_tokens"] == 64_000
    assert body_of(from_chat({}, most_tokens=8192))["max_tokens"] == 8192
    assert body_of(from_chat({"max_completion_tokens": 7}))["max_tokens"] == 7


@pytest.mark.parametrize(("family", "field"), [("openai", "max_completion_tokens"), ("azure", "max_completion_tokens"),
                                               ("vllm", "max_tokens"), ("", "max_tokens")])  # fmt: skip
def test_18_name_of_the_limit_is_that_of_the_family(family: str, field: str) -> None:
    assert body_of(from_messages({}, family=family))[field] == 50


@pytest.mark.parametrize("family", ["openai", "azure", "local", ""])
def test_18_reasoning_model_is_known_by_its_name_where_the_address_says_nothing(family: str) -> None:
    body = body_of(from_messages({"thinking": {"type": "enabled", "budget_tokens": 5000}}, model="o3", family=family))
    assert (body["max_completion_tokens"], body["reasoning_effort"]) == (50, "medium")
    assert "max_tokens" not in body
    assert "max_tokens" in body_of(from_messages(model="o3", family="vllm"))


def test_18_reasoning_models_get_no_sampling_parameters() -> None:
    request = from_messages({"temperature": 0.2, "top_p": 0.9}, model="gpt-5.5")
    assert body_of(request).keys().isdisjoint({"temperature", "top_p"})
    assert losses_of(request) == {"temperature": "hint", "top_p": "hint"}
    assert body_of(from_messages({"temperature": 0.2}))["temperature"] == 0.2


def test_19_fields_of_one_provider_are_not_sent_to_the_other() -> None:
    request = from_messages({"context_management": {"edits": []}, "metadata": {"user_id": "u"}, "top_k": 3})
    assert body_of(request).keys() == {"model", "messages", "max_completion_tokens"}
    assert losses_of(request) == dict.fromkeys(["context_management", "metadata", "top_k"], "hint")
    request = from_chat({"frequency_penalty": 1, "presence_penalty": 0, "seed": 1, "logit_bias": {"1": 2}})
    assert body_of(request).keys() == {"model", "messages", "max_tokens"}
    assert losses_of(request) == dict.fromkeys(["frequency_penalty", "seed", "logit_bias"], "hint")


def test_20_failed_tool_is_not_taken_for_a_success() -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}}]}
    failed = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no clock", "is_error": True}
    messages = body_of(from_messages({"messages": [*SAID, use, {"role": "user", "content": [failed]}]}))["messages"]
    assert messages[2]["content"] == "Error: no clock"


def test_21_system_messages_in_the_conversation_stay_in_their_place() -> None:
    turns = [{"role": "system", "content": "be kind"}, {"role": "developer", "content": "be short"}, *SAID,
             {"role": "assistant", "content": "hello"}, {"role": "system", "content": "now rhyme"}, *SAID]  # fmt: skip
    body = body_of(from_chat({"messages": turns}))
    assert body["system"] == "be kind\n\nbe short"
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][2]["content"][0]["text"] == "<system-reminder>\nnow rhyme\n</system-reminder>"
    back = {"messages": [*SAID, {"role": "system", "content": "now rhyme"}, *SAID], "system": "be kind"}
    messages = body_of(from_messages(back))["messages"]
    assert [turn["role"] for turn in messages] == ["system", "user", "system", "user"]


def test_21_messages_begin_with_the_user() -> None:
    alone = body_of(from_chat({"messages": [{"role": "system", "content": "Write a poem."}]}))
    assert alone["messages"] == [{"role": "user", "content": "Write a poem."}]
    assert "system" not in alone
    begun = body_of(from_chat({"messages": [{"role": "assistant", "content": "May I help?"}, *SAID]}))["messages"]
    assert [turn["role"] for turn in begun] == ["user", "assistant", "user"]
    assert begun[0]["content"].startswith("<system-reminder>")
    assert begun[1]["content"] == "May I help?"


@pytest.mark.parametrize(("tool", "name"), [("web_search_20250305", "web_search"), ("bash_20250124", "provider_tools"),
                                            ("code_execution_20250825", "code_execution"),
                                            ("new_1", "provider_tools")])  # fmt: skip
def test_22_provider_tools_are_refused_by_name_and_may_be_dropped(tool: str, name: str) -> None:
    request = from_messages({"tools": [{"type": tool, "name": "x"}, MESSAGES_TOOL]})
    assert losses_of(request) == {name: "promise"}
    refused, _ = divided(request.losses, "hints")
    assert [str(loss) for loss in refused] == [f"{name} at tools[0]"]
    assert divided(request.losses, (name,)) == ([], (name,))
    assert [tool["function"]["name"] for tool in body_of(request)["tools"]] == ["weather"]


def test_23_schemas_get_an_object_at_their_root() -> None:
    def schema(parameters: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        request = from_chat({"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]})
        return body_of(request)["tools"][0]["input_schema"], losses_of(request)

    assert schema({}) == ({"type": "object", "properties": {}}, {})
    part = {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a", "b"]}
    other = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    lifted, losses = schema({"anyOf": [part, {"$ref": "#/$defs/other"}], "$defs": {"other": other}})
    assert (lifted["type"], lifted["properties"].keys(), lifted["required"]) == ("object", {"a", "b"}, ["a"])
    assert "anyOf" not in lifted
    assert losses == {"schema_composition": "hint"}
    assert body_of(from_messages({"tools": [{"name": "f", "input_schema": {}}]}))["tools"][0]["function"][
        "parameters"
    ] == {"type": "object", "properties": {}}


def test_24_values_beyond_the_other_sides_limits() -> None:
    request = from_chat({"stop": ["\n", "END"], "temperature": 1.6})
    body = body_of(request)
    assert (body["stop_sequences"], body["temperature"]) == (["END"], 1)
    assert losses_of(request) == {"stop": "hint", "temperature": "hint"}
    five = from_messages({"stop_sequences": list("abcde")})
    assert losses_of(five) == {"stop_sequences": "promise"}
    image = {"type": "image_url", "image_url": {"url": f"data:image/jpg;base64,{PNG}"}}
    body = body_of(from_chat({"messages": [{"role": "user", "content": [image]}]}))
    assert body["messages"][0]["content"][0]["source"]["media_type"] == "image/jpeg"
    image["image_url"]["url"] = f"data:image/svg+xml;base64,{PNG}"  # type: ignore[index]
    assert losses_of(from_chat({"messages": [{"role": "user", "content": [image]}]})) == {"image_format": "promise"}


def test_25_lost_cache_control_is_named() -> None:
    block = {"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}
    request = from_messages({"system": [block], "messages": [{"role": "user", "content": [block]}]})
    assert divided(request.losses, "hints") == ([], ("cache_control",))


@pytest.mark.parametrize(("prefill", "marks"), [("plain", {}), ("prefix", {"prefix": True}),
                                                ("partial", {"partial": True})])  # fmt: skip
def test_26_beginning_of_a_response_is_marked_as_the_deployment_wants(prefill: str, marks: dict[str, Any]) -> None:
    turns = {"messages": [*SAID, {"role": "assistant", "content": "Once "}]}
    last = body_of(from_messages(turns, prefill=prefill))["messages"][-1]
    assert last == {"role": "assistant", "content": "Once ", **marks}
    assert losses_of(from_messages(turns)) == {"prefill": "promise"}
    body = body_of(from_messages(turns, prefill="continue_final_message"))
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert body_of(from_chat(turns))["messages"][-1]["content"] == "Once"  # no whitespace at its end


@pytest.mark.parametrize(("dialect", "path"), [
    ("anthropic", "/v1/messages/count_tokens"), ("openai", "/v1/embeddings"), ("openai", "/v1/responses/compact"),
])  # fmt: skip
def test_27_and_28_other_endpoints_are_not_translated(dialect: Any, path: str) -> None:
    assert endpoint_of(dialect, "POST", path) is None


@pytest.mark.parametrize(("status", "client", "expected", "kind"), [
    (529, "openai", 503, "service_unavailable_error"), (429, "anthropic", 429, "rate_limit_error"),
    (401, "openai", 401, "authentication_error"), (500, "anthropic", 500, "api_error"),
    (413, "anthropic", 413, "request_too_large"), (404, "openai", 404, "invalid_request_error"),
])  # fmt: skip
def test_errors_keep_their_status_in_the_clients_format(status: int, client: Any, expected: int, kind: str) -> None:
    found = translated_error(status, b'{"error": {"message": "why", "code": "x"}}', client, "lg-1")
    assert found.status == expected
    error = json.loads(found.body)["error"]
    assert (error["type"], error["message"]) == (kind, "why")


def test_error_that_is_no_json_is_shown() -> None:
    assert json.loads(translated_error(502, b"<html>bad gateway</html>", "openai", "r").body)["error"]["message"] == (
        "<html>bad gateway</html>"
    )
    assert json.loads(translated_error(502, b"", "anthropic", "r").body)["error"]["message"] == "status 502"
