"""Provider errors that match no known phrase: classified by subject, and by shapes that outweigh their wording."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.classify import Classification, Evidence, classify, classify_answer
from llm_guard.resilience.classification.error_body import Layer
from llm_guard.resilience.classification.phrase_match import words_of
from llm_guard.resilience.classification.rules import RuleBook, about, said
from llm_guard.resilience.classification.topic_match import MAX_WORDS, sense, wordings
from llm_guard.resilience.classification.unsatisfiable_limit import is_over_limit

WALL = 1_800_000_000.0


def verdict(status: int, body: Any, headers: dict[str, str] | None = None) -> Classification:
    text = body if isinstance(body, str) else json.dumps(body)
    return classify_answer(status, headers or {}, text.encode(), WALL)


def worded(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


# words in any order


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "The conversation holds more tokens than the window of this engine can fit", Kind.CONTEXT_LENGTH),
        (403, "The wallet of tenant 7 is empty", Kind.QUOTA_EXHAUSTED),
        (429, "All of this week's calls have been consumed: weekly allowance", Kind.QUOTA_EXHAUSTED),
        (401, "This bearer credential was revoked", Kind.AUTH),
        (400, "Your workspace was suspended last night", Kind.PERMISSION),
        (404, "Deployment blue-7 has been retired", Kind.MODEL_NOT_FOUND),
        (400, "Moderation has flagged this prompt", Kind.CONTENT_POLICY),
        (503, "No free worker: the backlog is at its maximum", Kind.OVERLOADED),
        (429, "We are out of GPUs, capacity is exhausted", Kind.OVERLOADED),
        (503, "Replica 3 is still warming, come back soon", Kind.MODEL_LOADING),
        (500, "Not enough VRAM left for this batch", Kind.GPU_OOM),
        (502, "The tunnel to the origin was reset", Kind.NETWORK),
        (500, "Waiting for the backend: deadline passed", Kind.TIMEOUT),
    ],
)
def test_sentence_without_a_known_phrase_is_read_by_its_topic(status: int, message: str, kind: Kind) -> None:
    assert verdict(status, worded(message)).kind is kind


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    "message",
    [
        "The server is overloaded or not ready yet.",
        "The model is temporarily unavailable",
        "Temporarily unavailable",
        "Our system sees high traffic and cannot process your request now",
        "The server is busy",
        "All slots are busy",
        "No available slots.",
        "The queue is full",
        "Service unavailable",
        "Internal server error",
        "Bad gateway",
        "The engine is shutting down",
    ],
)
def test_claim_about_the_server_is_believed_under_a_bad_request(status: int, message: str) -> None:
    found = verdict(status, worded(message, type="invalid_request_error"))
    assert (found.is_retriable, found.counts_against_breaker, found.kind.can_fall_back) == (True, True, True)


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Too many requests", Kind.RATE_LIMIT),
        ("Too many concurrent requests, slow down", Kind.RATE_LIMIT),
        ("Rate limit exceeded", Kind.RATE_LIMIT),
        ("The server is starting up", Kind.MODEL_LOADING),
        ("Backend is not ready", Kind.MODEL_LOADING),
        ("Too many requests in this batch file", Kind.INVALID_REQUEST),
    ],
)
def test_limit_and_start_of_a_server_are_believed_under_a_bad_request(status: int, message: str, kind: Kind) -> None:
    assert verdict(status, worded(message, type="invalid_request_error")).kind is kind


@pytest.mark.parametrize(
    "message",
    [
        "The tool server_status says: the server is busy",
        "Slots 3 and 4 have the value full, which is not allowed",
        "Rate must be below 2, the limit exceeded is 3",
        "The service name is unavailable, choose another one",
        "messages.2.content: the server is overloaded, try again later",
        "Invalid value: the system is overloaded or not ready yet.",
        "content[0].text says the model is temporarily unavailable",
        "Unknown field queue_is_full, try again without it",
        "In line 3 you say: the server is overloaded, try again later",
    ],
)
def test_text_of_a_caller_in_a_bad_request_is_an_echo(message: str) -> None:
    assert verdict(400, worded(message)).kind is Kind.INVALID_REQUEST


def test_codeword_that_no_table_has_is_read_word_by_word() -> None:
    assert verdict(503, {"error": {"code": "POOL_CAPACITY_EXHAUSTED", "message": "no"}}).kind is Kind.OVERLOADED
    assert verdict(400, {"error": {"type": "promptContextTooLong", "message": "no"}}).kind is Kind.CONTEXT_LENGTH
    assert verdict(400, worded("retired_model_unavailable_model")).kind is Kind.MODEL_NOT_FOUND


def test_phrase_outweighs_a_sense_and_a_sense_a_word_that_repeats_the_status() -> None:
    rules = (*said(Kind.TIMEOUT, "took too long"), *about(Kind.OVERLOADED, "queue", "full"))
    layer = Layer(message="took too long: the queue is full")
    found = RuleBook(rules).find([(layer, words_of(layer.message))], 503, "")
    assert found is not None
    assert found.kind is Kind.TIMEOUT
    assert verdict(429, worded("Too many requests: no capacity left in this pool")).kind is Kind.OVERLOADED


def test_only_the_beginning_of_a_sentence_has_a_sense() -> None:
    late = "x " * MAX_WORDS + "queue full"
    (wording,) = wordings(words_of(late), ())
    assert not sense(["queue", "full"]).holds(wording)
    (wording,) = wordings(words_of("full queue"), ())
    assert sense(["queue", "full"]).holds(wording)
    assert not sense(["queue", "full"], absent="full queue").holds(wording)
    assert not sense(["queue"], subject="server").holds(wording)


# shapes


def k8s(code: int, reason: str, message: str, **details: Any) -> dict[str, Any]:
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "details": details, "code": code,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (k8s(503, "ServiceUnavailable", 'no endpoints available for service "llm"'), Kind.NETWORK),
        (k8s(404, "NotFound", 'services "llm" not found'), Kind.WRONG_PATH),
        (k8s(403, "Forbidden", 'services "llm" is forbidden'), Kind.PERMISSION),
        (k8s(504, "Timeout", "request did not complete"), Kind.TIMEOUT),
    ],
)
def test_status_object_of_kubernetes_means_its_reason(body: dict[str, Any], kind: Kind) -> None:
    assert verdict(body["code"], body).kind is kind


@pytest.mark.parametrize(
    ("field", "value", "seconds"),
    [
        ("retryAfterSeconds", 7, 7.0), ("retry_after_ms", 1500, 1.5), ("retryAfterMs", 1500, 1.5),
        ("resets_in_seconds", 90, 90.0), ("retry_in", "12s", 12.0), ("try_again_in", 3, 3.0),
        ("cooldown_seconds", 20, 20.0), ("attempts", 9, None), ("wait", 9, None),
    ],
)  # fmt: skip
def test_field_with_a_wait_is_recognized_by_its_name(field: str, value: object, seconds: float | None) -> None:
    assert verdict(429, {"error": {"message": "slow down", field: value}}).retry_after_s == seconds


def test_request_that_is_larger_than_the_whole_limit_is_not_retried() -> None:
    large = worded("Tokens per minute (TPM): Limit 8000, Requested 10,276, please send less")
    assert (verdict(429, large).kind, verdict(413, large).kind) == (Kind.OVER_LIMIT, Kind.DEPLOYMENT_PAYLOAD)
    small = worded("Tokens per minute (TPM): Limit 8000, Used 7900, Requested 276. Please try again in 1s")
    assert verdict(429, small).kind is Kind.RATE_LIMIT


@pytest.mark.parametrize(
    ("sentence", "is_over"),
    [
        ("Limit 10, Requested 11", True), ("requested 1_100 tokens, the limit is 1,000", True),
        ("Limit 10, Requested 10", False), ("Rate limit reached for gpt-5, requested 27", False),
        ("Limit 10", False), ("", False), ("limit 0, requested 5", False),
    ],
)  # fmt: skip
def test_two_numbers_show_whether_a_wait_can_help(sentence: str, is_over: bool) -> None:
    assert is_over_limit(sentence) is is_over


def test_status_before_a_quoted_answer_counts() -> None:
    quoted = json.dumps({"error": {"message": "odd", "type": "odd"}})
    long = f"failed to invoke the model {'x' * 150}: request failed with status 400: {quoted}"
    assert verdict(500, {"message": f"Error: {long}"}).kind is Kind.INVALID_REQUEST
    limited = 'Provider API error: 429 - {"detail": "Slow.", "retry_after": 10}'
    found = verdict(400, {"error": limited})
    assert (found.kind, found.retry_after_s, found.counts_against_breaker) == (Kind.RATE_LIMIT, 10.0, False)
    assert verdict(400, {"error": 'Provider API error: 503 - {"detail": "down"}'}).kind is Kind.INVALID_REQUEST


def test_payment_that_is_due_for_seconds_is_a_rate_limit() -> None:
    reserved = worded("requires more credits")
    assert verdict(402, reserved, {"retry-after": "5"}).kind is Kind.RATE_LIMIT
    assert verdict(402, reserved).kind is verdict(402, reserved, {"retry-after": "900"}).kind is Kind.QUOTA_EXHAUSTED


def test_page_under_a_bad_request_is_a_proxys() -> None:
    assert verdict(400, "<html><title>400 Bad Request</title></html>").kind is Kind.MISROUTED


def test_stream_without_content_of_any_engine_is_an_overflow_of_its_window() -> None:
    events = [
        'data: {"choices":[{"delta":{"role":"assistant"},"finish_reason":null}]}',
        'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"completion_tokens":0}}',
        "data: [DONE]",
    ]
    found = classify(Evidence(200, events=events, family="local"), WALL)
    assert found is not None
    assert found.kind is Kind.DEPLOYMENT_CONTEXT
    assert classify(Evidence(200, events=events, family="openai"), WALL) is None
