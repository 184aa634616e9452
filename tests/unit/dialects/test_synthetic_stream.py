"""Whole responses written as streams: the cases that the SDK tests in e2e/test_unary_for_stream.py do not cover."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.dialects.sse import events_in
from llm_guard.dialects.synthetic_stream import stream_of

CHAT = "/v1/chat/completions"


def bodies(path: str, answer: dict[str, Any], *, is_usage_wanted: bool = False) -> list[dict[str, Any]]:
    stream = stream_of(path, answer, is_usage_wanted=is_usage_wanted)
    assert stream is not None
    return [json.loads(event.data) for event in events_in(stream) if event.data != b"[DONE]"]


def test_choices_without_an_index_are_counted() -> None:
    message = {"role": "assistant", "content": "hi"}
    answer = {"choices": [{"message": message, "finish_reason": "stop"}] * 2}
    assert [body["choices"][0]["index"] for body in bodies(CHAT, answer)] == [0, 1] * 3
    texts = {"choices": [{"text": "a"}, {"text": "b"}]}
    assert [body["choices"][0]["index"] for body in bodies("/v1/completions", texts)] == [0, 1]


def test_unknown_members_are_preserved() -> None:
    message = {"content": "hi", "reasoning_details": [{"type": "x"}], "refusal": None}
    answer = {"x_groq": {"id": "r"}, "choices": [{"message": message, "finish_reason": "stop", "content_filter": {}}]}
    _, said, end = bodies(CHAT, answer)
    assert said["x_groq"] == end["x_groq"] == {"id": "r"}
    assert said["choices"][0]["delta"] == {"content": "hi", "reasoning_details": [{"type": "x"}]}
    assert said["choices"][0]["content_filter"] == {}


def test_response_without_a_status_is_completed() -> None:
    assert bodies("/v1/responses", {"id": "r", "output": []})[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v1/embeddings", {"data": []}),
        (CHAT, {"choices": [{"message": {"content": "hi", "score": float("nan")}}]}),
        (CHAT, {"choices": [{"message": {"tool_calls": "odd"}}]}),
        (CHAT, {"choices": [None]}),
        ("/v1/complete", {"completion": " hi", "stop_reason": None}),
        ("/v1/responses", {"status": "failed", "output": []}),
        ("/v1/messages", {"content": [{"type": "text", "text": 5}]}),
        ("/v1/messages", {"content": [{"type": "text", "text": "x", "citations": 5}]}),
    ],
)
def test_unwritable_response_is_refused(path: str, answer: dict[str, Any]) -> None:
    assert stream_of(path, answer, is_usage_wanted=True) is None
