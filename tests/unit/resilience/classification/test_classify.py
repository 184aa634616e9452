from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.classify import (
    MAX_BODY_BYTES,
    Evidence,
    classify,
    classify_answer,
    classify_event,
    retry_after,
)
from llm_guard.resilience.classification.rules import user_rule

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
        (503, Kind.SERVER_ERROR),
        (504, Kind.TIMEOUT),
        (522, Kind.CONNECT_TIMEOUT),
        (524, Kind.TIMEOUT),
        (526, Kind.CERTIFICATE),
        (529, Kind.OVERLOADED),
        (555, Kind.SERVER_ERROR),
    ],
)
@pytest.mark.parametrize("said", [b'"x"', b'{"error": null}', b'{"detail": 1}', b'{"error": {"message": "hm"}}'])
def test_status_alone_has_a_meaning(status: int, kind: Kind, said: bytes) -> None:
    assert kind_of(status, said) is kind


def test_server_error_is_worth_a_retry_and_a_bad_request_is_not() -> None:
    final = {501, 505, 511, 526, 561}
    assert {status for status in range(500, 600) if not kind_of(status).is_retriable} == final


def test_edge_and_provider_give_the_same_status_different_meanings() -> None:
    page = b"<html><head><title>Not what you think</title></head></html>"
    assert kind_of(404, page) is kind_of(404, b"404 page not found") is kind_of(404, b'{"detail":"Not Found"}')
    assert kind_of(404, page) is Kind.WRONG_PATH
    assert kind_of(502, page) is kind_of(503, page) is kind_of(520, page) is Kind.EDGE_ERROR
    assert kind_of(413, page) is Kind.DEPLOYMENT_PAYLOAD
    assert classify_answer(413, {}, page, WALL, "anthropic").kind is Kind.PAYLOAD_TOO_LARGE
    assert classify_answer(503, {"server": "nginx/1.25"}, page, WALL).kind is Kind.OVERLOADED


def test_server_error_is_final_where_waiting_cannot_help() -> None:
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
def test_error_of_a_provider_itself_is_classified(status: int, said: bytes, kind: Kind) -> None:
    assert kind_of(status, said) is kind


def test_code_outweighs_type_and_type_outweighs_status() -> None:
    assert kind_of(500, body("context_length_exceeded", "api_error")) is Kind.CONTEXT_LENGTH
    assert kind_of(400, body(None, "invalid_request_error", "Your credit balance is too low")) is Kind.QUOTA_EXHAUSTED
    assert kind_of(429, body("rate_limit_exceeded", "tokens", "You have no credits remaining")) is Kind.QUOTA_EXHAUSTED
    assert kind_of(500, body("what_is_this", "overloaded_error")) is Kind.OVERLOADED
    assert kind_of(429, body("what_is_this", "what_is_this")) is Kind.RATE_LIMIT


@pytest.mark.parametrize("odd", [429, 4.5, True, [], {}, ["insufficient_quota"], None])
def test_code_and_type_of_another_type_are_not_evidence(odd: object) -> None:
    assert kind_of(400, body(odd, odd)) is Kind.INVALID_REQUEST


def test_bare_words_and_numbers_of_a_sentence_are_not_evidence() -> None:
    said = body(None, "invalid_request_error", "timeout 429 insufficient_quota overloaded_error")
    assert kind_of(400, said) is Kind.INVALID_REQUEST
    assert kind_of(500, body(None, None, "model overloaded-429-timeout is odd")) is Kind.SERVER_ERROR


def test_sentence_under_a_status_that_contradicts_it_is_an_echo() -> None:
    said = body(
        None, "invalid_request_error", "content: rate limit reached, the server is overloaded, request timed out"
    )
    assert kind_of(400, said) is Kind.INVALID_REQUEST


def test_quotation_in_a_bad_request_is_an_echo() -> None:
    said = body(None, "invalid_request_error", "Invalid value: 'the prompt is too long'. Supported values are: 'a'.")
    assert kind_of(400, said) is Kind.INVALID_REQUEST
    assert kind_of(400, body(None, None, "the prompt is too long")) is Kind.CONTEXT_LENGTH


def test_verdict_states_what_decided() -> None:
    assert classify_answer(429, {}, body("insufficient_quota"), WALL).why == "code insufficientquota"
    assert (
        classify_answer(400, {}, body(None, None, "prompt is too long"), WALL).why == 'the phrase "prompt is too long"'
    )
    verdict = classify_answer(418, {}, b"", WALL)
    assert (verdict.why, verdict.status) == ("status 418", 418)


def test_body_above_all_limits_is_not_read() -> None:
    assert kind_of(504, b'{"error": {"message": "' + b"x" * MAX_BODY_BYTES * 100) is Kind.TIMEOUT
    assert kind_of(504, b"[" * 100_000) is Kind.TIMEOUT


