"""The estimate of the arrival rate, from calls that could not enter at once."""

from __future__ import annotations

import pytest

from llm_guard.resilience.capacity.arrival_rate import DeniedCalls


def deny(denied: DeniedCalls, begin: float, end: float, per_s: float) -> None:
    for i in range(round((end - begin) * per_s)):
        denied.note(begin + i / per_s)


def test_time_in_which_all_calls_could_enter_does_not_count() -> None:
    """A storm after 20 s without one was once estimated at less than half of its calls."""
    denied = DeniedCalls(0.0)
    deny(denied, 20.0, 36.0, 5.0)
    assert denied.per_s(36.0) == pytest.approx(5.0, rel=0.05)


def test_rate_follows_faster_arrivals() -> None:
    denied = DeniedCalls(0.0)
    deny(denied, 0.0, 120.0, 1.0)
    deny(denied, 120.0, 240.0, 10.0)
    assert denied.per_s(240.0) == pytest.approx(10.0, rel=0.1)


def test_hold_shows_the_rate_of_calls_that_could_enter_before_it() -> None:
    """Where single calls could not enter for a minute, a hold of 2 s was once taken for one of a tenth of the calls."""
    denied = DeniedCalls(0.0)
    deny(denied, 0.0, 30.0, 0.5)
    denied.begin_hold(30.0)
    deny(denied, 30.0, 32.0, 20.0)
    assert denied.per_s(32.0) < 2.0
    assert denied.per_s_of_hold(32.0) == pytest.approx(20.0)
    denied.take_back()
    assert denied.per_s_of_hold(32.0) == pytest.approx(19.5)


def test_calls_before_a_hold_count_where_they_come_faster() -> None:
    denied = DeniedCalls(0.0)
    deny(denied, 0.0, 30.0, 10.0)
    denied.begin_hold(30.0)
    assert denied.per_s_of_hold(31.0) == denied.per_s(31.0) > 9.0


def test_call_that_is_sent_again_counts_once() -> None:
    denied = DeniedCalls(0.0)
    for at in range(30):
        denied.note(float(at))
        denied.note(at + 0.5)
        denied.take_back()
    assert denied.per_s(30.0) == pytest.approx(1.0, rel=0.05)
