"""Responses of other dialects as the Responses API, streamed and whole."""

from __future__ import annotations

import json

import pytest

from llm_guard.dialects.sse import events_in
from llm_guard.dialects.translation.canonical import InvalidCallError, StopCause, TokenCounts
from llm_guard.dialects.translation.endpoints import CHAT
from llm_guard.dialects.translation.responses_output import ResponseFrame, responses_usage
from llm_guard.dialects.translation.responses_response_writer import ResponsesStreamWriter
from tests.unit.dialects.translation.conversions import (
    call_delta,
    chat_events,
    delta,
    from_responses,
    message_events,
    responses_fold,
    streamed,
    text_block,
    tool_block,
    whole,
)

PATCH = {"type": "custom", "name": "apply_patch"}
THOUGHT = {"type": "thinking", "thinking": "", "signature": "", "pieces": ["Let me ", "see."]}


def names(raw: bytes) -> list[str]:
    return [event.name.removeprefix("response.") for event in events_in(raw) if event.name]


def test_text_and_call_are_two_items_with_all_their_events() -> None:
    raw = streamed(from_responses({"tools": []}), message_events(text_block("a", "b"), tool_block("t1", "f", "{}")))
    assert names(raw) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "output_item.added",
        "function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    found = responses_fold(raw)
    assert (found.status, found.output_text, found.created_at) == ("completed", "ab", 1_700_000_000)


def test_each_event_of_an_item_has_its_id() -> None:
    raw = streamed(from_responses(), message_events(text_block("a"), tool_block("t1", "f", '{"a": 1}')))
    found = responses_fold(raw)
    ids = {item.id for item in found.output}
    events = [json.loads(event.data) for event in events_in(raw)]
    assert {event["item_id"] for event in events if "item_id" in event} == ids
    assert {event["item"]["id"] for event in events if "item" in event} == ids
    assert {event["response"]["id"] for event in events if "response" in event} == {found.id}
    assert [str(item.id)[:3] for item in found.output] == ["msg", "fc_"]
    assert all(len(one or "") <= 64 for one in (*ids, found.id))


def test_ids_differ_between_the_requests_of_a_conversation() -> None:
    answer = message_events(text_block("a"))
    first, second = (responses_fold(streamed(from_responses({"input": text}), answer)) for text in ("hi", "and?"))
    assert first.id != second.id
    assert first.output[0].id != second.output[0].id
    again = responses_fold(streamed(from_responses({"input": "hi"}), answer))
    assert first.id == again.id


def test_interleaved_calls_of_a_chat_keep_their_arguments() -> None:
    raw = chat_events(
        call_delta(0, '{"a"', "c1", "f"), call_delta(1, '{"b"', "c2", "g"), call_delta(0, ": 1}"), delta(content="so"),
        call_delta(1, ": 2}"), delta("tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}},
    )  # fmt: skip
    found = responses_fold(streamed(from_responses(to=CHAT), raw))
    assert [(item.type, getattr(item, "arguments", "so")) for item in found.output] == [
        ("function_call", '{"a": 1}'), ("function_call", '{"b": 2}'), ("message", "so"),
    ]  # fmt: skip
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.total_tokens) == (7, 10)


def test_call_without_arguments_has_an_empty_object() -> None:
    raw = streamed(from_responses(), message_events(tool_block("t1", "f", " "), tool_block("t2", "f")))
    assert [getattr(item, "arguments", "") for item in responses_fold(raw).output] == ["{}", "{}"]


CUT = [
    ("max_tokens", "max_output_tokens"), ("model_context_window_exceeded", "max_output_tokens"),
    ("refusal", "content_filter"),
]  # fmt: skip


@pytest.mark.parametrize(("stop", "reason"), CUT)
def test_early_end_is_incomplete_with_its_reason(stop: str, reason: str) -> None:
    raw = streamed(from_responses(), message_events(text_block("a"), tool_block("t", "f", '{"a'), stop=stop))
    found = responses_fold(raw)
    assert found.status == "incomplete"
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == reason
    assert [getattr(item, "status", "") for item in found.output] == ["completed", "incomplete"]
    cut = responses_fold(streamed(from_responses(), message_events(text_block("a"), stop=stop)))
    assert getattr(cut.output[0], "status", "") == "incomplete"


@pytest.mark.parametrize("stop", ["end_turn", "stop_sequence", "pause_turn"])
def test_other_ends_are_complete(stop: str) -> None:
    found = responses_fold(streamed(from_responses(), message_events(text_block("a"), stop=stop)))
    assert (found.status, found.incomplete_details) == ("completed", None)


def test_refusal_is_a_part_of_its_own() -> None:
    raw = chat_events(delta(content="I "), delta(refusal="No."), delta("stop"))
    found = responses_fold(streamed(from_responses(to=CHAT), raw))
    message = found.output[0]
    assert message.type == "message"
    assert [part.type for part in message.content] == ["output_text", "refusal"]
    assert getattr(message.content[1], "refusal", "") == "No."
    assert found.status == "incomplete"


