"""Failure evidence and states of the breaker: each guarantee (benchmarks/results/frontier.md), and its tests.

an outage costs at most 20 requests plus those in flight   runs of failures: `test_quiet_deployment_...`,
                                                           `test_outage_after_...`, `test_outage_that_ends_a_...`
no opening by chance at 10 to 60 % random failures         `test_random_failures_...`, `test_brownout_...`,
                                                           `test_share_of_failures_alone_...`
an outage that turns into a brownout ends with the first   `test_outage_may_end_...`, `test_outage_is_forgotten_...`,
successful probe                                           `test_call_of_the_outage_...`
one probe at a time, the next one in bounded time          `test_open_refuses_...`, leases, stragglers, permits;
                                                           test_open_duration.py has the intervals
a slow deployment counts as failing, if configured         `test_slow_...`
operator overrides persist, reloads apply settings         `test_forced_...`, `test_operators_...`, reloads
`literal` opens at its configured numbers, at 60 %         `test_literal_...`
"""

from __future__ import annotations

import heapq
import random
from dataclasses import replace

import pytest

from llm_guard.outcome import FailureKind, Signal
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings, Permit, Sensitivity
from llm_guard.resilience.circuit_breaker.history import BreakerMode, BreakerState, Transition

HEALTHY, UNHEALTHY, NO_EVIDENCE = Signal.HEALTHY, Signal.UNHEALTHY, Signal.NO_EVIDENCE


def acquire(breaker: Breaker, now: float) -> Permit:
    permit = breaker.try_acquire(now)
    assert permit is not None
    return permit


def call(breaker: Breaker, signal: Signal, now: float) -> Transition | None:
    return breaker.settle(acquire(breaker, now), signal, now)


def calls(breaker: Breaker, pattern: str, now: float = 0.0) -> Transition | None:
    """Makes one call per letter, H(ealthy) or U(nhealthy); returns the last transition."""
    transition = None
    for letter in pattern:
        transition = call(breaker, HEALTHY if letter == "H" else UNHEALTHY, now)
    return transition


def fail_in_a_row(breaker: Breaker, now: float) -> Transition | None:
    """Makes as many failing calls as open a quiet breaker, the last one at `now`; returns the last transition."""
    calls(breaker, "U" * (breaker.settings.consecutive_failures - 1), now - 1.0)
    return call(breaker, UNHEALTHY, now)


def opened(settings: BreakerSettings | None = None, now: float = 0.0) -> Breaker:
    breaker = Breaker(settings or BreakerSettings(early_probes=False))
    fail_in_a_row(breaker, now)
    assert breaker.snapshot(now).state == "open"
    return breaker


def state(breaker: Breaker, now: float = 0.0) -> str:
    return breaker.snapshot(now).state


@pytest.mark.parametrize("threshold", [1, 2, 3, 5, 8])
def test_quiet_deployment_opens_at_exactly_the_threshold(threshold: int) -> None:
    breaker = Breaker(BreakerSettings(early_probes=False, consecutive_failures=threshold))
    assert calls(breaker, "U" * (threshold - 1)) is None
    transition = call(breaker, UNHEALTHY, 1.0)
    assert transition == Transition("closed", "open", 1.0, f"{threshold} failures in a row")


def test_success_ends_a_run() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False))
    calls(breaker, "UUUUH")
    assert breaker.snapshot(0.0).consecutive_failures == 0
    assert calls(breaker, "UUUU", 60.0) is None
    assert calls(breaker, "H", 600.0) is None


@pytest.mark.parametrize("threshold", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("successes", [0, 1, 2, 3, 7, 40])
def test_quiet_deployment_opens_at_exactly_the_threshold_after_any_successes(threshold: int, successes: int) -> None:
    breaker = Breaker(BreakerSettings(early_probes=False, consecutive_failures=threshold))
    for i in range(successes):
        call(breaker, HEALTHY, float(i))
    assert calls(breaker, "U" * (threshold - 1), 50.0) is None
    assert calls(breaker, "U", 50.25) is not None


def test_few_calls_with_one_failure_require_more_than_the_threshold() -> None:
    """A brownout is visible in the first calls: where two of four failed, five failures in a row are no surprise."""
    breaker = Breaker(BreakerSettings(early_probes=False))
    calls(breaker, "UHUH")
    assert calls(breaker, "UUUUUUUU", 1.0) is None
    while state(breaker) == "closed":
        calls(breaker, "U", 2.0)
    assert 8 < breaker.snapshot(0.0).consecutive_failures < 20


def test_run_does_not_age() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False))
    for day in range(4):
        call(breaker, UNHEALTHY, day * 86_400.0)
    assert breaker.snapshot(400_000.0).calls == 0
    assert call(breaker, UNHEALTHY, 400_000.0) is not None


def healthy_minute(calls_per_s: float) -> Breaker:
    breaker = Breaker(BreakerSettings(early_probes=False))
    for i in range(int(60 * calls_per_s)):
        call(breaker, HEALTHY, i / calls_per_s)
    return breaker


@pytest.mark.parametrize(
    ("calls_per_s", "failures"), [(0.5, 5), (1, 5), (10, 5), (20, 5), (50, 13), (100, 25), (400, 101)]
)
def test_outage_after_healthy_traffic_opens_at_the_fifth_failure_or_after_a_quarter_of_a_second(
    calls_per_s: float, failures: int
) -> None:
    breaker = healthy_minute(calls_per_s)
    for i in range(failures - 1):
        assert call(breaker, UNHEALTHY, 60 + i / calls_per_s) is None
    assert call(breaker, UNHEALTHY, 60 + failures / calls_per_s) is not None


