from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.outcome import FailureKind as Kind
from llm_guard.policy.classify import MAX_BODY_BYTES, classify_answer, classify_event, retry_after

WALL = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT


def body(code: object = None, kind: object = None, message: str = "it failed") -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "code": code}}).encode()


def kind_of(status: int, said: bytes = b"") -> Kind:
    return classify_answer(status, {}, said, WALL).kind


# status


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Kind.INVALID_REQUEST),
        (401, Kind.AUTH),
        (402, Kind.QUOTA_EXHAUSTED),
        (403, Kind.PERMISSION),
        (404, Kind.NOT_FOUND),
        (408, Kind.TIMEOUT),
        (409, Kind.CONFLICT),
        (413, Kind.PAYLOAD_TOO_LARGE),
        (422, Kind.INVALID_REQUEST),
        (429, Kind.RATE_LIMIT),
        (500, Kind.SERVER_ERROR),
        (502, Kind.SERVER_ERROR),
        (503, Kind.OVERLOADED),
        (504, Kind.TIMEOUT),
        (524, Kind.TIMEOUT),
        (529, Kind.OVERLOADED),
        (599, Kind.SERVER_ERROR),
    ],
)
@pytest.mark.parametrize(
    "said", [b"", b"<html>bad gateway</html>", b"[]", b'"x"', b'{"error": null}', b'{"detail": 1}']
)
def test_status_alone_has_a_meaning(status: int, kind: Kind, said: bytes) -> None:
    assert kind_of(status, said) is kind


def test_server_error_is_worth_a_retry_and_a_bad_request_is_not() -> None:
    assert all(kind_of(status).is_retriable for status in range(500, 600))
    assert not any(kind_of(status).is_retriable for status in (400, 401, 402, 403, 404, 405, 413, 415, 422))


# code and type


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (429, body("insufficient_quota", "insufficient_quota"), Kind.QUOTA_EXHAUSTED),
        (429, body(None, "insufficient_quota"), Kind.QUOTA_EXHAUSTED),
        (429, body("rate_limit_exceeded", "requests"), Kind.RATE_LIMIT),
        (429, body(None, "rate_limit_error"), Kind.RATE_LIMIT),
        (404, body("model_not_found", "invalid_request_error"), Kind.MODEL_NOT_FOUND),
        (404, body("DeploymentNotFound"), Kind.MODEL_NOT_FOUND),
        (404, body(None, "not_found_error"), Kind.NOT_FOUND),
        (400, body("context_length_exceeded", "invalid_request_error"), Kind.CONTEXT_LENGTH),
        (400, body("content_filter"), Kind.CONTENT_POLICY),
        (401, body("invalid_api_key", "invalid_request_error"), Kind.AUTH),
        (529, body(None, "overloaded_error"), Kind.OVERLOADED),
        (500, body(None, "api_error"), Kind.SERVER_ERROR),
        (413, body(None, "request_too_large"), Kind.PAYLOAD_TOO_LARGE),
        (403, body(None, "permission_error"), Kind.PERMISSION),
        (401, body(None, "authentication_error"), Kind.AUTH),
    ],
)
def test_what_a_provider_says_itself_has_a_meaning(status: int, said: bytes, kind: Kind) -> None:
    assert kind_of(status, said) is kind


def test_code_outweighs_type_and_type_outweighs_status() -> None:
    assert kind_of(500, body("context_length_exceeded", "api_error")) is Kind.CONTEXT_LENGTH
    assert kind_of(500, body("what_is_this", "overloaded_error")) is Kind.OVERLOADED
    assert kind_of(429, body("what_is_this", "what_is_this")) is Kind.RATE_LIMIT


@pytest.mark.parametrize("odd", [429, 4.5, True, [], {}, ["insufficient_quota"], None])
def test_code_and_type_of_another_type_are_not_evidence(odd: object) -> None:
    assert kind_of(400, body(odd, odd)) is Kind.INVALID_REQUEST


