from __future__ import annotations

import random
from dataclasses import FrozenInstanceError, replace

import pytest

from llm_guard.outcome import FailureKind, Signal
from llm_guard.policy.breaker import Breaker, BreakerSettings, Permit, Transition

HEALTHY, UNHEALTHY, NO_EVIDENCE = Signal.HEALTHY, Signal.UNHEALTHY, Signal.NO_EVIDENCE


def acquire(breaker: Breaker, now: float) -> Permit:
    permit = breaker.try_acquire(now)
    assert permit is not None
    return permit


def call(breaker: Breaker, signal: Signal, now: float) -> Transition | None:
    return breaker.settle(acquire(breaker, now), signal, now)


def calls(breaker: Breaker, pattern: str, now: float = 0.0) -> Transition | None:
    """One call for each letter, H(ealthy) or U(nhealthy); the last transition."""
    transition = None
    for letter in pattern:
        transition = call(breaker, HEALTHY if letter == "H" else UNHEALTHY, now)
    return transition


def opened(settings: BreakerSettings | None = None, now: float = 0.0) -> Breaker:
    breaker = Breaker(settings or BreakerSettings())
    calls(breaker, "U" * breaker.settings.consecutive_failures, now)
    assert breaker.snapshot(now).state == "open"
    return breaker


def state(breaker: Breaker, now: float = 0.0) -> str:
    return breaker.snapshot(now).state


@pytest.mark.parametrize("threshold", [1, 2, 3, 5, 8])
def test_quiet_deployment_opens_at_exactly_the_threshold(threshold: int) -> None:
    breaker = Breaker(BreakerSettings(consecutive_failures=threshold))
    assert calls(breaker, "U" * (threshold - 1)) is None
    transition = call(breaker, UNHEALTHY, 1.0)
    assert transition == Transition("closed", "open", 1.0, f"{threshold} failures in a row")


def test_success_ends_a_run() -> None:
    breaker = Breaker(BreakerSettings())
    calls(breaker, "UUUUHUUUU")
    assert state(breaker) == "closed"
    calls(breaker, "U")
    assert state(breaker) == "open"


def test_run_does_not_age() -> None:
    breaker = Breaker(BreakerSettings())
    for day in range(4):
        call(breaker, UNHEALTHY, day * 86_400.0)
    assert breaker.snapshot(400_000.0).calls == 0
    assert call(breaker, UNHEALTHY, 400_000.0) is not None


def healthy_minute(calls_per_s: float) -> Breaker:
    breaker = Breaker(BreakerSettings())
    for i in range(int(60 * calls_per_s)):
        call(breaker, HEALTHY, i / calls_per_s)
    return breaker


@pytest.mark.parametrize("calls_per_s", [0.5, 1, 10, 100])
def test_outage_after_healthy_traffic_opens_at_the_fifth_failure(calls_per_s: float) -> None:
    breaker = healthy_minute(calls_per_s)
    calls(breaker, "UUUU", 60.0)
    assert state(breaker) == "closed"
    calls(breaker, "U", 60.0)
    assert state(breaker) == "open"


@pytest.mark.parametrize("share", [0.1, 0.2, 0.4])
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_brownout_does_not_open_by_chance(share: float, seed: int) -> None:
    """Ten minutes of 100 calls/s after a healthy one; at 40 % five in a row fail every 2 s."""
    dice = random.Random(seed)
    breaker = healthy_minute(100)
    for i in range(60_000):
        now = 60 + i / 100
        transition = call(breaker, UNHEALTHY if dice.random() < share else HEALTHY, now)
        assert transition is None, f"{transition} after {now} s"


def test_outage_that_ends_a_brownout_still_opens_soon() -> None:
    dice = random.Random(5)
    breaker = healthy_minute(100)
    for i in range(12_000):
        call(breaker, UNHEALTHY if dice.random() < 0.4 else HEALTHY, 60 + i / 100)
    failures = 0
    while state(breaker, 180.0) == "closed":
        calls(breaker, "U", 180.0)
        failures += 1
    assert 5 < failures <= 25


def test_outage_after_a_brownout_above_the_tolerated_rate_opens_as_soon_as_after_one_at_it() -> None:
    """Most calls fail, but not five in a row, and the window is still mostly healthy; then all fail."""
    breaker = healthy_minute(100)
    assert calls(breaker, "UUUH" * 20, 60.0) is None
    assert calls(breaker, "U" * 22, 60.0) is None
    assert calls(breaker, "U", 60.0) is not None


def test_few_calls_outside_the_run_are_no_sign_of_a_brownout() -> None:
    breaker = Breaker(BreakerSettings(failure_rate=1.0))
    assert calls(breaker, "UUUUH" * 3 + "HHHH" + "UUUU") is None
    assert calls(breaker, "U") is not None