@pytest.mark.parametrize("seed", range(8))
def test_brownout_from_a_cold_start_does_not_open_by_chance_but_in_its_very_first_calls(seed: int) -> None:
    """A minute at 160 attempts/s, of which 40 % fail. The first 20 alternate, so that they are not all failures."""
    dice = random.Random(seed)
    breaker = Breaker(BreakerSettings(early_probes=False))
    for i in range(9600):
        is_failure = i % 2 == 0 if i < 20 else dice.random() < 0.4
        assert call(breaker, UNHEALTHY if is_failure else HEALTHY, i / 160) is None
    for i in range(48):
        if call(breaker, UNHEALTHY, 60 + i / 160) is not None:
            return
    raise AssertionError("0.3 s of outage left it closed")


@pytest.mark.parametrize("share", [0.1, 0.2, 0.4])
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_brownout_does_not_open_by_chance(share: float, seed: int) -> None:
    """Ten minutes at 100 calls/s, after a healthy minute. At 40 % failures, five in a row occur every 2 s."""
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
        calls(breaker, "U", 180 + failures / 100)
        failures += 1
    assert 5 < failures <= 26


@pytest.mark.parametrize("share", [0.1, 0.4, 0.6])
@pytest.mark.parametrize("seed", range(10))
def test_random_failures_never_open_it(share: float, seed: int) -> None:
    """A minute at 100 calls/s from a cold start. `python -m benchmarks frontier` runs ten minutes."""
    dice = random.Random(f"{share} {seed}")
    breaker = Breaker(BreakerSettings())
    for i in range(6_000):
        transition = call(breaker, UNHEALTHY if dice.random() < share else HEALTHY, i / 100)
        assert transition is None, f"{transition} after {i / 100} s"


@pytest.mark.parametrize("calls_per_s", [50, 100])
@pytest.mark.parametrize("seed", range(8))
def test_random_failures_that_take_longer_than_answers_never_open_it(calls_per_s: int, seed: int) -> None:
    """The first failures to arrive belong to calls that were sent together with others that succeeded."""
    dice = random.Random(f"{calls_per_s} {seed}")
    check_random_failures(dice, calls_per_s, share=0.9, fails_s=(0.5, 1.0), answer_s=0.2)


@pytest.mark.parametrize("share", [0.1, 0.4, 0.6])
@pytest.mark.parametrize("seed", range(5))
def test_random_failures_that_take_more_or_less_time_than_others_never_open_it(share: float, seed: int) -> None:
    """Answers take longer than failures: until they arrive, calls that have not failed show that not all calls fail."""
    check_random_failures(random.Random(f"{share} {seed}"), 100, share=share, fails_s=(0.8, 1.2), answer_s=2.0)


def check_random_failures(
    dice: random.Random, calls_per_s: int, share: float, fails_s: tuple[float, float], answer_s: float
) -> None:
    """Checks that the breaker stays closed during ten seconds of Poisson arrivals from a cold start."""
    breaker, due = Breaker(BreakerSettings()), list[tuple[float, int, Permit, Signal]]()
    sent_at = 0.0
    for i in range(10 * calls_per_s):
        sent_at += dice.expovariate(calls_per_s)
        while due and due[0][0] <= sent_at:
            at, _, permit, signal = heapq.heappop(due)
            assert breaker.settle(permit, signal, at) is None, f"opens after {at} s"
        is_failure = dice.random() < share
        took_s = dice.uniform(*fails_s) if is_failure else answer_s
        heapq.heappush(due, (sent_at + took_s, i, acquire(breaker, sent_at), UNHEALTHY if is_failure else HEALTHY))


def test_outage_with_slow_failures_is_noticed_as_soon_as_one_with_quick_ones() -> None:
    """Failures of calls sent before the last success do not count. The failures of the outage were sent later."""
    breaker = healthy_minute(50)
    mixed = [acquire(breaker, 60.0) for _ in range(3)]
    call(breaker, HEALTHY, 60.2)
    for permit in mixed:
        assert breaker.settle(permit, UNHEALTHY, 60.5) is None
    later = [acquire(breaker, 60.5 + i / 50) for i in range(13)]
    transitions = [breaker.settle(permit, UNHEALTHY, permit.sent_at + 1.0) for permit in later]
    assert [transition is None for transition in transitions] == [True] * 12 + [False]


@pytest.mark.parametrize("seed", range(4))
def test_outage_with_varying_failures_is_noticed_after_half_a_second(seed: int) -> None:
    """Answers took 2 s, so a run must last half a second. Calls that failed out of order are not survivors."""
    dice, breaker = random.Random(seed), healthy_minute(50)
    due: list[tuple[float, int, Permit, Signal]] = []
    for i in range(300):
        at = 60.0 + i / 50
        took_s = 2.0 if at < 62.0 else dice.uniform(0.8, 1.2)
        heapq.heappush(due, (at + took_s, i, acquire(breaker, at), HEALTHY if at < 62.0 else UNHEALTHY))
    now = 0.0
    while breaker.state == "closed":
        now, _, permit, signal = heapq.heappop(due)
        breaker.settle(permit, signal, now)
    assert now < 64.7, "the last answer comes at 64 s"


def test_outage_may_end_as_a_brownout() -> None:
    """Otherwise the first five failures in a row would be an outage: at 60 % failures every second time, and at 90 %
    the first 23 would. An outage that resumes is detected within a second at 50 calls/s."""
    breaker = opened(BreakerSettings())
    call(breaker, HEALTHY, 0.25)
    call(breaker, UNHEALTHY, 2.0)
    calls(breaker, "UUUUUUUUU", 4.0)
    assert state(breaker, 4.0) == "closed"
    while state(breaker, 4.0) == "closed":
        calls(breaker, "U", 4.0)
    assert 30 < breaker.snapshot(4.0).consecutive_failures < 45


def test_outage_is_forgotten_as_calls_succeed() -> None:
    breaker = opened(BreakerSettings())
    call(breaker, HEALTHY, 0.25)
    for i in range(100):
        call(breaker, HEALTHY, 1.0 + i)
    calls(breaker, "UUUUU", 102.0)
    assert state(breaker, 102.0) == "open"


