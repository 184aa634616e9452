from __future__ import annotations

from math import comb

import pytest

from llm_guard.resilience.circuit_breaker.breaker import ConsecutiveFailures, SlidingWindow
from llm_guard.resilience.circuit_breaker.opening_rules import is_run_evidence, is_share_significant


def window_of(calls: int, failures: int, over_s: float = 60.0) -> SlidingWindow:
    window = SlidingWindow()
    for i in range(calls):
        window.add(i < failures, False, i * over_s / max(1, calls), 60.0, None)
    return window


def run_of(length: int, recent_rate: float = 0.0) -> ConsecutiveFailures:
    run = ConsecutiveFailures(recent_rate)
    for _ in range(length):
        run.add_failure(0.0, 0.0)
    return run


def needed(threshold: int, calls: int, failures: int, recent_rate: float = 0.0) -> int:
    """Returns how many failures in a row are evidence after `calls` calls in a minute, of which `failures` failed."""
    window = window_of(calls, failures)
    for length in range(1, 500):
        window.add(True, False, 59.99, 60.0, None)
        if is_run_evidence(run_of(length, recent_rate), threshold, window, 59.99):
            return length
    raise AssertionError("500 failures are no evidence")


@pytest.mark.parametrize("threshold", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("calls", [0, 1, 2, 3, 5, 10, 20, 59, 100, 200])
def test_without_another_failure_the_threshold_itself_is_enough(threshold: int, calls: int) -> None:
    assert needed(threshold, calls, 0) == threshold


@pytest.mark.parametrize(("calls", "quarter"), [(500, 3), (1000, 5), (1100, 5), (2900, 13), (6000, 26)])
@pytest.mark.parametrize("threshold", [1, 2, 3, 4, 5, 8])
def test_of_the_threshold_and_a_quarter_of_a_second_the_longer_run_is_needed(
    threshold: int, calls: int, quarter: int
) -> None:
    assert needed(threshold, calls, 0) == max(threshold, quarter)


@pytest.mark.parametrize(("share", "length"), [(0.01, 5), (0.1, 9), (0.2, 13), (0.3, 17), (0.4, 22), (0.5, 29)])
def test_steady_failures_require_longer_runs(share: float, length: int) -> None:
    """At 9,600 calls a minute, fewer than 2 in 100,000 runs of this length are expected by chance."""
    window = window_of(9600, int(9600 * share))
    assert is_run_evidence(run_of(length), 5, window, 600.0)
    assert length == 5 or not is_run_evidence(run_of(length - 1), 5, window, 600.0)


def test_run_fills_a_quarter_of_a_second_of_the_pace() -> None:
    assert [needed(5, calls, 0) for calls in (600, 1190, 1200, 3000, 6000, 30_000)] == [5, 5, 6, 13, 26, 126]


def test_few_calls_at_one_instant_are_no_heavy_traffic() -> None:
    assert is_run_evidence(run_of(5), 5, window_of(5, 5, over_s=0.0), 0.25)


def test_first_calls_of_a_busy_deployment_are_no_outage_before_a_quarter_of_a_second() -> None:
    """Twenty failures are evidence even before that."""
    assert not is_run_evidence(run_of(19), 5, window_of(19, 19, over_s=0.2), 0.24)
    assert is_run_evidence(run_of(19), 5, window_of(19, 19, over_s=0.2), 0.25)
    assert is_run_evidence(run_of(20), 5, window_of(20, 20, over_s=0.2), 0.24)


@pytest.mark.parametrize("threshold", [1, 4])
def test_settings_with_fewer_failures_than_the_default_apply_at_once(threshold: int) -> None:
    assert is_run_evidence(run_of(threshold), threshold, window_of(threshold, threshold, over_s=0.0), 0.0)


def test_run_lasts_as_long_as_a_success_takes() -> None:
    """Half a second is the maximum: of calls sent at one moment, the failures arrive first."""
    run = run_of(300)
    assert not is_run_evidence(run, 5, window_of(1000, 0), 0.29, 0.3)
    assert is_run_evidence(run, 5, window_of(1000, 0), 0.3, 0.3)
    assert not is_run_evidence(run, 5, window_of(1000, 0), 0.49, 60.0)
    assert is_run_evidence(run, 5, window_of(1000, 0), 0.5, 60.0)
    assert is_run_evidence(run, 4, window_of(1000, 0), 0.0, 60.0)


def test_window_without_a_success_requires_a_run_as_long_as_failures_take() -> None:
    run = ConsecutiveFailures()
    for at in (0.0, 0.1, 0.2, 0.3):
        run.add_failure(0.4 + at, at)
    for _ in range(20):
        run.add_failure(0.7, 0.3)
    assert not is_run_evidence(run, 5, window_of(24, 24, over_s=0.3), 0.79)
    assert is_run_evidence(run, 5, window_of(24, 24, over_s=0.3), 0.81)


def test_only_failures_of_calls_that_were_sent_before_an_answer_takes_count() -> None:
    """A burst after a lull: its failures arrive at once, and its answers after 0.4 s."""
    run, window = ConsecutiveFailures(0.8), window_of(600, 480)
    run.add_failure(59.0, 58.9)
    for _ in range(200):
        run.add_failure(59.6, 59.5)
    assert not is_run_evidence(run, 5, window, 59.6, 0.4)
    assert is_run_evidence(run, 5, window, 59.91, 0.4)


@pytest.mark.parametrize("share", [0.4, 0.8])
def test_calls_that_have_not_failed_count_as_future_successes(share: float) -> None:
    """Failures take 0.1 s and answers 5 s, at 20 calls a second, one after the other."""
    run = ConsecutiveFailures()
    for number in range(80):
        if number % 10 < share * 10:
            run.add_failure(number / 20 + 0.1, number / 20, number)
    assert run.is_survived(4.0)
    assert not is_run_evidence(run, 5, window_of(run.length, run.length), 4.0, 5.0)
    assert is_run_evidence(run, 5, window_of(run.length, run.length), 20.1, 5.0), "they hang"


def test_worse_of_the_window_and_lately_is_taken_and_at_most_nine_in_ten() -> None:
    assert needed(5, 600, 0, recent_rate=0.4) == needed(5, 600, 240) == 19
    assert needed(5, 600, 240) < needed(5, 600, 480)
    assert needed(5, 600, 0, recent_rate=0.9) == needed(5, 600, 0, recent_rate=0.99)


def test_recent_share_that_is_low_by_chance_is_corrected() -> None:
    """90 % of 1,000 calls have failed, but only five of the last ten."""
    run = ConsecutiveFailures()
    for _ in range(100):
        for _ in range(9):
            run.add_failure(0.0, 0.0)
        run.end()
    for _ in range(5):
        run.add_failure(0.0, 0.0)
        run.end()
    assert run.recent_rate < 0.75
    assert 0.85 < run.lately() < 0.9


def test_recent_rate_remembers_some_twenty_calls() -> None:
    run = ConsecutiveFailures()
    run.add_failure(0.0, 0.0)
    run.end()
    assert run.recent_rate == pytest.approx(0.05 * 0.95)
    for _ in range(200):
        run.add_failure(0.0, 0.0)
    assert run.recent_rate == pytest.approx(0.05 * 0.95)
    run.end()
    assert run.length == 0
    assert run.recent_rate == pytest.approx(0.95, abs=1e-4)
    for _ in range(100):
        run.end()
    assert run.recent_rate < 0.01


@pytest.mark.parametrize(
    ("limit", "share", "calls"),
    [(0.5, 0.5, 1834), (0.5, 0.6, 205), (0.5, 0.8, 40), (0.5, 1.0, 12), (0.8, 0.9, 100), (0.8, 1.0, 29)],
)
def test_share_is_significant_from_so_many_calls_on(limit: float, share: float, calls: int) -> None:
    step = next(n for n in range(1, 11) if abs(n * share - round(n * share)) < 1e-9)
    whole = calls - calls % step
    assert is_share_significant(round(whole * share), whole, limit)
    before = whole - step
    assert not is_share_significant(round(before * share), before, limit)


@pytest.mark.parametrize("limit", [0.1, 0.5, 0.8, 1.0])
def test_significant_share_is_one_in_ten_thousand_or_rarer(limit: float) -> None:
    """Compares with the exact binomial tail at 0.9 of the limit."""
    rate = 0.9 * limit
    for calls in (12, 20, 50, 100, 200):
        for count in range(-int(-calls * limit // 1), calls + 1):
            tail = sum(comb(calls, k) * rate**k * (1 - rate) ** (calls - k) for k in range(count, calls + 1))
            assert tail < 1e-4 or not is_share_significant(count, calls, limit)
            assert tail > 1e-6 or is_share_significant(count, calls, limit)


def test_limit_of_nothing_is_exceeded_by_anything() -> None:
    assert is_share_significant(1, 100, 0.0)
    assert not is_share_significant(0, 100, 0.0)


def test_count_window_forgets_call_by_call() -> None:
    window = SlidingWindow()
    for i in range(10):
        window.add(i < 3, i < 2, 0.0, 60.0, 4)
    assert (window.calls, window.failures, window.slow_calls) == (4, 0, 0)


def test_count_window_still_ages() -> None:
    window = SlidingWindow()
    window.add(True, True, 0.0, 10.0, 4)
    window.add(True, True, 0.5, 10.0, 4)
    window.expire(10.0, 10.0)
    assert (window.calls, window.failures, window.slow_calls) == (1, 1, 1)


def test_window_that_becomes_one_of_counts_retains_the_newest() -> None:
    window = window_of(50, 50, over_s=0.0)
    window.add(False, False, 0.0, 60.0, 4)
    assert (window.calls, window.failures) == (1, 0)


def test_pace_is_the_mean_since_the_oldest_call_and_of_a_second_at_least() -> None:
    assert SlidingWindow().calls_per_s(5.0) == 0.0
    window = window_of(6, 0, over_s=0.0)
    assert [window.calls_per_s(now) for now in (0.0, 1.0, 2.0, 12.0)] == [6.0, 6.0, 3.0, 0.5]