# precedence of evidence


def test_window_of_a_day_that_rolls_is_a_rate_limit_when_the_wait_is_short() -> None:
    day = "Rate limit reached for gpt-4o on requests per day (RPD): Limit 10000, Used 10000. Please try again in {}."
    soon = classify_answer(429, {}, body("rate_limit_exceeded", "requests", day.format("8.64s")), WALL, "openai")
    late = classify_answer(429, {}, body("rate_limit_exceeded", "requests", day.format("7m12s")), WALL, "openai")
    groq = classify_answer(429, {}, body("rate_limit_exceeded", "requests", day.format("8.64s")), WALL, "groq")
    assert [verdict.kind for verdict in (soon, late, groq)] == [
        Kind.RATE_LIMIT, Kind.WINDOW_EXHAUSTED, Kind.WINDOW_EXHAUSTED,
    ]  # fmt: skip


def test_hour_of_waiting_is_no_rate_limit_by_any_name() -> None:
    assert (
        classify_answer(429, {"retry-after": "86400"}, body("rate_limit_exceeded"), WALL).kind is Kind.WINDOW_EXHAUSTED
    )
    short = classify_answer(429, {"retry-after": "300"}, body("rate_limit_exceeded"), WALL)
    assert short.kind is Kind.RATE_LIMIT
    assert not short.is_retriable


def test_hint_up_to_two_minutes_is_worth_waiting_for() -> None:
    assert classify_answer(429, {"retry-after": "120"}, b"", WALL).is_retriable
    assert not classify_answer(429, {"retry-after": "121"}, b"", WALL).is_retriable


def test_x_should_retry_false_is_final_and_true_outweighs_the_status_alone() -> None:
    final = classify_answer(503, {"x-should-retry": "false"}, b"", WALL)
    assert (final.kind, final.is_retriable, final.counts_against_breaker) == (Kind.SERVER_ERROR, False, True)
    urged = classify_answer(400, {"x-should-retry": "true"}, body(None, None, "hm"), WALL)
    assert (urged.kind, urged.is_retriable, urged.counts_against_breaker) == (Kind.TRANSIENT, True, False)
    billing = classify_answer(429, {"x-should-retry": "true"}, body("insufficient_quota"), WALL)
    assert (billing.kind, billing.is_retriable) == (Kind.QUOTA_EXHAUSTED, False)


def test_status_inside_a_wrapper_is_the_one_that_counts() -> None:
    assert kind_of(500, body("429", None, "Error from provider")) is Kind.RATE_LIMIT
    assert kind_of(424, json.dumps({"message": "x", "originalStatusCode": 400}).encode()) is Kind.INVALID_REQUEST
    assert kind_of(400, body("429", None, "hm")) is Kind.INVALID_REQUEST


def test_context_window_of_a_server_that_people_run_is_a_setting() -> None:
    said = body(None, "BadRequestError", "This model's maximum context length is 4096 tokens.")
    assert classify_answer(400, {}, said, WALL, "openai").kind is Kind.CONTEXT_LENGTH
    assert classify_answer(400, {}, said, WALL, "vllm").kind is Kind.DEPLOYMENT_CONTEXT
    assert classify_answer(400, {}, said, WALL, "local").kind is Kind.DEPLOYMENT_CONTEXT


def test_engine_is_recognized_by_the_shape_of_its_errors() -> None:
    flat = {"object": "error", "message": "maximum context length is 4096", "type": "BadRequestError", "code": 400}
    assert kind_of(400, json.dumps(flat).encode()) is Kind.DEPLOYMENT_CONTEXT


def test_codewords_in_headers_are_evidence() -> None:
    throttled = {"x-amzn-errortype": "ThrottlingException:http://internal.amazon.com/coral/"}
    assert classify_answer(429, throttled, b"{}", WALL).kind is Kind.RATE_LIMIT
    day = b'{"message": "Too many tokens per day, please wait before trying again."}'
    assert classify_answer(429, throttled, day, WALL).kind is Kind.WINDOW_EXHAUSTED
    assert classify_answer(403, {"cf-mitigated": "challenge"}, b"<html>", WALL).kind is Kind.BLOCKED


def test_rule_of_the_config_has_precedence() -> None:
    rules = [
        user_rule(Kind.OVERLOADED, statuses=frozenset({400}), message="*pool is draining*"),
        user_rule(Kind.CONFLICT, code="insufficient_quota"),
    ]
    said = body("insufficient_quota", None, "the worker pool is draining")
    assert classify_answer(400, {}, said, WALL, rules=rules).kind is Kind.OVERLOADED
    assert classify_answer(429, {}, said, WALL, rules=rules).kind is Kind.CONFLICT
    assert classify_answer(429, {}, said, WALL, rules=rules).why == "a rule in upstreams.X.errors"
    assert classify_event(said, WALL, rules=rules).kind is Kind.CONFLICT
    assert kind_of(429, said) is Kind.QUOTA_EXHAUSTED