def by_rate(**changed: object) -> Breaker:
    """Returns a breaker that no run of failures opens and that applies its configured numbers literally."""
    settings = BreakerSettings(sensitivity="literal", early_probes=False, consecutive_failures=10_000)
    return Breaker(replace(settings, **changed))  # type: ignore[arg-type]


def test_all_calls_failing_opens_by_rate_once_there_are_enough() -> None:
    breaker = by_rate()
    assert calls(breaker, "U" * 19) is None
    assert calls(breaker, "U") == Transition("closed", "open", 0.0, "20 of 20 calls failed within 60 s")


def test_failures_of_an_earlier_window_do_not_count_while_a_slot_continues() -> None:
    breaker = by_rate()
    calls(breaker, "U" * 18)
    calls(breaker, "H", 58.0)
    assert calls(breaker, "U", 61.0) is None  # in the slot of second 58
    assert breaker.snapshot(61.0).calls == 2


def test_share_of_failures_alone_opens_no_statistical_breaker() -> None:
    breaker = by_rate(sensitivity="statistical")
    assert calls(breaker, "UUUUUUUUUH" * 1000) is None


def test_count_window_opens_at_its_minimum_and_not_before() -> None:
    """Scenario A01: window 100, minimum 100."""
    breaker = by_rate(window_calls=100, min_calls=100)
    assert calls(breaker, "U" * 99) is None
    assert calls(breaker, "U") is not None


@pytest.mark.parametrize(("pattern", "after"), [("HHHHHUUUUU", "open"), ("HHHHHHUUUU", "closed")])
def test_full_count_window_decides_by_the_share_alone(pattern: str, after: str) -> None:
    """Scenario A02: window 10, minimum 10."""
    breaker = by_rate(window_calls=10, min_calls=10)
    calls(breaker, pattern)
    assert state(breaker) == after


def test_minimum_is_no_larger_than_the_count_window() -> None:
    """Scenario A03: window 10, minimum 100."""
    breaker = by_rate(window_calls=10, min_calls=100)
    assert calls(breaker, "U" * 9) is None
    assert calls(breaker, "U") is not None


def slow_calls(breaker: Breaker, durations: list[float], signal: Signal = HEALTHY) -> list[Transition | None]:
    return [breaker.settle(acquire(breaker, 0.0), signal, 0.0, duration_s=duration) for duration in durations]


def test_slow_calls_open_it_though_none_failed() -> None:
    """Scenario A04: 6 of 10 calls took 2.1 s."""
    settings = {"slow_call": 2.0, "slow_call_rate": 0.6, "window_calls": 10, "min_calls": 10}
    breaker = by_rate(**settings)
    assert slow_calls(breaker, [0.1] * 4 + [2.1] * 5) == [None] * 9
    (transition,) = slow_calls(breaker, [2.1])
    assert transition == Transition("closed", "open", 0.0, "6 of 10 calls took longer than 2 s")
    assert slow_calls(by_rate(**settings), [2.0] * 100) == [None] * 100


def test_slow_calls_need_significance_where_the_window_is_of_time() -> None:
    breaker = by_rate(sensitivity="statistical", slow_call=2.0)
    assert slow_calls(breaker, [3.0] * 28) == [None] * 28
    assert slow_calls(breaker, [3.0]) != [None]


def test_call_both_slow_and_failed_counts_in_both_rates() -> None:
    breaker = by_rate(slow_call=2.0)
    slow_calls(breaker, [2.1, 1.0], UNHEALTHY)
    breaker.settle(acquire(breaker, 0.0), UNHEALTHY, 0.0)
    seen = breaker.snapshot(0.0)
    assert (seen.calls, seen.failures, seen.slow_calls, seen.failure_share) == (3, 3, 1, 1.0)


def test_slowness_is_ignored_by_default() -> None:
    breaker = by_rate()
    assert slow_calls(breaker, [1e6] * 100) == [None] * 100
    assert breaker.snapshot(0.0).slow_calls == 0


def test_slow_success_ends_a_run() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False, slow_call=2.0))
    calls(breaker, "UUUU")
    slow_calls(breaker, [3.0])
    assert breaker.snapshot(0.0).consecutive_failures == 0


@pytest.mark.parametrize(("duration_s", "after"), [(2.0, "closed"), (2.1, "open"), (None, "closed")])
def test_slow_probe_counts_as_a_failed_one(duration_s: float | None, after: str) -> None:
    breaker = opened(BreakerSettings(early_probes=False, slow_call=2.0))
    breaker.settle(acquire(breaker, 30.0), HEALTHY, 33.0, duration_s)
    assert state(breaker, 33.0) == after


def test_rate_below_the_limit_stays_closed() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False))
    assert calls(breaker, "HHU" * 100) is None
    assert state(breaker) == "closed"


def test_rate_uses_the_window_only() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False))
    calls(breaker, "HU" * 9, 0.0)
    assert calls(breaker, "HU" * 9, 60.0) is None
    seen = breaker.snapshot(60.0)
    assert (seen.calls, seen.failures) == (18, 9)


def test_window_slides_by_tenths() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False))
    for second in range(60):
        call(breaker, HEALTHY, float(second))
    assert [breaker.snapshot(now).calls for now in (59.9, 60.0, 65.9, 66.0, 113.9, 114.0)] == [
        60, 54, 54, 48, 6, 0
    ]  # fmt: skip


def test_success_never_opens() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False, consecutive_failures=100))
    calls(breaker, "U" * 19)
    assert calls(breaker, "H") is None, "though now there are calls enough, and 95 % of them failed"
    assert state(breaker) == "closed"