def test_brownout_before_an_opening_is_forgotten_after_it() -> None:
    breaker = Breaker(BreakerSettings(failure_rate=1.0))
    calls(breaker, "UUUUH" * 30)
    while state(breaker) == "closed":
        calls(breaker, "U")
    call(breaker, HEALTHY, 30.0)
    calls(breaker, "H" * 20 + "UUUUU", 30.0)
    assert state(breaker, 30.0) == "open"


def test_rate_opens_once_there_are_enough_calls() -> None:
    breaker = Breaker(BreakerSettings())
    assert calls(breaker, "HU" * 9 + "H") is None
    transition = calls(breaker, "U")
    assert transition == Transition("closed", "open", 0.0, "10 of 20 calls failed within 60 s")


def test_rate_below_the_limit_stays_closed() -> None:
    breaker = Breaker(BreakerSettings())
    assert calls(breaker, "HHU" * 100) is None
    assert state(breaker) == "closed"


def test_rate_looks_at_the_window_only() -> None:
    breaker = Breaker(BreakerSettings())
    calls(breaker, "HU" * 9, 0.0)
    assert calls(breaker, "HU" * 9, 60.0) is None
    seen = breaker.snapshot(60.0)
    assert (seen.calls, seen.failures) == (18, 9)


def test_window_slides_by_tenths() -> None:
    breaker = Breaker(BreakerSettings())
    for second in range(60):
        call(breaker, HEALTHY, float(second))
    assert [breaker.snapshot(now).calls for now in (59.9, 60.0, 65.9, 66.0, 113.9, 114.0)] == [
        60, 54, 54, 48, 6, 0
    ]  # fmt: skip


def test_success_never_opens() -> None:
    breaker = Breaker(BreakerSettings(consecutive_failures=100))
    calls(breaker, "U" * 15)
    assert calls(breaker, "H" * 5) is None
    assert state(breaker) == "closed"


def test_outcomes_that_are_not_the_deployments_doing_count_for_nothing() -> None:
    """A08: 1,000 each of bad requests, refused keys, unknown models, clients that left, rate limits."""
    ignored = [kind for kind in FailureKind if kind.signal is NO_EVIDENCE]
    assert FailureKind.INVALID_REQUEST in ignored
    assert FailureKind.CLIENT_CANCELLED in ignored
    breaker = Breaker(BreakerSettings())
    for kind in ignored:
        for _ in range(1000):
            assert call(breaker, kind.signal, 0.0) is None
    seen = breaker.snapshot(0.0)
    assert (seen.state, seen.calls, seen.failures, seen.consecutive_failures) == ("closed", 0, 0, 0)


def test_outcome_without_evidence_does_not_end_a_run() -> None:
    breaker = Breaker(BreakerSettings())
    calls(breaker, "UUUU")
    call(breaker, NO_EVIDENCE, 0.0)
    assert calls(breaker, "U") is not None


def test_open_refuses_until_its_time_then_lets_exactly_the_probes_through() -> None:
    """A05: 1,000 calls in 4.9 s, then 50 at 5.01 s with three probes allowed."""
    breaker = opened(BreakerSettings(open_for=5.0, half_open_calls=3))
    for i in range(1000):
        now = i * 0.0049
        assert breaker.try_acquire(now) is None
        assert breaker.retry_after_s(now) == pytest.approx(5 - now)
    permits = [breaker.try_acquire(5.01) for _ in range(50)]
    probes = [permit for permit in permits if permit is not None]
    assert len(probes) == 3
    assert all(probe.is_probe for probe in probes)
    assert breaker.retry_after_s(5.01) == pytest.approx(5.0)


def test_opening_lasts_its_time_on_the_clock_it_is_given() -> None:
    """A16: no other clock is read, so a wall clock that jumps an hour cannot matter."""
    breaker = opened(BreakerSettings(open_for=5.0), now=1e6)
    assert breaker.try_acquire(1e6 + 4.999) is None
    assert breaker.try_acquire(1e6 + 5.0) is not None


def test_half_open_begins_with_the_first_to_ask() -> None:
    breaker = opened()
    assert state(breaker, 1000.0) == "open"
    assert breaker.retry_after_s(1000.0) == 0.0
    assert acquire(breaker, 1000.0).is_probe
    assert state(breaker, 1000.0) == "half_open"


