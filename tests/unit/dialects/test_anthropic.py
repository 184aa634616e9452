from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.dialects import anthropic
from llm_guard.dialects.anthropic import EventsReader, MessagesReader, stream_reader
from llm_guard.dialects.sse import (
    END,
    FILLER,
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


def read(kind: str, name: str | None = None, **more: Any) -> Mark:
    data = json.dumps({"type": kind, **more}).encode()
    return MessagesReader().read(SseEvent(kind if name is None else name, data))


def watch(reader: StreamReader, stream: bytes) -> StreamObserver:
    watched = StreamObserver(reader)
    watched.feed(stream)
    return watched


def test_path_decides_how_its_stream_is_read() -> None:
    assert isinstance(stream_reader("/v1/messages", 1), MessagesReader)
    complete, session = stream_reader("/v1/complete", 1), stream_reader("/v1/sessions/sesn_1/events/stream", 1)
    assert isinstance(complete, EventsReader)
    assert isinstance(session, EventsReader)
    assert complete.expects_progress
    assert not session.expects_progress, "it may wait for a person"


def test_header_of_a_message_is_no_token() -> None:
    assert read("message_start") == read("message_start", name="") == NOTHING


@pytest.mark.parametrize("kind", ["ping", "keepalive", "keep-alive", "heartbeat", "system.heartbeat"])
def test_keep_alive_of_a_message_is_filler(kind: str) -> None:
    assert read(kind) == read(kind, name="") == FILLER


@pytest.mark.parametrize("kind", ["content_block_start", "content_block_stop"])
def test_edge_of_a_block_is_progress_and_no_token(kind: str) -> None:
    assert read(kind) == read(kind, name="") == PROGRESS


@pytest.mark.parametrize(
    ("delta", "is_empty"),
    [
        ({"type": "text_delta", "text": ""}, True),
        ({"type": "input_json_delta", "partial_json": ""}, True),
        ({"type": "thinking_delta", "thinking": "", "estimated_tokens": None}, True),
        ({"type": "compaction_delta", "content": None}, True),
        ({}, True),
        ({"type": "text_delta", "text": " "}, False),
        ({"type": "thinking_delta", "thinking": "", "estimated_tokens": 50}, False),
        ({"type": "signature_delta", "signature": "Eq"}, False),
        ({"type": "citations_delta", "citation": {"type": "char_location", "cited_text": "x"}}, False),
    ],
)
def test_delta_of_a_block_that_adds_nothing_is_filler(delta: dict[str, Any], is_empty: bool) -> None:
    assert read("content_block_delta", delta=delta) == (FILLER if is_empty else TOKEN)


@pytest.mark.parametrize("kind", ["content_block_delta", "message_delta", "anything_new"])
def test_anything_else_in_a_message_is_a_token(kind: str) -> None:
    assert read(kind) == TOKEN


def test_message_stop_is_the_end() -> None:
    assert read("message_stop") == END
    assert read("message_stop", name="") == END
    assert not watch(MessagesReader(), b'event: message_delta\ndata: {"type": "message_delta"}\n\n').may_end


def test_message_lacks_nothing_after_its_end() -> None:
    assert watch(MessagesReader(), b'event: message_stop\ndata: {"type": "message_stop"}\n\n').missing_end == b""
    assert watch(EventsReader(expects_progress=True), b"data: {}\n\n").missing_end == b""


@pytest.mark.parametrize(
    ("kind", "is_dull"), [("content_block_delta", True), ("ping", True), ("message_delta", False), ("error", False)]
)
def test_event_of_a_message_is_dull_when_nothing_in_it_can_matter(kind: str, is_dull: bool) -> None:
    assert MessagesReader().is_dull(f'event: {kind}\ndata: {{"type":"{kind}"}}\n\n'.encode()) is is_dull


def test_usage_is_counted_at_the_start_and_at_the_end() -> None:
    seen = watch(
        MessagesReader(),
        b'event: message_start\ndata: {"type": "message_start", "message": {"usage": {"input_tokens": 9}}}\n\n'
        b'event: content_block_delta\ndata: {"type": "content_block_delta"}\n\n'
        b'event: message_delta\ndata: {"type": "message_delta", "usage": {"output_tokens": 4}}\n\n',
    )
    assert seen.usage == Usage(9, 4)


def test_error_in_a_message_is_marked_as_it_was_written() -> None:
    mark = read("error", error={"type": "overloaded_error"})
    assert mark.error is not None
    assert json.loads(mark.error)["error"] == {"type": "overloaded_error"}
    assert read("error", name="").error is not None
    assert MessagesReader().read(SseEvent("error", b"Overloaded")) == Mark(error=b"Overloaded", is_heard=True)


@pytest.mark.parametrize("data", [b"{", b"[1]", b"3", b"null", b"\xff", b"[" * 100_000])
def test_non_object_is_malformed(data: bytes) -> None:
    assert MessagesReader().read(SseEvent("content_block_delta", data)) == MALFORMED


def test_beginning_of_an_event_too_long_to_read_is_a_token() -> None:
    assert MessagesReader().read(SseEvent("content_block_delta", b'{"type": "con', is_whole=False)) == TOKEN


@pytest.mark.parametrize("value", [{"type": []}, {"type": {}}, {"type": 3}, {"message": 3, "type": "ping"}, {}])
def test_confused_types_raise_nothing(value: object) -> None:
    MessagesReader().read(SseEvent("", json.dumps(value).encode()))


def test_other_streams_take_any_data_for_useful_and_may_end_anywhere() -> None:
    assert EventsReader(expects_progress=True).read(SseEvent("completion", b"{}")) == TOKEN
    assert EventsReader(expects_progress=True).read(SseEvent("ping", b"{}")) == FILLER
    assert EventsReader(expects_progress=True).read(SseEvent("completion", b"")) == NOTHING
    assert EventsReader(expects_progress=True).read(SseEvent("error", b"{}")) == Mark(error=b"{}", is_heard=True)
    assert watch(EventsReader(expects_progress=True), b"").may_end


def test_refusal_reads_like_an_error_of_anthropic() -> None:
    body = anthropic.refusal_body(Refusal(429, "too_many", "slow down", by="limit"), "lg-1")
    assert body == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "slow down"},
        "request_id": "lg-1",
    }


@pytest.mark.parametrize("text", ["boom", "two\nlines", 'quote " and \r\n\r\n data: x'])
def test_error_event_is_one_event_that_the_reader_takes_for_an_error(text: str) -> None:
    written = anthropic.error_event(Refusal(502, "upstream_truncated", text, by=None), "lg-1")
    assert written.count(b"\n\n") == 1
    error = watch(MessagesReader(), written).error
    assert error is not None
    assert json.loads(error)["error"]["message"] == text


def test_tokens_read_from_the_cache_and_written_to_it_are_counted() -> None:
    usage = {"input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": 900}
    assert anthropic.usage_in({"usage": usage}) == Usage(5, 1, 900, 900)
    assert anthropic.usage_in({"usage": {**usage, "cache_creation_input_tokens": 70}}) == Usage(5, 1, 900, 970)


def test_error_is_one_for_any_event_name() -> None:
    assert read("error", name="message").error is not None