def test_outcomes_that_are_not_the_deployments_doing_count_for_nothing() -> None:
    """Scenario A08: 1,000 each of bad requests, refused keys, unknown models, client disconnects and rate limits."""
    ignored = [kind for kind in FailureKind if kind.signal is NO_EVIDENCE]
    assert FailureKind.INVALID_REQUEST in ignored
    assert FailureKind.CLIENT_CANCELLED in ignored
    breaker = Breaker(BreakerSettings(early_probes=False))
    for kind in ignored:
        for _ in range(1000):
            assert call(breaker, kind.signal, 0.0) is None
    seen = breaker.snapshot(0.0)
    assert (seen.state, seen.calls, seen.failures, seen.consecutive_failures) == ("closed", 0, 0, 0)


def test_outcome_without_evidence_does_not_end_a_run() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False))
    calls(breaker, "UUUU")
    call(breaker, NO_EVIDENCE, 0.0)
    assert calls(breaker, "U", 1.0) is not None


def test_open_refuses_until_its_time_then_admits_exactly_the_probes() -> None:
    """Scenario A05: 1,000 calls in 4.9 s, then 50 at 5.01 s with three probes allowed."""
    breaker = opened(BreakerSettings(early_probes=False, open_for=5.0, half_open_calls=3))
    for i in range(1000):
        now = i * 0.0049
        assert breaker.try_acquire(now) is None
        assert breaker.retry_after_s(now) == pytest.approx(5 - now)
    permits = [breaker.try_acquire(5.01) for _ in range(50)]
    probes = [permit for permit in permits if permit is not None]
    assert len(probes) == 3
    assert all(probe.is_probe for probe in probes)
    assert breaker.retry_after_s(5.01) == pytest.approx(0.8 + 5.01 / 20), "the lease of a probe"


def test_open_duration_is_measured_on_the_given_clock() -> None:
    """Scenario A16: the breaker reads no other clock, so a wall clock that jumps by an hour cannot matter."""
    breaker = opened(BreakerSettings(early_probes=False, open_for=5.0), now=1e6)
    assert breaker.try_acquire(1e6 + 4.999) is None
    assert breaker.try_acquire(1e6 + 5.0) is not None


def test_half_open_begins_with_the_first_attempt_to_enter() -> None:
    breaker = opened()
    assert state(breaker, 1000.0) == "open"
    assert breaker.retry_after_s(1000.0) == 0.0
    assert acquire(breaker, 1000.0).is_probe
    assert state(breaker, 1000.0) == "half_open"


def test_enough_successful_probes_close_it_with_an_empty_window() -> None:
    breaker = opened(BreakerSettings(early_probes=False, success_threshold=2))
    assert call(breaker, HEALTHY, 30.0) is None
    assert call(breaker, HEALTHY, 31.0) == Transition("half_open", "closed", 31.0, "probes succeeded")
    seen = breaker.snapshot(31.0)
    assert (seen.calls, seen.failures, seen.consecutive_failures) == (0, 0, 0)
    assert (seen.opened_at, seen.probe_at) == (None, None)
    calls(breaker, "UUUU", 32.0)
    assert state(breaker, 32.0) == "closed"


def test_one_failed_probe_opens_it_again_and_forgets_the_successes() -> None:
    breaker = opened(BreakerSettings(early_probes=False, success_threshold=2))
    call(breaker, HEALTHY, 30.0)
    assert call(breaker, UNHEALTHY, 31.0) == Transition("half_open", "open", 31.0, "a probe failed")
    assert call(breaker, HEALTHY, 91.0) is None
    assert call(breaker, HEALTHY, 91.0) is not None


def failed_recoveries(breaker: Breaker, count: int) -> list[float]:
    """Returns the lengths of the openings, each of which ends with a probe that fails at once."""
    now, waits = 0.0, []
    for _ in range(count):
        waits.append(breaker.retry_after_s(now))
        now += waits[-1]
        call(breaker, UNHEALTHY, now)
    return waits


def test_openings_grow_with_the_outage_up_to_the_longest() -> None:
    waits = failed_recoveries(opened(BreakerSettings(early_probes=False, open_jitter=0.0)), 60)
    assert waits[:9] == [30.0] * 9
    assert waits[9] == pytest.approx(270 / 8)
    assert all(wait_s == pytest.approx(min(300.0, max(30.0, sum(waits[:i]) / 8))) for i, wait_s in enumerate(waits))
    assert waits[-1] == 300.0


def test_outage_begins_with_the_first_opening_since_it_was_closed() -> None:
    breaker = opened(BreakerSettings(early_probes=False, open_jitter=0.0))
    call(breaker, UNHEALTHY, 400.0)
    assert breaker.retry_after_s(400.0) == pytest.approx(50.0)
    seen = breaker.snapshot(400.0)
    assert (seen.outage_at, seen.opened_at, seen.probe_at) == (0.0, 400.0, 450.0)
    call(breaker, HEALTHY, 450.0)
    assert breaker.snapshot(450.0).outage_at is None
    calls(breaker, "H" * 100, 451.0)
    fail_in_a_row(breaker, 460.0)
    assert (breaker.retry_after_s(460.0), breaker.snapshot(460.0).outage_at) == (30.0, 460.0)


def test_jitter_only_shortens_and_spreads_evenly() -> None:
    waits = failed_recoveries(opened(BreakerSettings(early_probes=False, max_open_for=30.0)), 100)
    assert waits[0] == 30.0
    assert all(27.0 < wait_s <= 30.0 for wait_s in waits)
    tenths = [int((30.0 - wait_s) / 0.3) for wait_s in waits]
    assert all(8 <= tenths.count(tenth) <= 12 for tenth in range(10))


def test_phase_sets_breakers_that_open_together_apart() -> None:
    waits = []
    for phase in (0.0, 0.25, 0.5):
        breaker = Breaker(BreakerSettings(early_probes=False), phase)
        fail_in_a_row(breaker, 0.0)
        waits.append(breaker.retry_after_s(0.0))
    assert waits == pytest.approx([30.0, 29.25, 28.5])


