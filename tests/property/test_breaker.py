"""A walk through the breaker's states. Times are multiples of a quarter second, so that sums are exact."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from llm_guard.outcome import Signal
from llm_guard.policy.breaker import Breaker, BreakerSettings, BreakerSnapshot, Permit

quarters = st.integers(0, 40).map(lambda n: n / 4)
signals = st.sampled_from(Signal)
picks = st.integers(0, 10**6)
breaker_settings = st.builds(
    BreakerSettings,
    consecutive_failures=st.integers(1, 5),
    failure_rate=st.sampled_from([0.25, 0.5, 1.0]),
    window=st.sampled_from([1.0, 10.0, 60.0]),
    min_calls=st.integers(1, 20),
    open_for=st.sampled_from([0.5, 2.0, 8.0]),
    max_open_for=st.sampled_from([0.25, 8.0, 64.0]),
    half_open_calls=st.integers(1, 3),
    success_threshold=st.integers(1, 3),
)


class BreakerWalk(RuleBasedStateMachine):
    entered: ClassVar[dict[str, int]] = {"closed": 0, "open": 0, "half_open": 0}
    stragglers_settled: ClassVar[int] = 0
    leases_lost: ClassVar[int] = 0

    @initialize(chosen=breaker_settings)
    def begin(self, chosen: BreakerSettings) -> None:
        self.now = 1000.0
        self.breaker = Breaker(chosen)
        self.out: list[Permit] = []
        self.done: list[Permit] = []
        self.lease_ends: dict[Permit, float] = {}
        self.successes = 0

    def seen(self) -> BreakerSnapshot:
        return self.breaker.snapshot(self.now)

    def live_leases(self) -> int:
        generation = self.seen().generation
        return sum(p.generation == generation and at > self.now for p, at in self.lease_ends.items())

    def acquire(self) -> Permit | None:
        before, live = self.seen(), self.live_leases()
        permit = self.breaker.try_acquire(self.now)
        after = self.seen()
        if before.state == "closed":
            assert permit is not None
            assert not permit.is_probe
        elif before.state == "open" and before.probe_at is not None and self.now < before.probe_at:
            assert permit is None
            assert after == before
        else:
            assert after.state == "half_open"
            assert (permit is not None) == (live < self.breaker.settings.half_open_calls)
            if before.state == "open":
                self.successes = 0
        if permit is None:
            return None
        assert permit.generation == after.generation
        if permit.is_probe:
            assert after.opened_at is not None
            assert after.probe_at is not None
            self.lease_ends[permit] = self.now + max(1.0, after.probe_at - after.opened_at)
            assert self.live_leases() <= self.breaker.settings.half_open_calls
        self.out.append(permit)
        return permit

    def settle(self, permit: Permit, signal: Signal) -> None:
        before = self.seen()
        transition = self.breaker.settle(permit, signal, self.now)
        after = self.seen()
        self.out.remove(permit)
        self.done.append(permit)
        self.lease_ends.pop(permit, None)
        if permit.generation != before.generation:
            type(self).stragglers_settled += 1
            assert (transition, after) == (None, before)
        elif signal is Signal.NO_EVIDENCE:
            assert transition is None
            assert (after.state, after.calls, after.failures) == (before.state, before.calls, before.failures)
        elif permit.is_probe:
            self.successes += signal is Signal.HEALTHY
            is_enough = self.successes >= self.breaker.settings.success_threshold
            expected = "open" if signal is Signal.UNHEALTHY else "closed" if is_enough else "half_open"
            assert after.state == expected
        else:
            assert signal is Signal.UNHEALTHY or after.state == "closed"
        assert (transition is None) == (after.state == before.state)
        if transition is not None:
            assert (transition.before, transition.after) == (before.state, after.state)
            assert transition.at == self.now

    @rule(passed_s=quarters)
    def time_passes(self, passed_s: float) -> None:
        self.now += passed_s

    @rule()
    def someone_asks(self) -> None:
        self.acquire()

    @precondition(lambda self: self.out)
    @rule(pick=picks, signal=signals)
    def an_attempt_ends(self, pick: int, signal: Signal) -> None:
        self.settle(self.out[pick % len(self.out)], signal)

    @precondition(lambda self: self.done)
    @rule(pick=picks, signal=signals)
    def a_permit_is_settled_twice(self, pick: int, signal: Signal) -> None:
        before = self.seen()
        assert self.breaker.settle(self.done[pick % len(self.done)], signal, self.now) is None
        assert self.seen() == before

    @precondition(lambda self: self.seen().state == "closed")
    @rule()
    def an_outage_opens_it(self) -> None:
        for _ in range(50):
            permit = self.acquire()
            assert permit is not None
            self.settle(permit, Signal.UNHEALTHY)
            if self.seen().state == "open":
                return
        raise AssertionError("50 failures in a row left it closed")

    @rule()
    def waiting_as_told_is_always_enough(self) -> None:
        wait_s = self.breaker.retry_after_s(self.now)
        opening_s = (self.seen().probe_at or 0.0) - (self.seen().opened_at or 0.0)
        assert 0 <= wait_s <= max(1.0, opening_s)
        if wait_s > 0:
            assert self.acquire() is None
        self.now += wait_s
        assert self.acquire() is not None

    @precondition(lambda self: self.seen().state != "closed")
    @rule()
    def every_probe_out_is_lost(self) -> None:
        self.now += self.breaker.retry_after_s(self.now)
        while self.acquire() is not None:
            pass
        lost = self.live_leases()
        type(self).leases_lost += lost
        self.now += self.breaker.retry_after_s(self.now)
        assert self.acquire() is not None

    @precondition(lambda self: self.seen().state != "closed")
    @rule()
    def cancelled_probe_returns_its_permit(self) -> None:
        self.now += self.breaker.retry_after_s(self.now)
        permit = self.acquire()
        assert permit is not None
        live = self.seen().leases
        self.settle(permit, Signal.NO_EVIDENCE)
        assert self.seen().leases == live - 1
        assert self.breaker.retry_after_s(self.now) == 0
        assert self.acquire() is not None

    @precondition(lambda self: self.seen().state != "closed")
    @rule(signal=st.sampled_from([Signal.HEALTHY, Signal.UNHEALTHY]))
    def a_probe_comes_back_with_news(self, signal: Signal) -> None:
        self.now += self.breaker.retry_after_s(self.now)
        permit = self.acquire()
        assert permit is not None
        self.settle(permit, signal)

    @rule(chosen=breaker_settings)
    def the_config_is_reloaded(self, chosen: BreakerSettings) -> None:
        before = self.seen()
        self.breaker.settings = chosen
        assert self.seen().state == before.state
        assert self.seen().generation == before.generation

    @invariant()
    def snapshot_agrees_with_itself_and_with_the_model(self) -> None:
        seen = self.seen()
        assert seen.leases == self.live_leases()
        assert 0 <= seen.failures <= seen.calls
        assert sum(seen.transitions.values()) == seen.generation
        assert seen.state == "half_open" or seen.leases == 0

    def teardown(self) -> None:
        for name, count in self.seen().transitions.items():
            type(self).entered[name] += count


def test_breaker_holds_on_every_walk() -> None:
    run_state_machine_as_test(
        BreakerWalk,
        settings=settings(derandomize=True, deadline=None, max_examples=250, stateful_step_count=40),
    )
    # A walk that never gets anywhere proves nothing.
    assert min(BreakerWalk.entered.values()) > 50
    assert BreakerWalk.stragglers_settled > 50
    assert BreakerWalk.leases_lost > 50
