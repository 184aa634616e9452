"""Responses in the other dialect: what is not about a known defect of other translators."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.dialects.translation import messages_response_writer
from llm_guard.dialects.translation.error_bodies import translated_headers
from llm_guard.dialects.translation.stream_translation import StreamTranslator
from llm_guard.dialects.translation.wire_json import object_of
from tests.unit.dialects.translation.conversions import (
    CHAT_TOOL,
    MESSAGES_TOOL,
    body_of,
    call_delta,
    chat_events,
    chat_fold,
    delta,
    from_chat,
    from_messages,
    message_events,
    messages_fold,
    streamed,
    text_block,
    tool_block,
    whole,
)

LONG = "mcp.read:" + "x" * 120


def test_names_are_the_clients_in_both_directions() -> None:
    request = from_messages({"tools": [{**MESSAGES_TOOL, "name": "y" * 100}]})
    wire = body_of(request)["tools"][0]["function"]["name"]
    raw = chat_events(call_delta(0, "{}", "call_1", wire), delta("tool_calls"))
    assert messages_fold(streamed(request, raw)).content[0].name == "y" * 100  # type: ignore[union-attr]
    raw = chat_events(call_delta(0, "{}", "call_1", LONG), delta("tool_calls"))
    assert len(messages_fold(streamed(from_messages(), raw)).content[0].name) <= 128  # type: ignore[union-attr]


def test_ids_are_the_same_in_each_attempt() -> None:
    request = from_chat({"tools": [CHAT_TOOL]})
    raw = message_events(tool_block("toolu_1", "weather", "{}"), stop="tool_use")
    assert streamed(request, raw) == streamed(request, raw)


def test_half_of_a_surrogate_pair_is_kept() -> None:
    raw = message_events(text_block("\ud83d", "\ude00"))
    found = streamed(from_chat(), raw)
    texts = [json.loads(line[6:])["choices"][0]["delta"].get("content") for line in found.decode().splitlines()
             if line.startswith("data: {")]  # fmt: skip
    assert "\ud83d" in texts
    assert "\ude00" in texts


@pytest.mark.parametrize("form", [
    lambda data: b"data:" + data + b"\n\n", lambda data: b"event: message\r\ndata: " + data + b"\r\n\r\n",
    lambda data: b": comment\ndata: " + data + b"\n\n", lambda data: b"data: " + data + b"\nid: 5\n\n",
    lambda data: b"\xef\xbb\xbfdata: " + data + b"\n\n", lambda data: b"data: {\ndata: " + data[1:] + b"\n\n",
])  # fmt: skip
def test_events_may_be_written_in_any_way(form: Any) -> None:
    chunks = [{"id": "c", "model": "m", **delta(content="Salt")}, {"id": "c", **delta("stop")}]
    raw = b"".join(form(json.dumps(chunk).encode()) for chunk in chunks)
    assert messages_fold(streamed(from_messages(), raw)).content[0].text == "Salt"  # type: ignore[union-attr]


@pytest.mark.parametrize(("stop", "finish"), [
    ("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"), ("pause_turn", "stop"),
    ("model_context_window_exceeded", "length"), ("refusal", "content_filter"), ("new", "stop"),
])  # fmt: skip
def test_reasons_for_an_end_of_messages(stop: str, finish: str) -> None:
    found = chat_fold(streamed(from_chat(), message_events(text_block("a"), stop=stop)))
    assert found.choices[0].finish_reason == finish


@pytest.mark.parametrize(("finish", "stop"), [
    ("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal"), ("eos", "end_turn"),
])  # fmt: skip
def test_reasons_for_an_end_of_a_chat(finish: str, stop: str) -> None:
    raw = chat_events(delta(content="a"), delta(finish))
    assert messages_fold(streamed(from_messages(), raw)).stop_reason == stop


def test_calls_that_all_have_the_same_index_are_told_apart_by_their_ids() -> None:
    raw = chat_events(call_delta(0, "{}", "a", "f"), call_delta(0, '{"x": 1}', "b", "g"), delta("tool_calls"))
    found = messages_fold(streamed(from_messages(), raw)).content
    assert [(block.id, block.name) for block in found] == [("a", "f"), ("b", "g")]  # type: ignore[union-attr]


def test_calls_without_index_id_or_a_late_name_are_read() -> None:
    raw = chat_events(
        call_delta(None, "", None, "f"), call_delta(0, '{"x"'), call_delta(0, ": 1}"), delta("tool_calls")
    )
    (block,) = messages_fold(streamed(from_messages(), raw)).content
    assert block.input == {"x": 1}  # type: ignore[union-attr]
    assert block.id  # type: ignore[union-attr]
    raw = chat_events(call_delta(0, '{"x"', "a"), call_delta(0, ": 1}", None, "f"), delta("tool_calls"))
    assert messages_fold(streamed(from_messages(), raw)).content[0].input == {"x": 1}  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="no name"):
        streamed(from_messages(), chat_events(call_delta(0, "{}", "a"), delta("tool_calls")))


def test_text_after_a_call_is_a_block_of_its_own() -> None:
    raw = chat_events(call_delta(0, '{"x": 1}', "a", "f"), delta(content="and "), delta(content="so"), delta("stop"))
    assert [block.type for block in messages_fold(streamed(from_messages(), raw)).content] == ["tool_use", "text"]
    raw = chat_events(call_delta(0, '{"x"', "a", "f"), delta(content="so"), call_delta(0, ": 1}"), delta("stop"))
    assert [block.type for block in messages_fold(streamed(from_messages(), raw)).content] == ["tool_use", "text"]


def test_call_that_goes_on_after_its_end_is_invalid() -> None:
    raw = chat_events(call_delta(0, "{}", "a", "f"), call_delta(1, "{}", "b", "g"), call_delta(0, "x"), delta("stop"))
    with pytest.raises(ValueError, match="continues"):
        streamed(from_messages(), raw)


def test_usage_chunk_comes_only_where_it_is_wanted() -> None:
    raw = message_events(text_block("a"))
    assert b'"usage"' not in streamed(from_chat(), raw)
    wanted = streamed(from_chat({"stream_options": {"include_usage": True}}), raw)
    assert wanted.count(b'"usage":{') == 1
    assert b'"usage":null' in wanted


def test_usage_in_each_chunk_is_the_last_one() -> None:
    early = {**delta(content="a"), "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    late = {**delta("stop"), "usage": {"prompt_tokens": 5, "completion_tokens": 7}}
    assert messages_fold(streamed(from_messages(), chat_events(early, late))).usage.output_tokens == 7


def test_content_in_parts_is_read() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "Salt"}]
    raw = chat_events(delta(content=parts), delta("stop"))
    found = messages_fold(streamed(from_messages(), raw, shows=True)).content
    assert [block.type for block in found] == ["thinking", "text"]


def test_explanation_of_a_refusal_is_the_chats_refusal() -> None:
    message = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [], "usage": {}}
    message |= {"stop_reason": "refusal", "stop_details": {"type": "refusal", "explanation": "Not this."}}
    choice = whole(from_chat(), message)["choices"][0]
    assert (choice["finish_reason"], choice["message"]["refusal"]) == ("content_filter", "Not this.")


def test_headers_belong_to_the_clients_dialect() -> None:
    headers = (("x-request-id", "r"), ("openai-version", "1"), ("Content-Length", "5"), ("retry-after", "2"))
    assert translated_headers(headers, "anthropic") == (("request-id", "r"), ("retry-after", "2"))


def test_equal_calls_are_blocks_of_their_own() -> None:
    calls = [call_delta(index, '{"x": 1', f"c{index}", "f") for index in range(3)]
    ends = [call_delta(index, "}") for index in (2, 1, 0)]
    found = messages_fold(streamed(from_messages(), chat_events(*calls, *ends, delta("tool_calls")))).content
    assert [block.input for block in found] == [{"x": 1}] * 3  # type: ignore[union-attr]


def test_arguments_without_end_take_no_memory_without_end() -> None:
    translator = from_messages().stream(1, shows_reasoning=False)
    translator.feed(chat_events(call_delta(0, '{"x": "', "a", "f"), done=False))
    piece = chat_events(call_delta(0, "y" * (1 << 20)), done=False)
    with pytest.raises(ValueError, match="too long"):
        _feed_often(translator, piece)


def test_event_without_end_takes_no_memory_without_end() -> None:
    with pytest.raises(ValueError, match="too long"):
        _feed_often(from_messages().stream(1, shows_reasoning=False), b"x" * (1 << 20))


def _feed_often(translator: StreamTranslator, piece: bytes) -> None:
    for _ in range(17):
        translator.feed(piece)


def test_long_interleaved_calls_are_parsed_only_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []

    def counted(text: str) -> dict[str, Any] | None:
        parsed.append(len(text))
        return object_of(text)

    monkeypatch.setattr(messages_response_writer, "object_of", counted)
    start = [call_delta(0, '{"x": "', "a", "f"), call_delta(1, "{}", "b", "g")]
    pieces = [call_delta(0, "}") for _ in range(5_000)]
    raw = chat_events(*start, *pieces, call_delta(0, '"}'), delta("tool_calls"))
    found = messages_fold(streamed(from_messages(), raw))
    assert [block.name for block in found.content] == ["f", "g"]  # type: ignore[union-attr]
    assert 1 << 20 < sum(parsed) < 5 << 20, "with each of them it would be 12 million characters"
