"""Views a stream whose events are translated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.dialects import DIALECTS
from llm_guard.dialects.translation.endpoints import CHAT, MESSAGES, TranslatedRequest
from llm_guard.outcome import FailureKind
from llm_guard.proxy.streams.decoder import view_of
from llm_guard.proxy.translation.decoder import TranslatingStreamDecoder
from tests.unit.dialects.translation.conversions import (
    call_delta,
    chat_events,
    delta,
    from_chat,
    from_messages,
    message_events,
    messages_fold,
    text_block,
)

ERROR = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'


def view_for(request: TranslatedRequest) -> TranslatingStreamDecoder:
    endpoint = request.endpoint
    reader = DIALECTS[endpoint.dialect].stream_reader(endpoint.path, 1)
    client = CHAT if endpoint is MESSAGES else MESSAGES
    return TranslatingStreamDecoder(
        view_of(reader, ""), request.stream(1, shows_reasoning=False), client.dialect, "lg-1"
    )


def test_good_stream_ends_with_the_upstreams_own_end() -> None:
    raw, view = message_events(text_block("Salt")), view_for(from_chat())
    before = view.feed(raw[: raw.index(b"event: message_stop")])
    assert b"[DONE]" not in before
    assert b'"finish_reason":"' not in before
    assert not view.has_ended
    assert view.feed(raw[raw.index(b"event: message_stop") :]).endswith(b"data: [DONE]\n\n")
    assert (view.has_ended, view.is_closed, view.failure, view.trailing_bytes()) == (True, False, None, b"")


def test_end_is_owed_until_usage_or_done_has_come() -> None:
    view = view_for(from_messages())
    passed = view.feed(chat_events(delta(content="Salt"), delta("stop"), done=False))
    assert b"message_delta" not in passed
    assert view.watch.has_ended
    assert not view.has_ended
    assert messages_fold(passed + view.trailing_bytes()).stop_reason == "end_turn"
    assert view.trailing_bytes() == b""


def test_stream_without_an_end_is_owed_none() -> None:
    view = view_for(from_messages())
    view.feed(chat_events(delta(content="Salt"), done=False))
    assert view.trailing_bytes() == b""


def test_error_event_is_held_in_the_clients_format_and_closes_the_view() -> None:
    view = view_for(from_chat())
    raw = message_events(text_block("Salt", "y"))
    at = raw.index(b"event: content_block_stop")
    passed = view.feed(raw[:at] + ERROR + raw[at:])
    assert b"Salt" in passed
    assert b"Overloaded" not in passed
    assert b'finish_reason":"' not in passed
    assert json.loads(view.suppressed.partition(b"data: ")[2])["error"]["message"] == "Overloaded"
    assert view.is_closed
    assert (view.feed(raw), view.trailing_bytes()) == (b"", b"")


def test_events_before_a_broken_one_are_passed_on() -> None:
    view = view_for(from_chat())
    raw = message_events(text_block("Salt", "y"))
    at = raw.index(b"event: content_block_stop")
    passed = view.feed(raw[:at] + b'event: content_block_delta\ndata: {"type":\n\n' + raw[at:])
    assert b"Salt" in passed
    assert view.failure is not None
    assert view.failure.kind is FailureKind.MALFORMED
    assert (view.is_closed, view.suppressed, view.trailing_bytes()) == (True, b"", b"")


def test_invalid_call_is_found_at_the_end() -> None:
    view = view_for(from_messages())
    view.feed(chat_events(call_delta(0, "{", "call_1", "f"), delta("tool_calls"), done=False))
    assert failures(view) == []
    assert view.trailing_bytes() == b""
    assert failures(view) == [FailureKind.BAD_SAMPLE]  # the next sample may be good, and the server is not at fault


def failures(view: TranslatingStreamDecoder) -> list[FailureKind]:
    return [view.failure.kind] if view.failure is not None else []


def test_done_before_its_time_closes_the_view() -> None:
    view = view_for(from_messages())
    view.feed(chat_events(delta(content="Salt")))
    assert view.is_closed
    assert not view.has_ended


@pytest.mark.parametrize("size", [100, 1 << 20, 3 << 20])
def test_event_of_any_size_is_translated_whole(size: int) -> None:
    raw = message_events(text_block("x" * size))
    view = view_for(from_chat())
    pieces = [view.feed(raw[at : at + 65_536]) for at in range(0, len(raw), 65_536)]
    assert all(piece == b"" or piece.endswith(b"\n\n") for piece in pieces)
    assert (b"x" * size) in b"".join(pieces)
    assert view.has_ended


def test_thinking_that_is_hidden_keeps_the_connection_alive() -> None:
    thought: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": "", "pieces": ["a", "b"]}
    passed = view_for(from_chat()).feed(message_events(thought, text_block("Salt")))
    assert passed.count(b": keep-alive\n\n") == 2
    passed = view_for(from_messages()).feed(chat_events(delta(reasoning_content="a"), delta(content="Salt")))
    assert passed.count(b"event: ping") == 1