def test_rule_by_status_alone_needs_no_body() -> None:
    rules = [user_rule(Kind.OVERLOADED, statuses=frozenset({418}))]
    assert classify_answer(418, {}, b"", WALL, rules=rules).kind is Kind.OVERLOADED


def test_no_wait_is_passed_on_where_none_helps() -> None:
    said = body(None, None, "Quota exceeded for metric: x/generate_content, limit: 0. Please retry in 10h17m5s.")
    assert classify_answer(429, {}, said, WALL).retry_after_s is None
    assert classify_answer(401, {"retry-after": "5"}, b"", WALL).retry_after_s is None


# all evidence combined


def test_answer_that_is_well_has_no_verdict() -> None:
    assert classify(Evidence(200, body=b'{"choices": []}'), WALL) is None
    assert classify(Evidence(200, events=["data: [DONE]"]), WALL) is None


@pytest.mark.parametrize(
    ("evidence", "kind"),
    [
        (Evidence(301), Kind.MISROUTED),
        (Evidence(200, body=b'{"error": "rate limited, retry in 20s"}'), Kind.RATE_LIMIT),
        (Evidence(200, events=['data: {"error": {"message": "Overloaded"}}']), Kind.OVERLOADED),
        (Evidence(503, events=[]), Kind.SERVER_ERROR),
        (Evidence(200, events=["<ReadTimeout: timed out>"]), Kind.TIMEOUT),
        (Evidence(network_kind="dns", body="getaddrinfo ENOTFOUND, request canceled"), Kind.NETWORK),
        (Evidence(network_kind="tls", body="certificate has expired"), Kind.CERTIFICATE),
        (Evidence(network_kind="tls", body="EOF occurred in violation of protocol"), Kind.NETWORK),
        (Evidence(network_kind="proxy", body="403 Forbidden"), Kind.PERMISSION),
        (Evidence(network_kind="proxy", body="503 Service Unavailable"), Kind.EGRESS),
        (Evidence(network_kind="protocol", body="Exceeded maximum allowed redirects."), Kind.MISROUTED),
        (Evidence(network_kind="h2_goaway", body=""), Kind.RETIRED),
        (Evidence(network_kind="reset", body="Server disconnected without sending a response."), Kind.RETIRED),
        (Evidence(network_kind="local_resource", body=""), Kind.OWN_RESOURCES),
        (Evidence(network_kind="", body="Connection refused"), Kind.NETWORK),
        (Evidence(network_kind="", body="httpx.ReadTimeout"), Kind.TIMEOUT),
        (Evidence(network_kind="never_heard_of", body="?"), Kind.NETWORK),
    ],
)
def test_kind_of_all_that_can_be_evidence(evidence: Evidence, kind: Kind) -> None:
    verdict = classify(evidence, WALL)
    assert verdict is not None
    assert verdict.kind is kind


# error events in streams


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
        ({"choices": [{"finish_reason": "content_filter"}]}, (Kind.CONTENT_POLICY, 400)),
        ({"error": {"message": "EngineCore encountered an issue.", "code": 400}}, (Kind.SERVER_ERROR, 500)),
        ({"error": "boom"}, (Kind.SERVER_ERROR, 500)),
    ],
)
def test_error_event_means_the_same_as_its_response(said: dict[str, Any], meant: tuple[Kind, int]) -> None:
    assert event(said) == meant


@pytest.mark.parametrize("data", [b"", b"boom", b"[]", b"\xff", b"[" * 100_000])
def test_unreadable_error_event_is_a_server_error(data: bytes) -> None:
    assert classify_event(data).kind is Kind.SERVER_ERROR


# Retry-After

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
        "", "soon", "-1", "0", "nan", "inf", "-inf", "1e999", "Fri, 15 Jan 2027 07:59:59 GMT",
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


def test_date_is_measured_against_the_clock_of_its_writer() -> None:
    wrote = {"retry-after": THEN, "date": "Fri, 15 Jan 2027 08:00:20 GMT"}
    assert retry_after(wrote, WALL - 3600) == 10.0
    assert retry_after({**wrote, "date": "today"}, WALL) == 30.0


@pytest.mark.parametrize(
    ("wait_s", "kind"), [(3599, Kind.RATE_LIMIT), (3600, Kind.WINDOW_EXHAUSTED), (86_400, Kind.WINDOW_EXHAUSTED)]
)
def test_rate_limit_that_lasts_an_hour_is_a_window_that_is_used_up(wait_s: int, kind: Kind) -> None:
    assert classify_answer(429, {"retry-after": str(wait_s)}, body(), WALL).kind is kind
