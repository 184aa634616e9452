from __future__ import annotations

import time
from email.utils import formatdate

import pytest
from multidict import CIMultiDict

from llm_guard.mock.load_retries import SdkRetries, retry_after_s


def test_waits_double_from_half_a_second_to_eight_and_lose_up_to_a_quarter() -> None:
    retries = SdkRetries(100)
    for taken, most in enumerate((0.5, 1.0, 2.0, 4.0, 8.0, 8.0)):
        waits = [retries.try_wait_s(taken, 503, {}) or 0.0 for _ in range(300)]
        assert 0.75 * most <= min(waits) < 0.77 * most
        assert 0.98 * most < max(waits) <= most


def test_the_same_seed_waits_the_same() -> None:
    assert SdkRetries(2, seed=1).try_wait_s(0, 500, {}) == SdkRetries(2, seed=1).try_wait_s(0, 500, {})
    assert SdkRetries(2, seed=1).try_wait_s(0, 500, {}) != SdkRetries(2, seed=2).try_wait_s(0, 500, {})


@pytest.mark.parametrize(
    ("status", "told", "is_retried"),
    [
        (408, None, True), (409, None, True), (429, None, True), (500, None, True), (529, None, True),
        (None, None, True), (400, None, False), (401, None, False), (422, None, False), (400, "true", True),
        (503, "false", False), (503, "perhaps", True),
    ],
)  # fmt: skip
def test_retried_outcomes_are_listed(status: int | None, told: str | None, is_retried: bool) -> None:
    headers = {} if told is None else {"x-should-retry": told}
    assert (SdkRetries(2).try_wait_s(0, status, headers) is not None) == is_retried


def test_the_last_retry_is_the_last() -> None:
    retries = SdkRetries(2)
    assert [retries.try_wait_s(taken, 503, {}) is None for taken in range(4)] == [False, False, True, True]


@pytest.mark.parametrize(("value", "wait_s"), [("3", 3.0), ("0.25", 0.25), ("120", 120.0), ("121", None)])
def test_a_retry_after_is_obeyed_up_to_two_minutes(value: str, wait_s: float | None) -> None:
    assert SdkRetries(2).try_wait_s(0, 429, {"retry-after": value}) == wait_s


@pytest.mark.parametrize("value", ["0", "-3", "nan", "soon"])
def test_retry_after_without_a_value_leaves_the_default_wait(value: str) -> None:
    wait_s = SdkRetries(2).try_wait_s(0, 429, {"retry-after": value})
    assert wait_s is not None
    assert 0.375 <= wait_s <= 0.5


def test_milliseconds_outrank_seconds_and_dates_are_read() -> None:
    assert retry_after_s(CIMultiDict({"Retry-After": "9", "Retry-After-Ms": "250"})) == 0.25
    assert retry_after_s({"retry-after": "9", "retry-after-ms": "soon"}) == 9.0
    assert retry_after_s({"retry-after": formatdate(time.time() + 100, usegmt=True)}) == pytest.approx(100, abs=2)
    assert [retry_after_s(headers) for headers in ({}, {"retry-after": "nan"}, {"retry-after": "inf"})] == [None] * 3


def test_persistent_client_retries_until_its_timeout() -> None:
    patient = SdkRetries(0, patience_s=30.0)
    assert patient.try_wait_s(50, 503, {"retry-after": "2", "x-should-retry": "false"}, 27.0) == 2.0
    assert patient.try_wait_s(50, 503, {"retry-after": "2"}, 28.5) is None