def test_open_for_above_max_open_for_is_used_unchanged() -> None:
    assert opened(BreakerSettings(early_probes=False, open_for=600.0, max_open_for=300.0)).retry_after_s(0.0) == 600.0


def test_cancelled_probe_returns_its_permit() -> None:
    """Scenario A07, first part: the client disconnected, which proves nothing, and the next probe may go at once."""
    breaker = opened()
    probe = acquire(breaker, 30.0)
    assert breaker.try_acquire(30.0) is None
    assert breaker.settle(probe, NO_EVIDENCE, 31.0) is None
    assert state(breaker, 31.0) == "half_open"
    assert breaker.retry_after_s(31.0) == 0.0
    assert breaker.try_acquire(31.0) is not None


def test_lost_probe_frees_its_place_when_its_lease_ends() -> None:
    """Scenario A07, second part: never settled. A real router stayed half-open for six days: 49,607 refusals."""
    breaker = opened()
    acquire(breaker, 30.0)
    assert breaker.retry_after_s(31.0) == pytest.approx(1.125)
    assert breaker.try_acquire(32.1) is None
    assert breaker.snapshot(32.1).leases == 1
    assert breaker.snapshot(32.3).leases == 0
    assert breaker.retry_after_s(32.3) == 0.0
    assert breaker.try_acquire(32.3) is not None


@pytest.mark.parametrize("open_for", [0.2, 30.0, 600.0])
def test_lease_of_a_probe_does_not_depend_on_the_settings(open_for: float) -> None:
    """The lease used to be as long as the opening: one hung call kept a healthy provider out for up to 5 minutes."""
    breaker = opened(BreakerSettings(early_probes=False, open_for=open_for, max_open_for=600.0))
    acquire(breaker, 800.0)
    assert breaker.retry_after_s(800.0) == pytest.approx(2.125)


@pytest.mark.parametrize(("signal", "after"), [(HEALTHY, "closed"), (UNHEALTHY, "open")])
def test_probe_slower_than_its_lease_is_still_evidence(signal: Signal, after: str) -> None:
    """Otherwise answers that take 45 s could never close a breaker with leases of 2.1 s."""
    breaker = opened()
    slow = acquire(breaker, 30.0)
    second = acquire(breaker, 60.0)
    assert breaker.settle(slow, signal, 75.0) is not None
    assert state(breaker, 75.0) == after
    breaker.settle(second, HEALTHY, 76.0)
    assert state(breaker, 76.0) == "closed"


def test_slow_probe_without_evidence_does_not_free_the_slot_of_the_next() -> None:
    breaker = opened()
    slow = acquire(breaker, 30.0)
    acquire(breaker, 60.0)
    breaker.settle(slow, NO_EVIDENCE, 61.0)
    assert breaker.try_acquire(61.0) is None


@pytest.mark.parametrize("late", [HEALTHY, UNHEALTHY, NO_EVIDENCE])
def test_stragglers_change_nothing(late: Signal) -> None:
    """Scenario A09: 50 calls admitted while closed end after the breaker opened, and after it became half-open."""
    breaker = Breaker(BreakerSettings(early_probes=False, half_open_calls=2, success_threshold=2))
    early = [acquire(breaker, -2.0) for _ in range(50)]
    fail_in_a_row(breaker, 0.0)
    before = breaker.snapshot(1.0)
    assert [breaker.settle(permit, late, 1.0) for permit in early[:25]] == [None] * 25
    assert breaker.snapshot(1.0) == before
    acquire(breaker, 30.0)
    before = breaker.snapshot(30.0)
    assert [breaker.settle(permit, late, 30.0) for permit in early[25:]] == [None] * 25
    assert breaker.snapshot(30.0) == before
    assert call(breaker, HEALTHY, 30.0) is None
    assert call(breaker, HEALTHY, 30.0) is not None


def test_failed_probe_of_an_earlier_half_open_state_changes_nothing() -> None:
    breaker = opened(BreakerSettings(early_probes=False, half_open_calls=2))
    first = acquire(breaker, 30.0)
    call(breaker, UNHEALTHY, 31.0)
    acquire(breaker, 91.0)
    assert breaker.settle(first, UNHEALTHY, 92.0) is None
    assert breaker.snapshot(92.0).leases == 1
    assert state(breaker, 92.0) == "half_open"


@pytest.mark.parametrize(("threshold", "after"), [(1, "closed"), (2, "half_open")])
@pytest.mark.parametrize("at", [32.0, 92.0])
def test_probe_of_an_earlier_half_open_state_may_still_succeed(at: float, threshold: int, after: str) -> None:
    """Happens where requests fail at random and an answer takes longer than a failure."""
    breaker = opened(BreakerSettings(early_probes=False, half_open_calls=2, success_threshold=threshold))
    first = acquire(breaker, 30.0)
    call(breaker, UNHEALTHY, 31.0)
    if at == 92.0:
        acquire(breaker, 91.0)
    transition = breaker.settle(first, HEALTHY, at)
    assert state(breaker, at) == after
    has_changed = (at, after) != (92.0, "half_open")
    assert (transition is not None) == has_changed
    assert transition is None or transition.after == after


def test_call_of_the_outage_that_is_answered_has_a_probe_pass_at_once() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False))
    calls(breaker, "UUUU", 0.0)
    slow = acquire(breaker, 1.0)
    call(breaker, UNHEALTHY, 60.0)
    assert breaker.try_acquire(62.0) is None
    transition = breaker.settle(slow, HEALTHY, 62.0)
    assert transition is not None
    assert (transition.after, transition.why) == ("half_open", "a call from before the outage succeeded")
    assert call(breaker, HEALTHY, 62.0) is not None
    assert state(breaker, 62.0) == "closed"


