"""Streams that fail after their first token: until then they counted as successes."""

from __future__ import annotations

import pytest

from llm_guard.outcome import Signal
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings, Permit
from llm_guard.resilience.circuit_breaker.history import BreakerState
from llm_guard.resilience.retry.limits import FailureRate


def acquired(breaker: Breaker, now: float) -> Permit:
    permit = breaker.try_acquire(now)
    assert permit is not None
    return permit


def begun(breaker: Breaker, now: float) -> Permit:
    """Returns the permit of a stream that has delivered its first token."""
    permit = acquired(breaker, now)
    breaker.settle(permit, Signal.HEALTHY, now)
    return permit


def failed(breaker: Breaker, now: float) -> None:
    breaker.settle(acquired(breaker, now), Signal.UNHEALTHY, now)


def counts(breaker: Breaker, now: float) -> tuple[int, int, int]:
    """Returns (calls, failures, failures in a row)."""
    seen = breaker.snapshot(now)
    return seen.calls, seen.failures, seen.consecutive_failures


def test_dead_stream_is_one_call_and_one_failure() -> None:
    breaker = Breaker(BreakerSettings())
    permit = begun(breaker, 0.0)
    assert counts(breaker, 0.0) == (1, 0, 0)
    breaker.revise_to_failure(permit, 5.0)
    assert counts(breaker, 5.0) == (1, 1, 1)


def test_stream_dies_once() -> None:
    breaker = Breaker(BreakerSettings())
    permit = begun(breaker, 0.0)
    breaker.revise_to_failure(permit, 5.0)
    begun(breaker, 5.0)
    breaker.revise_to_failure(permit, 6.0)
    assert counts(breaker, 6.0) == (2, 1, 0)


def test_immediate_failure_cannot_fail_again() -> None:
    breaker = Breaker(BreakerSettings())
    permit = acquired(breaker, 0.0)
    breaker.settle(permit, Signal.UNHEALTHY, 0.0)
    assert breaker.revise_to_failure(permit, 1.0) is None
    assert counts(breaker, 1.0) == (1, 1, 1)


def test_streams_that_all_die_one_after_the_other_open_it() -> None:
    breaker = Breaker(BreakerSettings(consecutive_failures=5))
    for at in range(4):
        assert breaker.revise_to_failure(begun(breaker, at), at + 0.5) is None
    transition = breaker.revise_to_failure(begun(breaker, 4.0), 4.5)
    assert transition is not None
    assert (transition.after, transition.why) == ("open", "5 failures in a row")


def test_run_of_failures_continues_after_a_stream_that_died() -> None:
    breaker = Breaker(BreakerSettings())
    failed(breaker, 0.0)
    failed(breaker, 0.0)
    permit = begun(breaker, 1.0)
    failed(breaker, 2.0)
    breaker.revise_to_failure(permit, 3.0)
    assert counts(breaker, 3.0) == (4, 4, 4)


def test_success_in_between_still_counts() -> None:
    breaker = Breaker(BreakerSettings())
    failed(breaker, 0.0)
    first = begun(breaker, 1.0)
    begun(breaker, 2.0)
    breaker.revise_to_failure(first, 3.0)
    assert counts(breaker, 3.0) == (3, 1 + 1, 1)


def test_a_tenth_of_long_streams_may_die_early_and_nothing_opens() -> None:
    """A thousand streams begin, and a hundred of them die before the first of the others ends."""
    breaker = Breaker(BreakerSettings())
    for at in range(1000):
        permit = begun(breaker, at / 100)
        if at % 10 == 0:
            assert breaker.revise_to_failure(permit, at / 100 + 0.005) is None
    assert counts(breaker, 10.0)[:2] == (1000, 100)
    assert breaker.state == "closed"


def test_streams_of_which_most_die_open_it() -> None:
    breaker = Breaker(BreakerSettings(min_calls=20))
    permits = [begun(breaker, 0.0) for _ in range(50)]
    states: list[BreakerState] = []
    for permit in permits[:45]:
        breaker.revise_to_failure(permit, 1.0)
        states.append(breaker.state)
    assert 10 < states.index("open") < 40


def test_death_of_an_earlier_generation_is_ignored() -> None:
    breaker = Breaker(BreakerSettings(open_for=1.0, early_probes=False))
    permit = begun(breaker, 0.0)
    for place in range(5):
        failed(breaker, place / 10)
    assert breaker.state == "open"
    breaker.settle(acquired(breaker, 2.0), Signal.HEALTHY, 2.0)
    assert breaker.revise_to_failure(permit, 3.0) is None
    assert counts(breaker, 3.0) == (0, 0, 0)


def test_death_of_a_call_that_is_forgotten_is_a_call_again() -> None:
    breaker = Breaker(BreakerSettings(window=60.0))
    permit = begun(breaker, 0.0)
    breaker.revise_to_failure(permit, 100.0)
    assert counts(breaker, 100.0) == (1, 1, 1)


def test_death_of_a_forgotten_call_is_not_taken_from_younger_ones() -> None:
    breaker = Breaker(BreakerSettings(window=60.0, consecutive_failures=100))
    old = [begun(breaker, 0.0) for _ in range(20)]
    for _ in range(20):
        begun(breaker, 300.0)
    for permit in old:
        breaker.revise_to_failure(permit, 301.0)
    assert counts(breaker, 301.0)[:2] == (40, 20)
    assert breaker.state == "closed"


def test_probe_whose_stream_dies_opens_it_again() -> None:
    breaker = Breaker(BreakerSettings(success_threshold=2, early_probes=False))
    for place in range(5):
        failed(breaker, place / 10)
    probe = acquired(breaker, 100.0)
    breaker.settle(probe, Signal.HEALTHY, 100.0)
    transition = breaker.revise_to_failure(probe, 101.0)
    assert transition is not None
    assert (transition.after, transition.why) == ("open", "a probe ended without a result")


@pytest.mark.parametrize("window_calls", [None, 4])
def test_failures_are_never_more_than_calls(window_calls: int | None) -> None:
    breaker = Breaker(BreakerSettings(window_calls=window_calls, state="metrics_only"))
    permits = [begun(breaker, 0.0) for _ in range(10)]
    for at, permit in enumerate(permits):
        breaker.revise_to_failure(permit, 55.0 + at)
        calls, failures, _ = counts(breaker, 55.0 + at)
        assert 0 < failures <= calls


def test_recent_share_takes_a_success_back() -> None:
    recent = FailureRate(0.0)
    for _ in range(20):
        recent.note(False, 0.0)
    attempts = recent.snapshot(0.0).attempts
    recent.take_back(0.0)
    assert recent.snapshot(0.0).attempts == pytest.approx(attempts)
    assert recent.failure_share(0.0) == pytest.approx(1 / attempts)
    for _ in range(100):
        recent.take_back(0.0)
    assert recent.failure_share(0.0) == pytest.approx(1.0)
