from __future__ import annotations

import json

import pytest

from llm_guard.resilience.classification.error_body import ErrorBody, read_body
from llm_guard.resilience.classification.retry_after import duration_s, hint_s, retry_after

WALL = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT
NOTHING = ErrorBody("empty")


def hint(headers: dict[str, str] | None = None, body: object = None, *, is_limit: bool = True) -> float | None:
    return hint_s(headers or {}, read_body(json.dumps(body)) if body else NOTHING, WALL, is_limit=is_limit)


def sentence(message: str) -> float | None:
    return hint(body={"error": {"message": message}})


# durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1), ("6m0s", 360), ("7m12s", 432), ("20ms", 0.02), ("1.424s", 1.424), ("2m59.56s", 179.56),
        ("114h18m0s", 411480), ("26 seconds", 26), ("1 second", 1), ("2.12 days", 183168), ("5 minutes", 300),
        ("1 hour", 3600), ("1 hour and 5 minutes", 3900), ("00:30:02", 1802), ("14.07:13:56", 1235636), ("34.4s", 34.4),
        ("50.597142857s", 50.597142857), ("10h50m43.65s", 39043.65), ("606.799999ms", 0.606799999), ("1d2h", 93600),
    ],
)  # fmt: skip
def test_duration_is_read_in_every_fashion(text: str, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "0s", "soon", "12", "99999999999h", "1:2:3", "5 senators"])
def test_invalid_duration_is_none(text: str) -> None:
    assert duration_s(text) is None


# Retry-After


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.424"}, 1.424),
        ({"retry-after": "30s"}, 30.0),
        ({"retry-after-ms": "818", "retry-after": "1"}, 0.818),
        ({"x-ms-retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "0", "retry-after": "3"}, 3.0),
        ({"retry-after": "1800000045"}, 45.0),
        ({"retry-after": "1800000045500"}, 45.5),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}, 30.0),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT", "date": "Fri, 15 Jan 2027 08:00:20 GMT"}, 10.0),
        ({"x-retry-after": "4"}, 4.0),
    ],
)
def test_header_with_retry_after(headers: dict[str, str], seconds: float) -> None:
    assert retry_after(headers, WALL) == pytest.approx(seconds)
    assert hint(headers, is_limit=False) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", ["", "0", "-1", "nan", "inf", "1e999", "soon", "Mon, 01 Jan 2001 00:00:00 GMT", "1700000000"]
)
def test_nonsense_is_no_hint(value: str) -> None:
    assert retry_after({"retry-after": value}, WALL) is None


@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "1e999", "soon", "7s"])
def test_nonsense_in_milliseconds_is_no_hint(value: str) -> None:
    assert retry_after({"retry-after-ms": value, "x-ms-retry-after-ms": value}, WALL) is None


# rate limit windows


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("1s", 1), ("6m0s", 360), ("20ms", 0.02), ("37", 37), ("2.5", 2.5), ("2027-01-15T08:00:18Z", 18),
        ("1800000060", 60), ("1800000030000", 30), ("Fri, 15 Jan 2027 08:00:30 GMT", 30),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "name",
    [
        "x-ratelimit-reset-requests", "anthropic-ratelimit-tokens-reset", "ratelimit-reset", "x-ratelimit-reset",
        "x-ratelimit-reset-tokens-minute", "ratelimitbysize-reset",
    ],
)  # fmt: skip
def test_reset_is_read_in_every_format_of_every_provider(name: str, reset: str, seconds: float) -> None:
    assert hint({name: reset, name.replace("reset", "remaining"): "0"}) == pytest.approx(seconds)
    assert hint({name: reset}) == pytest.approx(seconds)
    assert hint({name: reset, name.replace("reset", "remaining"): "5"}) is None
    assert hint({name: reset, name.replace("reset", "remaining"): "0"}, is_limit=False) is None


def test_longest_window_that_is_used_up_binds() -> None:
    minute = {"x-ratelimit-reset-tokens": "7s", "x-ratelimit-remaining-tokens": "0"}
    day = {"x-ratelimit-reset-requests": "2h", "x-ratelimit-remaining-requests": "0"}
    assert hint({**minute, **day}) == 7200
    assert hint({**minute, **day, "x-ratelimit-remaining-requests": "9"}) == 7
    assert hint({**minute, "x-ratelimit-reset-requests": "2h"}) == 7


