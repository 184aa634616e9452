"""A translated stream that died is continued by another one, in the client's dialect."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from llm_guard.dialects import DIALECTS
from llm_guard.dialects.resume.text_join import anchor
from llm_guard.dialects.translation.endpoints import MESSAGES, TranslatedRequest
from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy.call import Attempt, Delivered, Opened
from llm_guard.proxy.streams.decoder import view_of
from llm_guard.proxy.streams.resume import TranscriptResumer
from llm_guard.proxy.translation.decoder import TranslatingStreamDecoder
from tests.fakes.clock import ManualClock
from tests.unit.dialects.translation.conversions import (
    chat_events,
    delta,
    from_chat,
    from_messages,
    message_events,
    messages_fold,
    text_block,
)
from tests.unit.proxy.translation.test_call import SAID, call_with, targets
from tests.unit.proxy.translation.test_decoder import ERROR

DEAD = Failure(FailureKind.TRUNCATED, "cut")


def translated(request: TranslatedRequest) -> TranslatingStreamDecoder:
    endpoint = request.endpoint
    client: Any = "openai" if endpoint is MESSAGES else "anthropic"
    reader = DIALECTS[endpoint.dialect].stream_reader(endpoint.path, 1)
    translator = request.stream(1, shows_reasoning=False)
    return TranslatingStreamDecoder(view_of(reader, ""), translator, client, "lg-1")


def served(view: TranslatingStreamDecoder, mode: Any = None) -> Delivered:
    _, anthropic, _ = targets()
    attempt = Attempt(anthropic, 0.0)
    attempt.resume_mode = mode
    opened = Opened(200, "", (), b"", cast("Any", object()), view)
    return Delivered(opened, attempt, cast("Any", None))


def resumer(dialect: Any) -> TranscriptResumer:
    path = DIALECTS[cast("Any", dialect)].DEFAULT_PATH
    body = {"messages": SAID, "model": "m", **({"max_tokens": 99} if dialect == "anthropic" else {})}
    call = call_with(body, dialect=dialect, path=path)
    transcript = DIALECTS[cast("Any", dialect)].transcript(path)
    assert transcript is not None
    return TranscriptResumer(call, "continue", transcript, ManualClock())


def view_in(one: Delivered) -> Any:
    return one.opened.view


def test_error_of_a_translated_stream_is_held_for_the_next() -> None:
    recovery, first = resumer("openai"), served(translated(from_chat()))
    assert recovery.adopt(first)
    raw = message_events(text_block("Once ", "upon"))
    at = raw.index(b"event: content_block_stop")
    passed = view_in(first).feed(raw[:at] + ERROR)
    assert b"Overloaded" not in passed
    assert b"Overloaded" in view_in(first).suppressed
    assert recovery.may_go_on(first, Failure(FailureKind.OVERLOADED, "overloaded")) is False  # the call has no route


@pytest.mark.parametrize("mode", ["prefill", "instruction"])
def test_text_goes_on_in_the_same_message_and_ends_once(mode: Any) -> None:
    recovery, first = resumer("anthropic"), served(translated(from_messages()))
    assert recovery.adopt(first)
    told = view_in(first).feed(chat_events(delta(content="Once "), delta(content="upon a time "), done=False))
    _, anthropic, _ = targets()
    assert recovery.resume_mode(anthropic) is not None
    request = json.loads(recovery.body(anthropic, mode))
    assert request["messages"][1]["role"] == "assistant"
    second = served(translated(from_messages()), mode)
    assert recovery.adopt(second)
    again = "" if mode == "prefill" else f"{anchor('Once upon a time ')} "
    raw = chat_events(delta(content=f"{again}there was"), delta(content=" a fox"), delta("stop"), done=False)
    told += view_in(second).feed(raw)
    assert b"message_stop" not in told  # usage may still come
    assert not view_in(second).has_ended
    assert view_in(second).failure is None
    told += view_in(second).trailing_bytes()
    assert view_in(second).failure is None
    found = messages_fold(told)
    assert [block.text for block in found.content] == ["Once upon a time there was a fox"]  # type: ignore[union-attr]
    assert found.stop_reason == "end_turn"