def test_enough_successful_probes_close_it_with_an_empty_window() -> None:
    breaker = opened(BreakerSettings(success_threshold=2))
    assert call(breaker, HEALTHY, 30.0) is None
    assert call(breaker, HEALTHY, 31.0) == Transition("half_open", "closed", 31.0, "probes succeeded")
    seen = breaker.snapshot(31.0)
    assert (seen.calls, seen.failures, seen.consecutive_failures) == (0, 0, 0)
    assert (seen.opened_at, seen.probe_at) == (None, None)
    calls(breaker, "UUUU", 32.0)
    assert state(breaker, 32.0) == "closed"


def test_one_failed_probe_opens_it_again_and_forgets_the_successes() -> None:
    breaker = opened(BreakerSettings(success_threshold=2))
    call(breaker, HEALTHY, 30.0)
    assert call(breaker, UNHEALTHY, 31.0) == Transition("half_open", "open", 31.0, "a probe failed")
    assert call(breaker, HEALTHY, 91.0) is None
    assert call(breaker, HEALTHY, 91.0) is not None


def test_each_failed_recovery_doubles_the_time_up_to_the_longest() -> None:
    breaker = opened()
    now = 0.0
    waits = []
    for _ in range(6):
        waits.append(breaker.retry_after_s(now))
        now += waits[-1]
        call(breaker, UNHEALTHY, now)
    assert waits == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0]
    now += 300.0
    call(breaker, HEALTHY, now)
    calls(breaker, "UUUUU", now)
    assert breaker.retry_after_s(now) == 30.0


def test_two_thousand_failed_recoveries_do_not_overflow() -> None:
    breaker = opened(BreakerSettings(open_for=30.0, max_open_for=300.0))
    now = 0.0
    for _ in range(2000):
        now += 300.0
        call(breaker, UNHEALTHY, now)
    assert breaker.retry_after_s(now) == 300.0


def test_opening_longer_than_the_longest_is_kept() -> None:
    assert opened(BreakerSettings(open_for=600.0, max_open_for=300.0)).retry_after_s(0.0) == 600.0


def test_cancelled_probe_returns_its_permit() -> None:
    """A07, first part: the client left, so nothing was learnt, and the next may probe at once."""
    breaker = opened()
    probe = acquire(breaker, 30.0)
    assert breaker.try_acquire(30.0) is None
    assert breaker.settle(probe, NO_EVIDENCE, 31.0) is None
    assert state(breaker, 31.0) == "half_open"
    assert breaker.retry_after_s(31.0) == 0.0
    assert breaker.try_acquire(31.0) is not None


def test_lost_probe_frees_its_place_when_its_lease_ends() -> None:
    """A07, second part: never settled at all. A real router sat half-open for six days: 49,607 refusals."""
    breaker = opened()
    acquire(breaker, 30.0)
    assert breaker.retry_after_s(40.0) == pytest.approx(20.0)
    assert breaker.try_acquire(59.9) is None
    assert breaker.snapshot(59.9).leases == 1
    assert breaker.snapshot(60.0).leases == 0
    assert breaker.retry_after_s(60.0) == 0.0
    assert breaker.try_acquire(60.0) is not None


def test_lease_is_as_long_as_the_opening_before_it_and_a_second_at_least() -> None:
    breaker = opened(BreakerSettings(open_for=0.2))
    acquire(breaker, 0.2)
    assert breaker.retry_after_s(0.2) == pytest.approx(1.0)
    breaker = opened()
    call(breaker, UNHEALTHY, 30.0)
    acquire(breaker, 90.0)
    assert breaker.retry_after_s(90.0) == pytest.approx(60.0)


@pytest.mark.parametrize(("signal", "after"), [(HEALTHY, "closed"), (UNHEALTHY, "open")])
def test_probe_slower_than_its_lease_is_still_evidence(signal: Signal, after: str) -> None:
    """Answers of 45 s could otherwise never close a circuit whose leases are 30 s."""
    breaker = opened()
    slow = acquire(breaker, 30.0)
    second = acquire(breaker, 60.0)
    assert breaker.settle(slow, signal, 75.0) is not None
    assert state(breaker, 75.0) == after
    assert breaker.settle(second, HEALTHY, 76.0) is None
    assert state(breaker, 76.0) == after


def test_slow_probe_that_tells_nothing_does_not_free_the_place_of_the_next() -> None:
    breaker = opened()
    slow = acquire(breaker, 30.0)
    acquire(breaker, 60.0)
    breaker.settle(slow, NO_EVIDENCE, 75.0)
    assert breaker.try_acquire(75.0) is None