def test_slow_call_of_the_outage_is_no_sign_of_health() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False, slow_call=10.0))
    calls(breaker, "UUUU", 0.0)
    slow = acquire(breaker, 1.0)
    call(breaker, UNHEALTHY, 60.0)
    assert breaker.settle(slow, HEALTHY, 62.0, 61.0) is None
    assert state(breaker, 62.0) == "open"


def test_straggler_from_before_the_outage_does_not_count_after_it() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False))
    early = [acquire(breaker, 0.0) for _ in range(5)]
    fail_in_a_row(breaker, 0.0)
    call(breaker, HEALTHY, 30.0)
    assert [breaker.settle(permit, UNHEALTHY, 31.0) for permit in early] == [None] * 5
    assert breaker.snapshot(31.0).calls == 0


def test_permit_counts_once() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False))
    permit = acquire(breaker, 0.0)
    for _ in range(10):
        breaker.settle(permit, UNHEALTHY, 0.0)
    assert breaker.snapshot(0.0).consecutive_failures == 1
    breaker = opened(BreakerSettings(early_probes=False, success_threshold=2))
    probe = acquire(breaker, 30.0)
    breaker.settle(probe, HEALTHY, 30.0)
    assert breaker.settle(probe, HEALTHY, 30.0) is None
    assert state(breaker, 30.0) == "half_open"


def test_snapshot_has_the_whole_state_and_cannot_be_changed() -> None:
    breaker = opened(now=7.0)
    seen = breaker.snapshot(8.0)
    assert (seen.state, seen.opened_at, seen.probe_at, seen.generation) == ("open", 7.0, 37.0, 1)
    assert (seen.consecutive_failures, seen.calls, seen.failures, seen.leases) == (5, 5, 5, 0)
    call(breaker, HEALTHY, 37.0)
    assert (seen.is_forced, seen.failure_share, seen.slow_calls, seen.outage_at) == (False, 1.0, 0, 7.0)
    never: dict[BreakerState, int] = dict.fromkeys(("forced_open", "forced_closed", "metrics_only", "disabled"), 0)
    assert seen.transitions == {"closed": 0, "open": 1, "half_open": 0} | never
    assert breaker.snapshot(37.0).transitions == {"closed": 1, "open": 1, "half_open": 1} | never
    with pytest.raises(AttributeError):
        seen.state = "closed"  # type: ignore[misc]
    with pytest.raises(TypeError):
        seen.transitions["open"] = 0  # type: ignore[index]


def test_new_settings_hold_from_the_next_call_on() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False))
    calls(breaker, "UU")
    breaker.settings = replace(breaker.settings, consecutive_failures=3)
    assert calls(breaker, "U", 1.0) is not None


def test_open_duration_outlives_a_reload() -> None:
    breaker = opened()
    breaker.settings = replace(breaker.settings, open_for=1.0)
    assert breaker.try_acquire(29.9) is None
    assert breaker.try_acquire(30.0) is not None


def test_fewer_probes_after_a_reload_are_granted_once_the_others_are_back() -> None:
    breaker = opened(BreakerSettings(early_probes=False, half_open_calls=3, success_threshold=9))
    probes = [acquire(breaker, 30.0 + i / 10) for i in range(3)]
    breaker.settings = replace(breaker.settings, half_open_calls=1)
    assert breaker.retry_after_s(30.2) == pytest.approx(2.125)
    for probe in probes[:2]:
        breaker.settle(probe, HEALTHY, 31.0)
        assert breaker.try_acquire(31.0) is None
    breaker.settle(probes[2], HEALTHY, 31.0)
    assert breaker.try_acquire(31.0) is not None


def test_shorter_window_after_a_reload_forgets_older_calls() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False))
    calls(breaker, "H" * 10, 0.0)
    calls(breaker, "H" * 10, 30.0)
    breaker.settings = replace(breaker.settings, window=10.0)
    assert breaker.snapshot(35.0).calls == 10


def test_good_light_probe_ends_an_opening_early() -> None:
    breaker = opened()
    assert breaker.note_probe(True, 4.0) == Transition("open", "half_open", 4.0, "a health probe succeeded")
    assert breaker.retry_after_s(4.0) == 0.0
    assert acquire(breaker, 4.0).is_probe
    assert breaker.note_probe(True, 4.0) is None


def test_light_probe_changes_nothing_when_it_fails_or_nothing_is_open() -> None:
    breaker = opened()
    before = breaker.snapshot(4.0)
    assert breaker.note_probe(False, 4.0) is None
    assert breaker.snapshot(4.0) == before
    breaker = Breaker(BreakerSettings(early_probes=False))
    for mode in ("auto", "forced_open", "forced_closed", "metrics_only", "disabled"):
        breaker.force(mode, 5.0)
        before = breaker.snapshot(5.0)
        assert [breaker.note_probe(is_ok, 5.0) for is_ok in (True, False)] == [None, None]
        assert breaker.snapshot(5.0) == before


def test_forced_open_refuses_everything_for_ever() -> None:
    """Scenario A10."""
    breaker = Breaker(BreakerSettings(early_probes=False, state="forced_open"))
    for now in range(0, 10**6, 1000):
        assert breaker.try_acquire(float(now)) is None
        assert breaker.retry_after_s(float(now)) == 30.0
    seen = breaker.snapshot(1e6)
    assert (seen.state, seen.is_forced, seen.generation, seen.opened_at) == ("forced_open", True, 0, None)


