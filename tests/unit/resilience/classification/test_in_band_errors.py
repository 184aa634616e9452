from __future__ import annotations

import json

import pytest

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.in_band_errors import error_in, error_in_answer, error_in_events

TEXT = 'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}'
END = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
DONE = "data: [DONE]"
CUT = "<EOF>"


# successes


@pytest.mark.parametrize(
    "value",
    [
        {"id": "r", "object": "response", "error": None, "output": []},
        {"choices": [{"message": {"content": '{"error": {"type": "overloaded_error"}}'}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 1}},
        {"choices": [{"finish_reason": "length"}]},
        {"choices": [{"delta": {"content": "x"}, "error": None}]},
        {"type": "message", "content": [{"type": "text", "text": "error"}], "stop_reason": "end_turn"},
        {"type": "message_delta", "delta": {"stop_reason": "pause_turn"}},
        {"type": "ping"},
        {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "max_output_tokens"}}},
        {"type": "response.created", "response": {"error": None}},
        {"object": "list", "data": [{"embedding": [0.1]}]},
        {"candidates": [{"finishReason": "STOP"}]},
        {"base_resp": {"status_code": 0, "status_msg": "success"}, "choices": [{}]},
        {"message": {"role": "assistant", "content": "an error"}, "done": True},
        {"code": 200, "message": "ok", "data": {}},
        {"code": 0, "msg": "success"},
        {"code": 1, "message": "done", "data": {"embedding": [0.1]}},
        [], {}, 1, "error", None,
    ],
)  # fmt: skip
def test_text_that_only_resembles_an_error_is_none(value: object) -> None:
    assert error_in(value) is None
    if isinstance(value, dict):
        assert error_in_answer(json.dumps(value), 200) is None


@pytest.mark.parametrize(
    "events",
    [
        [TEXT, END, DONE],
        [TEXT, END, CUT],
        [": keep-alive", TEXT, END],
        ['data: {"choices":[],"prompt_filter_results":[]}', TEXT, END, DONE],
        [TEXT, END, 'data: {"choices":[],"usage":{"total_tokens":4}}', DONE],
        ['event: ping\ndata: {"type":"ping"}', 'event: message_stop\ndata: {"type":"message_stop"}', CUT],
        ['{"message":{"content":"x"},"done":false}', '{"done":true}', CUT],
        ['data: {"candidates":[{"finishReason":"STOP"}]}', CUT],
        ['event: message-end\ndata: {"type":"message-end","delta":{"finish_reason":"COMPLETE"}}', CUT],
        [':message-type=event :event-type=messageStop {"stopReason":"end_turn"}'],
        ["id: 4", "retry: 1000", TEXT, END],
    ],
)
def test_healthy_stream_has_no_error(events: list[str]) -> None:
    assert error_in_events(events) is None


# errors


@pytest.mark.parametrize(
    "value",
    [
        {"error": {"message": "x"}},
        {"error": "x"},
        {"type": "error", "error": {"type": "overloaded_error"}},
        {"type": "error", "code": "rate_limit_exceeded", "message": "x"},
        {"object": "error", "message": "x"},
        {"type": "response.failed", "response": {"error": {"code": "server_error"}}},
        {"choices": [], "error": {"code": 502}},
        {"choices": [{"error": {"code": 502, "message": "x"}}]},
        {"base_resp": {"status_code": 1002, "status_msg": "x"}},
        {"code": 30011, "message": "x", "data": None},
        {"code": "The service is currently unavailable", "message": "x"},
        [{"error": {"message": "x"}}],
    ],
)
def test_error_is_seen_in_every_dialect(value: object) -> None:
    found = error_in(value)
    assert found is not None
    assert found.payload is not None
    assert error_in_events([TEXT, f"data: {json.dumps(value)}", DONE]) is not None


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"choices": [{"finish_reason": "content_filter"}]}, Kind.CONTENT_POLICY),
        ({"choices": [{"finish_reason": "insufficient_system_resource"}]}, Kind.OVERLOADED),
        ({"choices": [{"finish_reason": "error"}]}, Kind.SERVER_ERROR),
        ({"choices": [{"finish_reason": "abort"}]}, Kind.SERVER_ERROR),
        ({"candidates": [{"finishReason": "SAFETY"}]}, Kind.CONTENT_POLICY),
        ({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]}, Kind.BAD_SAMPLE),
        ({"promptFeedback": {"blockReason": "SAFETY"}}, Kind.CONTENT_POLICY),
        ({"delta": {"stop_reason": "model_context_window_exceeded"}}, Kind.CONTEXT_LENGTH),
        ({"stop_reason": "refusal"}, Kind.CONTENT_POLICY),
        ({"stopReason": "guardrail_intervened"}, Kind.CONTENT_POLICY),
        ({"type": "message-end", "delta": {"finish_reason": "ERROR"}}, Kind.SERVER_ERROR),
        (
            {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "content_filter"}}},
            Kind.CONTENT_POLICY,
        ),
    ],
)
def test_reason_to_stop_that_is_no_end_has_a_kind(value: dict[str, object], kind: Kind) -> None:
    found = error_in(value)
    assert found is not None
    assert found.kind is kind


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([TEXT, CUT], Kind.TRUNCATED),
        (['{"message":{"content":"x"},"done":false}', CUT], Kind.TRUNCATED),
        ([CUT], Kind.TRUNCATED),
        ([], Kind.MALFORMED),
        ([": PROCESSING", ": PROCESSING", CUT], Kind.TIMEOUT),
    ],
)
def test_end_of_a_stream_shows_what_was_wrong(events: list[str], kind: Kind) -> None:
    found = error_in_events(events)
    assert found is not None
    assert found.kind is kind


@pytest.mark.parametrize(
    "event",
    [
        'event: error\ndata: {"message": "x"}',
        "event: error\ndata: boom",
        'error: {"message": "x"}',
        "upstream connect error",
        '{"error": "boom"}',
        'data:{"error":"x","error_type":"overloaded"}',
        ':message-type=exception :exception-type=throttlingException {"message":"slow"}',
        "<RemoteProtocolError: peer closed connection>",
    ],
)
def test_error_is_seen_however_an_event_is_framed(event: str) -> None:
    assert error_in_events([TEXT, event]) is not None


def test_stream_without_text_means_a_window_too_small_for_one_engine_alone() -> None:
    silent = [
        'data: {"choices":[{"delta":{"role":"assistant"},"finish_reason":null}]}',
        'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"completion_tokens":0}}',
    ]
    found = error_in_events(silent, family="lmstudio")
    assert found is not None
    assert found.kind is Kind.DEPLOYMENT_CONTEXT
    assert error_in_events(silent) is None
    assert error_in_events([TEXT, *silent], family="lmstudio") is None


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("", Kind.MALFORMED), ("\n\n\n", Kind.TIMEOUT), ("<html></html>", Kind.MALFORMED),
        ('{"choices": [{"mess', Kind.TRUNCATED),
    ],
)  # fmt: skip
def test_success_that_is_none_has_a_kind(body: str, kind: Kind) -> None:
    found = error_in_answer(body, 200)
    assert found is not None
    assert found.kind is kind


def test_no_content_is_no_error() -> None:
    assert error_in_answer(b"", 204) is None


def test_stream_may_arrive_whole() -> None:
    assert error_in_answer(f"{TEXT}\n\n{END}\n\n{DONE}\n\n", 200) is None
    assert error_in_answer(f'{TEXT}\n\ndata: {{"error": "x"}}\n\n{DONE}\n\n', 200) is not None