@pytest.mark.parametrize("late", [HEALTHY, UNHEALTHY, NO_EVIDENCE])
def test_stragglers_change_nothing(late: Signal) -> None:
    """A09: 50 calls admitted while closed end after it opened, and after it went half-open."""
    breaker = Breaker(BreakerSettings(half_open_calls=2, success_threshold=2))
    early = [acquire(breaker, 0.0) for _ in range(50)]
    calls(breaker, "UUUUU")
    before = breaker.snapshot(1.0)
    assert [breaker.settle(permit, late, 1.0) for permit in early[:25]] == [None] * 25
    assert breaker.snapshot(1.0) == before
    acquire(breaker, 30.0)
    before = breaker.snapshot(30.0)
    assert [breaker.settle(permit, late, 30.0) for permit in early[25:]] == [None] * 25
    assert breaker.snapshot(30.0) == before
    assert call(breaker, HEALTHY, 30.0) is None
    assert call(breaker, HEALTHY, 30.0) is not None


@pytest.mark.parametrize("late", [HEALTHY, UNHEALTHY])
def test_probe_of_an_earlier_half_open_state_changes_nothing(late: Signal) -> None:
    breaker = opened(BreakerSettings(half_open_calls=2))
    first = acquire(breaker, 30.0)
    call(breaker, UNHEALTHY, 31.0)
    acquire(breaker, 91.0)
    assert breaker.settle(first, late, 92.0) is None
    assert breaker.snapshot(92.0).leases == 1
    assert state(breaker, 92.0) == "half_open"


def test_straggler_from_before_the_outage_does_not_count_after_it() -> None:
    breaker = Breaker(BreakerSettings())
    early = [acquire(breaker, 0.0) for _ in range(5)]
    calls(breaker, "UUUUU")
    call(breaker, HEALTHY, 30.0)
    assert [breaker.settle(permit, UNHEALTHY, 31.0) for permit in early] == [None] * 5
    assert breaker.snapshot(31.0).calls == 0


def test_permit_counts_once() -> None:
    breaker = Breaker(BreakerSettings())
    permit = acquire(breaker, 0.0)
    for _ in range(10):
        breaker.settle(permit, UNHEALTHY, 0.0)
    assert breaker.snapshot(0.0).consecutive_failures == 1
    breaker = opened(BreakerSettings(success_threshold=2))
    probe = acquire(breaker, 30.0)
    breaker.settle(probe, HEALTHY, 30.0)
    assert breaker.settle(probe, HEALTHY, 30.0) is None
    assert state(breaker, 30.0) == "half_open"


def test_snapshot_tells_the_whole_story_and_cannot_be_changed() -> None:
    breaker = opened(now=7.0)
    seen = breaker.snapshot(8.0)
    assert (seen.state, seen.opened_at, seen.probe_at, seen.generation) == ("open", 7.0, 37.0, 1)
    assert (seen.consecutive_failures, seen.calls, seen.failures, seen.leases) == (5, 5, 5, 0)
    call(breaker, HEALTHY, 37.0)
    assert seen.transitions == {"closed": 0, "open": 1, "half_open": 0}
    assert breaker.snapshot(37.0).transitions == {"closed": 1, "open": 1, "half_open": 1}
    with pytest.raises(FrozenInstanceError):
        seen.state = "closed"  # type: ignore[misc]
    with pytest.raises(TypeError):
        seen.transitions["open"] = 0  # type: ignore[index]


def test_new_settings_hold_from_the_next_call_on() -> None:
    breaker = Breaker(BreakerSettings())
    calls(breaker, "UU")
    breaker.settings = replace(breaker.settings, consecutive_failures=3)
    assert calls(breaker, "U") is not None


def test_opening_keeps_its_length_through_a_reload() -> None:
    breaker = opened()
    breaker.settings = replace(breaker.settings, open_for=1.0)
    assert breaker.try_acquire(29.9) is None
    assert breaker.try_acquire(30.0) is not None


def test_fewer_probes_after_a_reload_are_granted_once_the_others_are_back() -> None:
    breaker = opened(BreakerSettings(half_open_calls=3, success_threshold=9))
    probes = [acquire(breaker, 30.0 + i) for i in range(3)]
    breaker.settings = replace(breaker.settings, half_open_calls=1)
    assert breaker.retry_after_s(32.0) == pytest.approx(30.0)
    for probe in probes[:2]:
        breaker.settle(probe, HEALTHY, 33.0)
        assert breaker.try_acquire(33.0) is None
    breaker.settle(probes[2], HEALTHY, 33.0)
    assert breaker.try_acquire(33.0) is not None


def test_shorter_window_after_a_reload_forgets_what_is_older() -> None:
    breaker = Breaker(BreakerSettings())
    calls(breaker, "H" * 10, 0.0)
    calls(breaker, "H" * 10, 30.0)
    breaker.settings = replace(breaker.settings, window=10.0)
    assert breaker.snapshot(35.0).calls == 10