def test_words_of_a_message_are_not_evidence() -> None:
    said = body(None, "invalid_request_error", "timeout 429 insufficient_quota overloaded_error")
    assert kind_of(400, said) is Kind.INVALID_REQUEST


def test_verdict_says_what_decided() -> None:
    assert classify_answer(429, {}, body("insufficient_quota"), WALL).why == "code insufficient_quota"
    assert classify_answer(500, {}, body(None, "api_error"), WALL).why == "type api_error"
    verdict = classify_answer(418, {}, b"", WALL)
    assert (verdict.why, verdict.status) == ("status 418", 418)


def test_body_beyond_all_bounds_is_not_read() -> None:
    assert kind_of(503, b'{"error": {"message": "' + b"x" * MAX_BODY_BYTES * 100) is Kind.OVERLOADED
    assert kind_of(503, b"[" * 100_000) is Kind.OVERLOADED


# events


def event(value: dict[str, Any]) -> tuple[Kind, int]:
    verdict = classify_event(json.dumps(value).encode())
    assert verdict.retry_after_s is None
    return verdict.kind, verdict.status


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"type": "error", "error": {"type": "overloaded_error"}}, (Kind.OVERLOADED, 503)),
        ({"error": {"message": "boom", "code": 429}}, (Kind.RATE_LIMIT, 429)),
        ({"error": {"message": "boom", "type": "invalid_request_error"}}, (Kind.INVALID_REQUEST, 400)),
        ({"type": "response.failed", "response": {"error": {"code": "server_error"}}}, (Kind.SERVER_ERROR, 500)),
        ({"type": "error", "code": "rate_limit_exceeded"}, (Kind.RATE_LIMIT, 429)),
        ({"message": "boom"}, (Kind.SERVER_ERROR, 500)),
        ({"error": "boom"}, (Kind.SERVER_ERROR, 500)),
    ],
)
def test_error_event_means_what_its_answer_would_have_meant(said: dict[str, Any], meant: tuple[Kind, int]) -> None:
    assert event(said) == meant


@pytest.mark.parametrize("data", [b"", b"boom", b"[]", b"\xff", b"[" * 100_000])
def test_unreadable_error_event_is_a_server_error(data: bytes) -> None:
    assert classify_event(data).kind is Kind.SERVER_ERROR


# retry-after

THEN = "Fri, 15 Jan 2027 08:00:30 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": THEN}, 30.0),
        ({"retry-after": "Friday, 15-Jan-27 08:00:30 GMT"}, 30.0),
        ({"retry-after": "1800000045"}, 45.0),
        ({"retry-after": "1800000045500"}, 45.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"x-ms-retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
    ],
)
def test_hint_is_read_in_every_form_that_providers_send(headers: dict[str, str], seconds: float) -> None:
    assert retry_after(headers, WALL) == pytest.approx(seconds)
    assert classify_answer(429, headers, b"", WALL).retry_after_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    [
        "", "soon", "-1", "0", "nan", "inf", "-inf", "1e999", "7 seconds", "Fri, 15 Jan 2027 07:59:59 GMT",
        "Fri, 99 Jan 2027 08:00:30 GMT", "Fri, 15 Jan 99999 08:00:30 GMT", "1700000000",
    ],
)  # fmt: skip
def test_nonsense_and_the_past_are_no_hint(value: str) -> None:
    assert retry_after({"retry-after": value}, WALL) is None


@pytest.mark.parametrize("value", ["", "soon", "-1", "0", "nan", "inf"])
def test_nonsense_in_milliseconds_is_no_hint(value: str) -> None:
    assert retry_after({"retry-after-ms": value}, WALL) is None


def test_no_header_is_no_hint() -> None:
    assert retry_after({"date": THEN}, WALL) is None


def test_date_is_measured_against_the_clock_of_whoever_wrote_it() -> None:
    wrote = {"retry-after": THEN, "date": "Fri, 15 Jan 2027 08:00:20 GMT"}
    assert retry_after(wrote, WALL - 3600) == 10.0
    assert retry_after({**wrote, "date": "today"}, WALL) == 30.0