def test_window_that_the_body_names_binds_though_something_is_left_of_it() -> None:
    headers = {"x-ratelimit-reset-tokens": "6s", "x-ratelimit-remaining-tokens": "120",
               "x-ratelimit-reset-requests": "1h", "x-ratelimit-remaining-requests": "3"}  # fmt: skip
    assert hint(headers, {"error": {"type": "tokens", "message": "x"}}) == 6
    assert hint(headers, {"error": {"type": "requests", "message": "x"}}) == 3600
    assert hint(headers) is None


def test_two_unknown_windows_are_no_hint() -> None:
    assert hint({"x-ratelimit-reset-tokens": "6s", "x-ratelimit-reset-requests": "1h"}) is None


def test_minus_one_and_zero_mean_unknown() -> None:
    azure = {"x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": "0"}
    assert hint(azure) is None


def test_rejected_window_of_a_subscription_outlasts_a_short_retry_after() -> None:
    headers = {
        "retry-after": "300",
        "anthropic-ratelimit-unified-5h-status": "rejected",
        "anthropic-ratelimit-unified-5h-reset": "1800010800",
        "anthropic-ratelimit-unified-7d-status": "allowed",
        "anthropic-ratelimit-unified-7d-reset": "1800500000",
    }
    assert hint(headers) == 10800
    assert hint({**headers, "anthropic-ratelimit-unified-5h-status": "allowed_warning"}) == 300


def test_draft_of_the_ietf_is_read() -> None:
    assert hint({"ratelimit": '"default";r=0;t=14'}) == 14
    assert hint({"ratelimit": '"default";r=3;t=14'}) is None


# bodies


def test_field_of_a_body_is_read_and_the_longest_binds() -> None:
    assert hint(body={"error": {"details": [{"retryDelay": "34.4s"}, {"retryDelay": "2s"}]}}) == 34.4
    assert hint(body={"error": "loading", "estimated_time": 577.375}) == 577.375
    assert hint(body={"error": {"details": [{"retryDelay": {"seconds": 9}}]}}) == 9
    assert hint(body={"error": "x", "retry_after": -3}) is None
    assert hint(body={"error": "x", "estimated_time": 1e300}) is None


def test_headers_that_a_gateway_passes_on_in_the_body_are_read() -> None:
    passed = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000030000"}
    assert hint(body={"error": {"message": "x", "metadata": {"headers": passed}}}) == 30


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("Please try again in 7m12s. Visit", 432),
        ("Please retry in 10h50m43.65s.", 39043.65),
        ("Rate limit is exceeded. Try again in 26 seconds.", 26),
        ("Quota will be replenished in 00:30:02.", 1802),
        ("Quota will be replenished in 2.12 days", 183168),
        ("rate limited, retry in 20s", 20),
        ("Please retry after 86400 seconds.", 86400),
        ("please try again after 1 seconds", 1),
        ("Your limit resets in 2 hours", 7200),
        ("Please wait 30 seconds", 30),
        ("(reset after 5m)", 300),
        ("try again in about 2 minutes", 120),
        ("retry in 5s or, for tokens, retry in 1m", 60),
    ],
)
def test_sentence_that_names_a_wait(message: str, seconds: float) -> None:
    assert sentence(message) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "message",
    [
        "If you created the deployment within the last 5 minutes, please wait a moment and try again.",
        "You can retry your request", "Please try again later", "timeout: 30000ms", "after 300s of waiting it failed",
        "try again in 5 different ways", "Limit 6000, Requested 14368, please reduce and try again", "retry 3 times",
        "wait for model v2 5.0", "try again in 0s", "You will regain access on 2026-09-01 at 00:00 UTC.",
    ],
)  # fmt: skip
def test_number_that_is_no_wait_is_left_alone(message: str) -> None:
    assert sentence(message) is None


def test_header_outranks_a_field_and_a_field_a_sentence() -> None:
    body = {"error": {"message": "retry in 3s", "details": [{"retryDelay": "2s"}]}}
    assert hint({"retry-after": "1"}, body) == 1
    assert hint({"x-ratelimit-reset": "4", "x-ratelimit-remaining": "0"}, body) == 4
    assert hint(None, body) == 2
