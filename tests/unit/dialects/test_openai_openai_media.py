"""Streams of speech, transcripts, images and runs: which events are progress, and when the streams are complete."""

from __future__ import annotations

import json

import pytest

from llm_guard.dialects.anthropic import EventsReader
from llm_guard.dialects.openai import OtherReader
from llm_guard.dialects.sse import END, FILLER, TOKEN, SseEvent, StreamObserver, StreamReader, Usage


def event(data: object, name: str = "") -> SseEvent:
    return SseEvent(name, data if isinstance(data, bytes) else json.dumps(data).encode())


def watch(reader: StreamReader, *events: object) -> StreamObserver:
    watched = StreamObserver(reader)
    for data in events:
        watched.feed(b"data: %b\n\n" % (data if isinstance(data, bytes) else json.dumps(data).encode()))
    return watched


def test_other_streams_take_any_data_for_useful_and_may_end_anywhere() -> None:
    assert OtherReader().read(event({"type": "speech.audio.delta"})).is_token
    assert OtherReader().read(event(b"\x00\x01")) == TOKEN
    assert OtherReader().read(event(b"", "ping")) == FILLER
    assert OtherReader().read(event(b"{}", "ping")) == FILLER
    assert OtherReader().read(event({"type": "keepalive"})) == FILLER
    assert OtherReader().read(event({"type": "transcript.text.delta", "delta": ""})) == FILLER
    assert OtherReader().read(event(b"[DONE]")) == END
    assert watch(OtherReader()).may_end


def test_other_streams_have_errors() -> None:
    assert OtherReader().read(event({"error": {"code": 1}})).error is not None
    assert OtherReader().read(event(b"boom", "error")).error == b"boom"
    assert OtherReader().read(event({"usage": {"input_tokens": 4}, "error": None})).usage == Usage(4, None)


@pytest.mark.parametrize("name", ["", "error"])
def test_error_of_an_agent_session_is_an_event_of_its_log(name: str) -> None:
    """The log continues after it; as an error of the stream it would never reach a client."""
    logged = {"type": "error", "event_id": "evt_1", "session_id": "sess_1", "error": {"code": "x", "message": "m"}}
    mark = OtherReader().read(event(logged, name))
    assert mark.is_token
    assert mark.error is None


ENDS = [
    ({"type": "transcript.text.delta", "delta": "x"}, {"type": "transcript.text.done", "text": "x"}),
    ({"type": "speech.audio.delta", "audio": "AA"}, {"type": "speech.audio.done"}),
    ({"type": "image_generation.partial_image", "b64_json": "AA"}, {"type": "image_generation.completed"}),
    ({"type": "image_edit.partial_image", "b64_json": "AA"}, {"type": "image_edit.completed"}),
    ({"choices": [{"delta": {"content": "x"}}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]}),
    ({"type": "thread.run.created"}, b"[DONE]"),
    ({"choices": [{"delta": {"content": "x"}, "finish_reason": None}]}, b"[DONE]"),
]


@pytest.mark.parametrize(("first", "last"), ENDS)
def test_stream_with_a_documented_end_is_cut_without_it(first: object, last: object) -> None:
    cut = watch(OtherReader(), first, first)
    assert (cut.may_end, cut.lacks_finish) == (False, True)
    assert watch(OtherReader(), first, first, last).may_end
    assert watch(OtherReader(), last).may_end
    assert watch(OtherReader(is_lenient=True), first).may_end


def test_events_without_a_documented_end_may_end_anywhere() -> None:
    assert watch(OtherReader(), {"text": "hi"}, {"segments": []}).may_end


NOT_STOPPED = {"type": "completion", "completion": "x", "stop_reason": None}
STOPPED = {"type": "completion", "completion": "", "stop_reason": "stop_sequence"}


def test_legacy_completion_of_anthropic_is_cut_without_its_reason_to_stop() -> None:
    def reader() -> EventsReader:
        return EventsReader(expects_progress=True)

    assert not watch(reader(), NOT_STOPPED, NOT_STOPPED).may_end
    assert watch(reader(), NOT_STOPPED, NOT_STOPPED, STOPPED).may_end
    assert watch(reader(), {"completion": "of another server"}).may_end
    assert watch(EventsReader(expects_progress=False), NOT_STOPPED).may_end