@pytest.mark.parametrize(("mode", "counted"), [("forced_closed", 1000), ("metrics_only", 1000), ("disabled", 0)])
def test_forced_states_that_pass_never_open(mode: BreakerMode, counted: int) -> None:
    """Scenario A10: 1,000 calls, all of which fail."""
    breaker = Breaker(BreakerSettings(early_probes=False, state=mode))
    assert calls(breaker, "U" * 1000) is None
    seen = breaker.snapshot(0.0)
    assert (seen.state, seen.calls, seen.failures, seen.consecutive_failures) == (mode, counted, counted, counted)
    assert seen.failure_share == (1.0 if counted else 0.0)
    assert (seen.generation, breaker.retry_after_s(0.0)) == (0, 0.0)


def test_override_is_reported_once_and_its_removal_leaves_an_empty_window() -> None:
    breaker = opened()
    assert breaker.force("metrics_only", 1.0) == Transition("open", "metrics_only", 1.0, "set by an operator")
    assert breaker.force("metrics_only", 1.0) is None
    calls(breaker, "U" * 9, 1.0)
    seen = breaker.snapshot(1.0)
    assert (seen.calls, seen.consecutive_failures, seen.outage_at, seen.generation) == (9, 9, None, 2)
    assert breaker.force("auto", 2.0) == Transition("metrics_only", "closed", 2.0, "set by an operator")
    seen = breaker.snapshot(2.0)
    assert (seen.state, seen.calls, seen.consecutive_failures, seen.outage_at) == ("closed", 0, 0, None)


def test_automatic_override_leaves_an_open_breaker_as_it_is() -> None:
    breaker = opened()
    assert breaker.force("auto", 1.0) is None
    assert breaker.retry_after_s(1.0) == 29.0


def test_reset_closes_for_any_evidence_or_override() -> None:
    breaker = opened()
    assert breaker.reset(1.0, "reset") == Transition("open", "closed", 1.0, "reset")
    assert breaker.snapshot(1.0).calls == 0
    assert breaker.reset(1.0, "reset") is None
    breaker.force("forced_open", 2.0)
    assert breaker.reset(3.0, "reset") == Transition("forced_open", "closed", 3.0, "reset")


def test_reset_restores_the_configured_state() -> None:
    breaker = Breaker(BreakerSettings(state="disabled"))
    assert breaker.reset(1.0, "reset") is None
    breaker.force("forced_open", 2.0)
    assert breaker.reset(3.0, "reset") == Transition("forced_open", "disabled", 3.0, "reset")


def test_permits_from_before_an_override_do_not_count() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False))
    early = acquire(breaker, 0.0)
    breaker.force("forced_closed", 1.0)
    assert breaker.settle(early, UNHEALTHY, 1.0) is None
    assert breaker.snapshot(1.0).calls == 0


def test_changed_state_of_a_reload_applies_at_once_and_an_unchanged_one_leaves_the_override() -> None:
    breaker = opened()
    breaker.force("forced_open", 1.0)
    breaker.settings = replace(breaker.settings, open_for=7.0)
    assert (breaker.state, breaker.retry_after_s(1.0)) == ("forced_open", 7.0)
    breaker.settings = replace(breaker.settings, state="disabled")
    assert breaker.state == "disabled"
    breaker.settings = replace(breaker.settings, state="auto")
    assert (breaker.state, breaker.snapshot(1.0).generation) == ("closed", 4)


def test_reload_to_automatic_does_not_reset_an_automatic_breaker() -> None:
    breaker = Breaker(BreakerSettings(early_probes=False, state="disabled"))
    breaker.force("auto", 0.0)
    fail_in_a_row(breaker, 0.0)
    breaker.settings = BreakerSettings(early_probes=False)
    assert (breaker.state, breaker.retry_after_s(0.0)) == ("open", 30.0)


def opened_by_failures(sensitivity: Sensitivity) -> tuple[Breaker, float]:
    """Returns a breaker that a run of failures has opened, and when."""
    breaker, now = Breaker(BreakerSettings(sensitivity=sensitivity, open_jitter=0.0)), 1.0
    while breaker.state == "closed":
        now += 0.1
        permit = breaker.try_acquire(now)
        assert permit is not None
        breaker.settle(permit, UNHEALTHY, now)
    return breaker, now


@pytest.mark.parametrize("sensitivity", ["statistical", "literal"])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_extra_probe_beside_a_failing_one_closes_the_circuit(sensitivity: Sensitivity, is_reopened: bool) -> None:
    """A caller that fails slowly used to keep the breaker half-open, and the calls of all others out."""
    breaker, opened_at = opened_by_failures(sensitivity)
    failing = breaker.try_acquire(opened_at + 0.5)
    assert failing is not None
    assert breaker.try_acquire(opened_at + 0.6) is None
    extra = breaker.try_acquire_extra(opened_at + 0.6)
    assert extra is not None
    if is_reopened:
        breaker.settle(failing, UNHEALTHY, opened_at + 0.7)
        assert breaker.state == "open"
    transition = breaker.settle(extra, HEALTHY, opened_at + 0.8)
    assert transition is not None
    assert transition.after == "closed"


def test_extra_probe_ends_an_open_period() -> None:
    breaker, opened_at = opened_by_failures("statistical")
    assert breaker.try_acquire(opened_at + 0.1) is None
    assert breaker.try_acquire_extra(opened_at + 0.1) is not None
    assert (breaker.state, breaker.snapshot(opened_at + 0.1).leases) == ("half_open", 1)


@pytest.mark.parametrize("mode", ["auto", "forced_open", "forced_closed", "metrics_only", "disabled"])
def test_extra_probe_is_granted_only_while_open_or_half_open(mode: BreakerMode) -> None:
    breaker = Breaker(BreakerSettings())
    breaker.force(mode, 1.0)
    assert breaker.try_acquire_extra(2.0) is None


def literal(**changed: object) -> Breaker:
    return Breaker(replace(BreakerSettings(sensitivity="literal"), **changed))  # type: ignore[arg-type]


