"""A throttle, against simulated providers: it tests whether sending less helps, and sends less only where it does."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf
from random import Random

import pytest

from llm_guard.resilience.throttling.adaptive_throttle import Throttle
from llm_guard.resilience.throttling.observation_window import FailureShare, TrialBaseline
from llm_guard.resilience.throttling.rate_trial import at_least, differs, judge

ANSWER_S, ERROR_S = 0.2, 0.05

Provider = Callable[[float, Random], bool]
"""Decides whether a call that arrives at this instant fails."""


def at_random(share: float) -> Provider:
    return lambda _now, dice: dice.random() < share


def overloaded(per_s: float) -> Provider:
    tokens, at = 1.0, 0.0

    def fails(now: float, _dice: Random) -> bool:
        nonlocal tokens, at
        tokens, at = min(2.0, tokens + (now - at) * per_s), now
        if tokens < 1:
            return True
        tokens -= 1
        return False

    return fails


class World:
    """Sends evenly spaced calls through the throttle and ends them."""

    def __init__(self, provider: Provider, seed: int = 7, answer_s: float = ANSWER_S, error_s: float = ERROR_S) -> None:
        self.provider = provider
        self._answer_s, self._error_s = answer_s, error_s
        self.throttle = Throttle(0.0)
        self.sent: list[float] = []
        self.failed = 0
        self.limited_s = 0.0
        """Seconds during which calls were limited."""
        self.throttled_s = 0.0
        """Seconds during which calls were limited because that had helped."""
        self._dice = Random(seed)
        self._ends: list[tuple[float, float, bool]] = []
        self._waiting = 0

    def run(self, calls_per_s: float, begin_s: float, end_s: float, step_s: float = 0.005) -> None:
        self.sent, self.failed, self.limited_s, self.throttled_s = [], 0, 0.0, 0.0
        due = 0.0
        for step in range(round((end_s - begin_s) / step_s)):
            now = begin_s + step * step_s
            due += calls_per_s * step_s
            while due >= 1:
                due -= 1
                self._waiting += 1
            while self._ends and self._ends[0][0] <= now:
                at, entered_at, is_failure = heapq.heappop(self._ends)
                (self.throttle.note_failure if is_failure else self.throttle.note_ok)(entered_at, at)
            while self._waiting and self.throttle.opens_at(now) <= now:
                self._send(now)
            self.limited_s += step_s * (self.throttle.rate is not None)
            self.throttled_s += step_s * self.throttle.is_throttling

    def _send(self, now: float) -> None:
        self._waiting -= 1
        self.throttle.take(now)
        is_failure = self.provider(now, self._dice)
        self.sent.append(now)
        self.failed += is_failure
        heapq.heappush(self._ends, (now + (self._error_s if is_failure else self._answer_s), now, is_failure))

    @property
    def sent_per_s(self) -> float:
        return len(self.sent) / (self.sent[-1] - self.sent[0])


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4, 0.6, 0.8, 0.9])
@pytest.mark.parametrize("seed", [7, 8, 9])
def test_random_failures_are_not_throttled(share: float, seed: int) -> None:
    """Trials take a small part of the time, and all calls are sent."""
    world = World(at_random(share), seed)
    world.run(100.0, 0.0, 60.0)
    assert world.sent_per_s > 98
    assert world.limited_s < 60 * 0.2


@pytest.mark.parametrize(
    ("share", "calls_per_s", "seconds"), [(0.05, 20.0, 300.0), (0.1, 50.0, 200.0), (0.1, 200.0, 5.0), (0.4, 200.0, 5.0)]
)
@pytest.mark.parametrize("seed", range(8))
def test_failures_that_are_many_by_chance_are_not_taken_for_an_overload(
    share: float, calls_per_s: float, seconds: float, seed: int
) -> None:
    """Holds at the beginning, before the first slow answer, and later, when a trial begins at a high failure share."""
    world = World(at_random(share), seed, answer_s=0.5)
    world.run(calls_per_s, 0.0, seconds)
    assert world.throttled_s == 0


@pytest.mark.parametrize("times", [1.2, 2.0, 5.0])
@pytest.mark.parametrize("capacity", [20.0, 100.0])
def test_overload_is_limited_to_what_the_provider_takes(capacity: float, times: float) -> None:
    world = World(overloaded(capacity))
    world.run(capacity * times, 0.0, 10.0)
    world.run(capacity * times, 10.0, 60.0)
    ok_per_s = (len(world.sent) - world.failed) / 50
    assert ok_per_s >= 0.95 * capacity
    assert len(world.sent) / 50 <= 1.15 * capacity


def test_overload_that_becomes_random_failures_is_admitted_again() -> None:
    world = World(overloaded(50.0))
    world.run(100.0, 0.0, 20.0)
    assert world.throttle.snapshot(20.0).phase in ("trying", "throttling")
    world.provider = at_random(0.6)
    world.run(100.0, 20.0, 35.0)
    world.run(100.0, 35.0, 65.0)
    assert world.limited_s < 30 * 0.2


@pytest.mark.parametrize("seed", range(20))
def test_rate_that_loses_good_responses_is_given_up(seed: int) -> None:
    """The throttle was started by chance."""
    world = World(at_random(0.9), seed)
    world.throttle._before = TrialBaseline(100.0, 0.9)
    world.throttle._try(0.9, 10.0, 0.0)
    world.throttle._keep(0.0)
    world.run(100.0, 0.0, 1.5)
    assert (world.throttle.rate or inf) > 100.0, "a lower rate is not tried first"


def test_rate_that_is_a_little_too_high_is_lowered_once_more() -> None:
    world = World(overloaded(20.0))
    world.throttle._before = TrialBaseline(100.0, 0.8)
    world.throttle._keep(0.0)
    world.throttle._try(0.03, 22.0, 0.0)
    world.run(100.0, 0.0, 12.0)
    assert len(world.sent) <= 12 * 1.15 * 20


def test_single_failure_begins_no_other_trial() -> None:
    throttle = Throttle(0.0)
    throttle._try(0.5, 20.0, 0.0)
    throttle._keep(0.0)
    for i in range(20):
        throttle.take(i / 20)
    throttle.note_failure(0.5, 0.9)
    throttle.opens_at(1.2)
    assert throttle.snapshot(1.2).phase == "throttling"
    throttle.note_failure(0.6, 1.3)
    assert throttle.snapshot(1.3).phase == "trying"


@pytest.mark.parametrize("seed", range(5))
def test_random_failures_that_become_an_overload_are_throttled(seed: int) -> None:
    world = World(at_random(0.3), seed)
    world.run(100.0, 0.0, 30.0)
    world.provider = overloaded(20.0)
    world.run(100.0, 30.0, 34.0)
    world.run(100.0, 34.0, 64.0)
    assert world.sent_per_s <= 1.15 * 20


def test_trial_compares_with_the_usual_share_and_not_with_the_burst_that_begins_it() -> None:
    throttle = Throttle(0.0)
    throttle._usual.add(100, 1000)
    for i in range(40):
        throttle.take(1.0 + i / 50)
        (throttle.note_failure if i % 5 == 0 else throttle.note_ok)(1.0 + i / 50, 1.0 + i / 50)
    assert throttle.snapshot(2.0).phase == "trying"
    assert throttle._share < 0.1


def test_provider_that_takes_more_again_is_sent_more() -> None:
    world = World(overloaded(20.0))
    world.run(100.0, 0.0, 20.0)
    world.provider = overloaded(1000.0)
    world.run(100.0, 20.0, 28.0)
    world.run(100.0, 28.0, 38.0)
    assert world.sent_per_s >= 98


def test_unneeded_rate_is_forgotten() -> None:
    world = World(at_random(0.0))
    world.throttle._try(0.5, 20.0, 0.0)
    world.throttle._keep(0.0)
    world.run(5.0, 0.0, 25.0)
    assert world.throttle.snapshot(25.0).rate is not None
    world.run(5.0, 25.0, 35.0)
    assert world.throttle.snapshot(35.0).rate is None


def test_dead_provider_is_the_breakers() -> None:
    world = World(at_random(1.0))
    world.run(100.0, 0.0, 30.0)
    assert world.limited_s == 0


def test_trial_does_not_wait_for_answers_that_take_a_minute() -> None:
    """The trial begins after the failures have ended, and none of its calls ends before the test does."""
    world = World(at_random(0.0), answer_s=60.0)
    world.run(20.0, 0.0, 5.0)
    world.throttle._try(0.5, 10.0, 5.0)
    world.run(20.0, 5.0, 20.0)
    world.run(20.0, 20.0, 40.0)
    assert world.sent_per_s >= 19


def test_unfinished_trial_delays_no_later_call() -> None:
    world = World(at_random(0.5), answer_s=60.0)
    world.run(100.0, 0.0, 61.0)
    world.throttle._try(0.5, 1.0, 61.0)
    world.provider = at_random(0.0)
    world.run(100.0, 600.0, 602.0)
    world.run(100.0, 602.0, 604.0)
    assert world.sent_per_s >= 98


def test_reset_forgets_the_rate_and_the_next_trial_begins_at_once() -> None:
    world = World(overloaded(20.0))
    world.run(100.0, 0.0, 10.0)
    since = world.throttle.snapshot(10.0).since
    assert since is not None
    assert since < 2.0
    world.throttle.reset(10.0)
    assert world.throttle.snapshot(10.0) == Throttle(10.0).snapshot(10.0)
    world.run(100.0, 10.0, 13.0)
    assert world.throttle.snapshot(13.0).rate is not None


def test_call_that_was_not_sent_returns_its_turn() -> None:
    world = World(overloaded(20.0))
    world.run(100.0, 0.0, 10.0)
    throttle = world.throttle
    at = throttle.opens_at(20.0)
    throttle.take(20.0)
    assert throttle.opens_at(20.0) > 20.0
    assert throttle.wait_s(4, 20.0) > 3 / (throttle.rate or 1.0)
    throttle.put_back(20.0, 20.0)
    assert max(at, 20.0) >= throttle.opens_at(20.0)


@pytest.mark.parametrize("share", [0.1, 0.4, 0.8])
def test_trial_is_decided_by_the_later_share(share: float) -> None:
    calls = 400
    assert judge(share, calls, 0, has_helped=False) == "helps"
    assert judge(share, calls, round(calls * share), has_helped=False) == "helps_not"


def test_undecided_trial_favours_the_earlier_winner() -> None:
    assert judge(0.2, 10, 0, has_helped=True) == "likely"
    assert judge(0.2, 10, 0, has_helped=False) == "unlikely"


def test_share_without_luck_is_used_unchanged() -> None:
    assert at_least(0.2, 25) == pytest.approx(0.12)
    assert at_least(0.0, 25) == 0.02


def test_usual_share_follows_its_recent_value() -> None:
    usual = FailureShare()
    usual.add(0, 1_000_000)
    usual.add(1000, 10_000)
    assert usual.share == pytest.approx(0.1, rel=0.1)
    usual.add(500, 1000)
    assert usual.share == pytest.approx(0.3, rel=0.1)


def test_small_differences_of_few_calls_are_none() -> None:
    assert differs(0.6, 100, 0.3)
    assert not differs(0.6, 20, 0.3)
    assert not differs(0.3, 10_000, 0.2)


def test_calls_that_hung_in_an_outage_do_not_count_after_it() -> None:
    """They time out while others succeed, which looks like an overload."""
    throttle = Throttle(0.0)
    throttle.reset(10.0)
    for number in range(400):
        at = 10.0 + number * 0.01
        throttle.note_failure(5.0, at)
        if number % 4 == 0:
            throttle.note_ok(at - 0.005, at)
    assert throttle.rate is None


@pytest.mark.parametrize("times", [1.5, 2.0])
def test_slow_failures_are_counted_from_the_first_on(times: float) -> None:
    """They arrive 2 s after the good answers to calls that were sent at the same time."""
    world = World(overloaded(20.0), error_s=2.0)
    world.run(20.0 * times, 0.0, 10.0)
    assert world.throttle._before.share == pytest.approx(1 - 1 / times, abs=0.12)
    world.run(20.0 * times, 10.0, 60.0)
    assert (len(world.sent) - world.failed) / 50 >= 0.95 * 20
    assert len(world.sent) / 50 <= 1.15 * 20


def test_burst_at_a_small_load_does_not_lower_the_rate_to_that_load() -> None:
    """24 calls a second are allowed and 10 arrive, of which two fail."""
    throttle = Throttle(0.0)
    throttle._before = TrialBaseline(50.0, 0.6)
    throttle._try(0.5, 24.0, 0.0)
    throttle._keep(0.0)
    for number in range(10):
        throttle.take(number / 10)
        if number < 8:
            throttle.note_ok(number / 10, number / 10 + 0.05)
    throttle.note_failure(0.8, 1.0)
    throttle.note_failure(0.9, 1.1)
    assert throttle.snapshot(1.1).phase == "trying"
    assert throttle.rate == pytest.approx(0.95 * 20.0)
