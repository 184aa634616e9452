"""When calls return after a provider's Retry-After."""

from __future__ import annotations

import pytest

from llm_guard.resilience.throttling.release_spreading import ReturnSchedule


def backlog(refused_per_s: float, arrived_per_s: float = 10.0, seconds: int = 20) -> tuple[ReturnSchedule, int]:
    """Returns a record of refusals at that rate until second `seconds`, and the number of arrivals by then."""
    returns = ReturnSchedule()
    for number in range(int(refused_per_s * seconds)):
        at = number / refused_per_s
        returns.note_refusal(int(arrived_per_s * at), at)
    return returns, int(arrived_per_s * seconds)


def returned_within(returns: ReturnSchedule, calls: int, seconds: float, now: float) -> int:
    """Counts how many calls of a large backlog may return within `seconds`."""
    return sum(returns.take(calls, now) < seconds for _ in range(500))


def test_call_returns_at_once_where_no_other_does() -> None:
    returns, calls = backlog(1.0)
    assert returns.take(calls, 20.0) == 0.0


def test_backlog_returns_at_a_quarter_of_the_arrivals_once_the_provider_is_well() -> None:
    returns, calls = backlog(5.0)
    assert returned_within(returns, calls + 300, 10.0, 50.0) == pytest.approx(25, abs=5)


def test_backlog_returns_as_fast_as_calls_are_refused_now() -> None:
    returns, calls = backlog(5.0)
    assert returned_within(returns, calls, 10.0, 20.0) == pytest.approx(75, abs=8)


def test_calls_return_although_none_arrive() -> None:
    assert returned_within(ReturnSchedule(), 0, 10.0, 100.0) == 5


def test_arrivals_before_a_pause_do_not_count() -> None:
    returns, calls = backlog(5.0)
    assert returned_within(returns, calls, 10.0, 1000.0) == 5