@pytest.mark.parametrize("calls_per_s", [0.1, 1, 10, 50, 100, 400, 1000])
@pytest.mark.parametrize("threshold", [1, 5, 8])
def test_literal_opens_at_the_configured_run_at_any_pace(calls_per_s: float, threshold: int) -> None:
    breaker = literal(consecutive_failures=threshold, min_calls=2000)
    for i in range(1000):
        call(breaker, HEALTHY, i / calls_per_s)
    now = 1000 / calls_per_s
    assert calls(breaker, "U" * (threshold - 1) + "H" + "U" * (threshold - 1), now) is None
    assert calls(breaker, "U", now) == Transition("closed", "open", now, f"{threshold} failures in a row")


def test_literal_opens_at_the_configured_run_though_calls_fail_all_the_time() -> None:
    breaker = literal(failure_rate=1.0)
    assert calls(breaker, "UUUUH" * 100) is None
    assert calls(breaker, "UUUUU") is not None


@pytest.mark.parametrize("calls_per_s", [0.5, 10, 1000])
def test_literal_opens_at_the_configured_share_once_there_are_enough_calls(calls_per_s: float) -> None:
    breaker = literal(consecutive_failures=10_000)
    for i, letter in enumerate("HU" * 9 + "U"):
        assert call(breaker, UNHEALTHY if letter == "U" else HEALTHY, i / calls_per_s) is None
    transition = call(breaker, UNHEALTHY, 20 / calls_per_s)
    assert transition is not None
    assert transition.why == "11 of 20 calls failed within 60 s"


def test_literal_stays_closed_just_below_the_share() -> None:
    breaker = literal(failure_rate=0.6)
    assert calls(breaker, "HUUHU" * 3 + "HUHUH") is None
    assert breaker.snapshot(0.0).failure_share == 0.55
    assert calls(breaker, "UU") is None, "13 of 22"
    assert calls(breaker, "HUU") == Transition("closed", "open", 0.0, "15 of 25 calls failed within 60 s")


def test_literal_opens_with_the_success_that_makes_the_calls_enough() -> None:
    breaker = literal(consecutive_failures=10_000)
    calls(breaker, "U" * 19)
    assert calls(breaker, "H") == Transition("closed", "open", 0.0, "19 of 20 calls failed within 60 s")


def test_literal_counts_slow_calls_as_they_are_configured_too() -> None:
    breaker = literal(slow_call=2.0, min_calls=10)
    assert slow_calls(breaker, [1.0] * 2 + [3.0] * 7) == [None] * 9
    (transition,) = slow_calls(breaker, [3.0])
    assert transition == Transition("closed", "open", 0.0, "8 of 10 calls took longer than 2 s")


def calls_until_open(breaker: Breaker, share: float, calls_per_s: float, seed: int, most: int = 20_000) -> int | None:
    """Returns the number of random calls until the breaker opens, or None if it stays closed."""
    dice = random.Random(seed)
    for i in range(most):
        if call(breaker, UNHEALTHY if dice.random() < share else HEALTHY, i / calls_per_s) is not None:
            return i + 1
    return None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.6, 0.7, 0.9])
def test_literal_opens_at_sixty_percent_random_failures_and_above(share: float, seed: int) -> None:
    opened_after = calls_until_open(literal(consecutive_failures=10_000), share, 10, seed)
    assert opened_after is not None
    assert 20 <= opened_after <= 60


@pytest.mark.parametrize(("share", "calls_needed"), [(1.0, 20), (0.8, 39), (0.6, 205), (0.55, 460)])
def test_statistical_needs_the_slow_calls_that_the_reference_names(share: float, calls_needed: int) -> None:
    """The slow calls are spread as evenly as possible, at 10 calls a second."""
    breaker, slow = by_rate(sensitivity="statistical", slow_call=2.0, slow_call_rate=0.5), 0
    for i in range(calls_needed):
        assert state(breaker) == "closed"
        is_slow = (i + 1) * share >= slow + 1 - 1e-9
        slow += is_slow
        breaker.settle(acquire(breaker, i / 10), HEALTHY, i / 10, duration_s=3.0 if is_slow else 0.1)
    assert state(breaker) == "open"


def test_reload_changes_the_sensitivity_from_the_next_call_on() -> None:
    breaker = healthy_minute(100)
    assert calls(breaker, "U" * 12, 60.0) is None
    breaker.settings = replace(breaker.settings, sensitivity="literal")
    assert calls(breaker, "U", 60.0) is not None


def test_cause_of_an_outage_is_remembered_through_all_its_probes() -> None:
    breaker = opened(BreakerSettings())
    for _ in range(20):
        now = breaker.snapshot(0.0).probe_at or 0.0
        acquire(breaker, now)
        assert breaker.snapshot(now).why == "5 failures in a row"
        breaker.note_probe(True, now)
        breaker.settle(acquire(breaker, now + 4.0), UNHEALTHY, now + 4.0)
        assert breaker.snapshot(now).why == "5 failures in a row"
    assert "5 failures in a row" not in {transition.why for transition in breaker.snapshot(0.0).latest}
    call(breaker, HEALTHY, 1000.0)
    assert breaker.snapshot(1000.0).why is None


def test_cause_of_a_forced_state_is_the_operator_and_nothing_where_the_config_sets_it() -> None:
    breaker = opened()
    breaker.force("forced_open", 1.0)
    assert breaker.snapshot(1.0).why == "set by an operator"
    breaker.force("metrics_only", 2.0)
    assert breaker.snapshot(2.0).why == "set by an operator"
    breaker.force("auto", 3.0)
    assert breaker.snapshot(3.0).why is None
    assert opened().snapshot(0.0).why == "5 failures in a row"
    assert Breaker(BreakerSettings(state="disabled")).snapshot(0.0).why is None
    calls(breaker, "U" * 5, 4.0)
    breaker.settings = replace(breaker.settings, state="forced_open")
    assert breaker.snapshot(4.0).why is None