def test_reasoning_is_shown_as_a_summary_or_not_at_all() -> None:
    raw = message_events(THOUGHT, text_block("a"))
    hidden = streamed(from_responses(), raw)
    assert [item.type for item in responses_fold(hidden).output] == ["message"]
    assert b": keep-alive\n\n" in hidden
    shown = responses_fold(streamed(from_responses(), raw, shows=True))
    assert [item.type for item in shown.output] == ["reasoning", "message"]
    assert getattr(shown.output[0], "summary", [])[0].text == "Let me see."


def test_custom_tool_is_called_with_its_text() -> None:
    request = from_responses({"tools": [PATCH]})
    raw = streamed(request, message_events(tool_block("t1", "apply_patch", '{"input": "*** Be', 'gin\\n"}')))
    call = responses_fold(raw).output[0]
    assert call.type == "custom_tool_call"
    assert (call.name, call.call_id, call.input) == ("apply_patch", "t1", "*** Begin\n")
    assert "custom_tool_call_input.done" in names(raw)


@pytest.mark.parametrize("arguments", ["", "{}", '{"input": 3}', '{"input"'])
def test_custom_tool_without_input_is_the_models_mistake(arguments: str) -> None:
    request = from_responses({"tools": [PATCH]})
    with pytest.raises(InvalidCallError):
        streamed(request, message_events(tool_block("t1", "apply_patch", arguments)))
    raw = message_events(tool_block("t1", "apply_patch", arguments), stop="max_tokens")
    cut = responses_fold(streamed(request, raw))
    assert (cut.output[0].to_dict()["status"], cut.status) == ("incomplete", "incomplete")


def test_arguments_that_are_not_json_are_the_models_mistake() -> None:
    with pytest.raises(InvalidCallError):
        streamed(from_responses(), message_events(tool_block("t1", "f", '{"a'), stop="tool_use"))


def test_tool_of_a_namespace_is_called_with_its_own_name() -> None:
    tool = {"type": "function", "name": "send", "parameters": {}}
    request = from_responses({"tools": [{"type": "namespace", "name": "mail", "description": "", "tools": [tool]}]})
    call = responses_fold(streamed(request, message_events(tool_block("t1", "mail__send", "{}")))).output[0]
    assert call.type == "function_call"
    assert (call.name, call.namespace) == ("send", "mail")


def test_response_repeats_its_request() -> None:
    fields = {"instructions": "Be brief.", "temperature": 0.5, "metadata": {"a": "b"}, "store": None, "user": None}
    found = whole(from_responses(fields), {"content": [{"type": "text", "text": "a"}], "model": "m", "id": "msg_1"})
    assert (found["instructions"], found["temperature"], found["metadata"]) == ("Be brief.", 0.5, {"a": "b"})
    assert (found["model"], found["store"], found["top_p"], "user" in found) == ("m", False, 1.0, False)
    assert "input" not in found


def test_repeated_tools_have_the_members_that_sdks_require() -> None:
    tools = [{"type": "function", "name": "f"}, PATCH]
    raw = streamed(from_responses({"tools": tools}), message_events(text_block("a")))
    assert [tool.to_dict() for tool in responses_fold(raw).tools] == [
        {"type": "function", "name": "f", "parameters": None, "strict": False}, PATCH,
    ]  # fmt: skip


def test_folded_stream_is_the_whole_response() -> None:
    request = from_responses({"tools": [PATCH]})
    content = [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b"},
        {"type": "tool_use", "id": "t1", "name": "apply_patch", "input": {"input": "x"}},
    ]  # fmt: skip
    body = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": content,
            "stop_reason": "tool_use", "usage": {"input_tokens": 5, "output_tokens": 9}}  # fmt: skip
    events = message_events(text_block("a"), text_block("b"), tool_block("t1", "apply_patch", '{"input": "x"}'))
    assert responses_fold(streamed(request, events)).to_dict() == whole(request, body)


def test_usage_has_cached_tokens_within_the_input() -> None:
    usage = responses_usage(TokenCounts(prompt=10, cached=6, created=2, output=3, reasoning=1))
    assert usage["input_tokens_details"] == {"cached_tokens": 6, "cache_write_tokens": 2}
    assert (usage["input_tokens"], usage["total_tokens"]) == (10, 13)
    assert usage["output_tokens_details"] == {"reasoning_tokens": 1}


def test_response_beyond_the_bound_is_refused() -> None:
    writer = ResponsesStreamWriter(ResponseFrame({}, {}, ""), shows_reasoning=False)
    writer.begin("", "", 1)
    writer.text("x" * (1 << 24))
    with pytest.raises(ValueError, match="too long"):
        writer.text("x")


@pytest.mark.parametrize("stop", ["end", "length"])
def test_response_without_any_output_ends(stop: StopCause) -> None:
    writer = ResponsesStreamWriter(ResponseFrame({}, {}, ""), shows_reasoning=False)
    writer.begin("", "", 1)
    writer.end(stop, None, TokenCounts())
    assert responses_fold(writer.take()).output == []
