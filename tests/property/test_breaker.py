"""A walk through the breaker's states. Times are multiples of 1/1024 s, so that sums are exact."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil, inf, sqrt
from typing import ClassVar, get_args

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
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings, BreakerSnapshot, Permit, Sensitivity
from llm_guard.resilience.circuit_breaker.history import BreakerMode, BreakerState, Transition
from tests.effort import repeated

quarters = st.integers(0, 40).map(lambda n: n / 4)
signals = st.sampled_from(Signal)
picks = st.integers(0, 10**6)
modes: st.SearchStrategy[BreakerMode] = st.sampled_from(get_args(BreakerMode))
durations = st.sampled_from([None, 0.25, 1.0, 1.25])
breaker_settings = st.builds(
    BreakerSettings,
    sensitivity=st.sampled_from(get_args(Sensitivity)),
    consecutive_failures=st.integers(1, 5),
    failure_rate=st.sampled_from([0.25, 0.5, 1.0]),
    slow_call=st.sampled_from([None, 1.0]),
    slow_call_rate=st.sampled_from([0.25, 0.8]),
    window=st.sampled_from([1.0, 10.0, 60.0]),
    window_calls=st.sampled_from([None, None, 4, 20]),
    min_calls=st.integers(1, 20),
    open_for=st.sampled_from([0.5, 2.0, 8.0, 32.0, 32.0]),
    max_open_for=st.sampled_from([0.25, 16.0, 64.0]),
    half_open_calls=st.integers(1, 3),
    success_threshold=st.integers(1, 3),
    open_jitter=st.sampled_from([0.0, 0.1, 0.5]),
    early_probes=st.sampled_from([True, True, False]),
    state=st.sampled_from(["auto"] * 12 + ["forced_open", "forced_closed", "metrics_only", "disabled"]),
)
# Floating point: the same length computed in two ways.
EXACT = 1e-9
AUTOMATIC = ("closed", "open", "half_open")
PASSING = ("closed", "forced_closed", "metrics_only", "disabled")


class BreakerWalk(RuleBasedStateMachine):
    entered: ClassVar[dict[BreakerState, int]] = dict.fromkeys(get_args(BreakerState), 0)
    stragglers_settled: ClassVar[int] = 0
    leases_lost: ClassVar[int] = 0
    openings_grown: ClassVar[int] = 0
    slow_probes: ClassVar[int] = 0
    ended_early: ClassVar[int] = 0
    full_windows: ClassVar[int] = 0
    early_failed: ClassVar[Counter[str]] = Counter()
    early_closed: ClassVar[Counter[int]] = Counter()
    overdue_ignored: ClassVar[int] = 0
    late_successes: ClassVar[Counter[str]] = Counter()
    opened_literally: ClassVar[Counter[str]] = Counter()

    @initialize(chosen=breaker_settings, phase=st.sampled_from([0.0, 0.25, 0.96875]))
    def begin(self, chosen: BreakerSettings, phase: float) -> None:
        self.now = 1000.0
        self.breaker = Breaker(chosen, phase)
        self.phase = phase
        self.openings = 0
        self.run = 0
        self.out: list[Permit] = []
        self.done: list[Permit] = []
        self.lease_ends: dict[Permit, float] = {}
        self.successes = 0
        # The current opening, if there is one.
        self.outage_at = self.opened_at = self.ends_at = self.length_s = 0.0
        self.refused = 0
        self.is_brownout = False
        self.why: str | None = None
        self.outage_from = inf
        """When the first call of the outage was sent; inf: the breaker is not open, or not because of a run."""
        self.run_from: float | None = None
        """When the first call was sent of the failures since the last success that were sent after every success."""
        self.ok_place = 0
        self.run_generation = 0

    def seen(self) -> BreakerSnapshot:
        return self.breaker.snapshot(self.now)

    def wait(self) -> None:
        """Advances by retry_after_s and on to the next point of the grid: jittered times fall between two."""
        self.now = ceil((self.now + self.breaker.retry_after_s(self.now)) * 1024) / 1024

    def lease_s(self) -> float:
        return min(2.125, max(1.0, 0.8 + (self.now - self.outage_at) / 20))

    def live_leases(self) -> int:
        generation = self.seen().generation
        return sum(p.generation == generation and at > self.now for p, at in self.lease_ends.items())

    def acquire(self) -> Permit | None:
        before, live = self.seen(), self.live_leases()
        permit = self.breaker.try_acquire(self.now)
        after = self.seen()
        if before.state in PASSING:
            assert permit is not None
            assert not permit.is_probe
            assert after == before
        elif before.state == "forced_open" or (before.state == "open" and self.now < self.ends_at):
            assert permit is None
            assert after == before
        else:
            assert after.state == "half_open"
            assert (permit is not None) == (live < self.breaker.settings.half_open_calls)
            if before.state == "open":
                self.successes = 0
        if permit is None:
            self.refused += before.state in ("open", "half_open")
            return None
        assert permit.generation == after.generation
        if permit.is_probe:
            self.lease_ends[permit] = self.now + self.lease_s()
            assert self.live_leases() <= self.breaker.settings.half_open_calls
        self.out.append(permit)
        return permit

    def settle(self, permit: Permit, signal: Signal, duration_s: float | None = None) -> None:
        before, chosen = self.seen(), self.breaker.settings
        is_slow = duration_s is not None and chosen.slow_call is not None and duration_s > chosen.slow_call
        is_failure = signal is Signal.UNHEALTHY
        self.note_run(permit, signal, before)
        transition = self.breaker.settle(permit, signal, self.now, duration_s)
        after = self.seen()
        self.out.remove(permit)
        self.done.append(permit)
        is_overdue = self.lease_ends.pop(permit, 0.0) <= self.now
        if permit.generation != before.generation:
            type(self).stragglers_settled += 1
            outage_from = self.outage_at if permit.is_probe else self.outage_from
            is_during_outage = before.outage_at is not None and permit.sent_at >= outage_from
            if signal is Signal.HEALTHY and not is_slow and is_during_outage:
                self.succeed_late(permit, before, after)
            else:
                assert after == before
        elif signal is Signal.NO_EVIDENCE:
            assert transition is None
            assert replace(after, leases=before.leases) == before
        elif permit.is_probe and is_overdue and (is_failure or is_slow) and self.live_leases():
            type(self).overdue_ignored += 1
            assert (transition, after) == (None, before)
        elif permit.is_probe:
            type(self).slow_probes += is_slow and not is_failure
            self.successes += not is_failure and not is_slow
            is_enough = self.successes >= chosen.success_threshold
            expected = "open" if is_failure or is_slow else "closed" if is_enough else "half_open"
            assert after.state == expected
            self.run = 0 if after.state == "closed" else self.run
        elif before.state == "disabled":
            assert (transition, after) == (None, before)
        else:
            self.run = self.run + 1 if is_failure else 0
            assert after.consecutive_failures == self.run
            is_literal = chosen.sensitivity == "literal"
            assert is_literal or is_failure or is_slow or after.state == before.state
            if is_literal and before.state == "closed":
                is_enough = after.calls >= min(chosen.min_calls, chosen.window_calls or chosen.min_calls)
                is_run = self.run >= chosen.consecutive_failures
                is_share = is_enough and after.failure_share >= chosen.failure_rate
                slow_share = after.slow_calls / after.calls
                is_slow_share = is_enough and chosen.slow_call is not None and slow_share >= chosen.slow_call_rate
                assert (after.state == "open") == (is_run or is_share or is_slow_share)
                type(self).opened_literally["run" if is_run else "share" if is_share or is_slow_share else ""] += 1
            assert after.state in (before.state, "open")
            assert before.state == "closed" or after.state == before.state
            is_full = chosen.window_calls is not None and after.calls >= chosen.window_calls
            if before.state == "closed" and is_literal and is_full:
                type(self).full_windows += is_failure and after.failure_share == chosen.failure_rate
                assert not is_failure or after.failure_share < chosen.failure_rate or after.state == "open"
            if chosen.window_calls is None:
                counted = (before.calls + 1, before.failures + is_failure, before.slow_calls + is_slow)
                assert (after.calls, after.failures, after.slow_calls) == counted
        assert (transition is None) == (after.state == before.state)
        if transition is not None:
            is_second_step = (before.state, after.state) == ("open", "closed")  # only of a late probe
            assert transition.before == ("half_open" if is_second_step else before.state)
            assert (transition.after, transition.at) == (after.state, self.now)
        if after.state == "open" and transition is not None:
            self.outage_from = self.start_of_outage(transition) if before.state == "closed" else self.outage_from
            is_new_outage, is_brownout = before.state == "closed", "in a row" not in transition.why
            self.open(is_new_outage, is_brownout, self.now - permit.sent_at if permit.is_probe and is_failure else 0.0)

    def note_run(self, permit: Permit, signal: Signal, before: BreakerSnapshot) -> None:
        """Models where the run of failures began, if the call counts for it."""
        if before.state not in ("open", "half_open") and before.generation != self.run_generation:
            self.run_generation, self.run_from, self.ok_place = before.generation, None, 0
        if permit.generation != before.generation or permit.is_probe or before.state == "disabled":
            return
        if signal is Signal.HEALTHY:
            self.run_from, self.ok_place = None, max(self.ok_place, permit.place)
        elif signal is Signal.UNHEALTHY and permit.place >= self.ok_place and self.run_from is None:
            self.run_from = permit.sent_at

    def start_of_outage(self, transition: Transition) -> float:
        is_run = "in a row" in transition.why and self.breaker.settings.sensitivity != "literal"
        return self.run_from if is_run and self.run_from is not None else inf

    def succeed_late(self, permit: Permit, before: BreakerSnapshot, after: BreakerSnapshot) -> None:
        """Models a success of a call that was sent during the outage, in an earlier generation."""
        type(self).late_successes["probe" if permit.is_probe else "call"] += 1
        self.successes = (0 if before.state == "open" else self.successes) + permit.is_probe
        is_enough = permit.is_probe and self.successes >= self.breaker.settings.success_threshold
        assert after.state == ("closed" if is_enough else "half_open")
        self.run = 0 if is_enough else self.run

    def open(self, is_new_outage: bool, is_brownout: bool, probe_took_s: float = 0.0) -> None:
        """Models the length of an opening: from the settings and the outage, shortened by the jitter and by the time
        that an early probe took."""
        chosen = self.breaker.settings
        if is_new_outage:
            self.outage_at, self.is_brownout, self.refused = self.now, is_brownout, 0
            self.why = self.breaker.history.latest()[-1].why
        outage_s = self.now - self.outage_at
        if chosen.early_probes:
            least_s = 0.25 if is_new_outage or self.is_brownout else 0.8
            busy_s = max(min(0.2 + outage_s / 40, 1.25), 250 * outage_s / self.refused) if self.refused else inf
            longest = min(least_s + outage_s / 40, 1.25, busy_s, chosen.open_for)
            type(self).early_failed["new" if is_new_outage else "brownout" if self.is_brownout else "outage"] += 1
        else:
            longest = max(chosen.open_for, min(outage_s / 8, chosen.max_open_for))
            type(self).openings_grown += longest > chosen.open_for
        draw = (self.phase + self.openings * ((sqrt(5) - 1) / 2)) % 1.0
        self.openings += 1
        self.opened_at = self.now
        length_s = longest * (1 - chosen.open_jitter * draw)
        assert longest * (1 - chosen.open_jitter) <= length_s <= longest
        self.length_s = max(0.0, length_s - probe_took_s) if chosen.early_probes else length_s
        self.ends_at = self.now + self.length_s

    @rule(passed_s=quarters)
    def time_passes(self, passed_s: float) -> None:
        self.now += passed_s

    @rule()
    def a_call_asks_for_a_permit(self) -> None:
        self.acquire()

    @precondition(lambda self: self.seen().state in ("open", "half_open"))
    @rule()
    def another_caller_sends_an_extra_probe(self) -> None:
        before = self.seen()
        permit = self.breaker.try_acquire_extra(self.now)
        assert permit is not None
        assert permit.is_probe
        assert self.seen().state == "half_open"
        if before.state == "open":
            self.successes = 0
        self.lease_ends[permit] = self.now + self.lease_s()
        self.out.append(permit)

    @precondition(lambda self: self.out)
    @rule(pick=picks, signal=signals, duration_s=durations)
    def an_attempt_ends(self, pick: int, signal: Signal, duration_s: float | None) -> None:
        self.settle(self.out[pick % len(self.out)], signal, duration_s)

    @precondition(lambda self: self.done)
    @rule(pick=picks, signal=signals)
    def a_permit_is_settled_twice(self, pick: int, signal: Signal) -> None:
        before = self.seen()
        assert self.breaker.settle(self.done[pick % len(self.done)], signal, self.now) is None
        assert self.seen() == before

    def open_it(self) -> None:
        for _ in range(200):
            permit = self.acquire()
            assert permit is not None
            self.settle(permit, Signal.UNHEALTHY)
            if self.seen().state == "open":
                return
        raise AssertionError("200 failures in a row left it closed")

    @precondition(lambda self: self.seen().state == "closed")
    @rule()
    def an_outage_opens_it(self) -> None:
        self.open_it()

    @precondition(lambda self: self.seen().state == "closed")
    @rule(is_probe=st.booleans())
    def a_call_of_the_outage_succeeds_late(self, is_probe: bool) -> None:
        self.breaker.settings = replace(
            self.breaker.settings, sensitivity="statistical", consecutive_failures=2, half_open_calls=2
        )
        if is_probe:
            self.open_it()
            self.wait()
        failed, slow = self.acquire(), self.acquire()
        assert failed is not None
        assert slow is not None
        self.settle(failed, Signal.UNHEALTHY)
        if not is_probe:
            self.open_it()
        self.settle(slow, Signal.HEALTHY)

    @precondition(lambda self: self.seen().state == "closed")
    @rule(failures=st.sampled_from([3, 2, 1, 0]))
    def an_outage_turns_out_to_be_a_blip(self, failures: int) -> None:
        """So many early probes fail; the next ones succeed."""
        self.breaker.settings = replace(self.breaker.settings, open_for=32.0, early_probes=True)
        self.open_it()
        for _ in range(failures):
            self.a_probe_comes_back_with_news(Signal.UNHEALTHY, None)
        while self.seen().state != "closed":
            self.a_probe_comes_back_with_news(Signal.HEALTHY, None)
        assert self.now - self.outage_at < 4 + self.breaker.settings.success_threshold
        type(self).early_closed[failures] += 1

    @precondition(lambda self: self.seen().state == "closed" and self.breaker.settings.window_calls is not None)
    @rule()
    def a_full_count_window_reaches_its_limit(self) -> None:
        chosen = self.breaker.settings = replace(self.breaker.settings, sensitivity="literal")
        size = chosen.window_calls or 0
        failures = int(size * chosen.failure_rate)
        for i in range(size + failures):
            permit = self.acquire()
            assert permit is not None
            self.settle(permit, Signal.UNHEALTHY if i >= size else Signal.HEALTHY)
            if self.seen().state == "open":
                return
        raise AssertionError("it stayed closed at its limit")

    @precondition(lambda self: self.seen().state == "closed")
    @rule()
    def a_brownout_opens_it_and_its_first_probe_fails(self) -> None:
        self.breaker.settings = replace(
            self.breaker.settings, sensitivity="literal", early_probes=True, failure_rate=0.5, min_calls=2,
            consecutive_failures=10_000, window_calls=None,
        )  # fmt: skip
        while self.seen().state == "closed":
            permit = self.acquire()
            assert permit is not None
            self.settle(permit, Signal.UNHEALTHY)
        self.wait()
        permit = self.acquire()
        assert permit is not None
        self.settle(permit, Signal.UNHEALTHY)

    @precondition(lambda self: self.seen().state in ("open", "half_open"))
    @rule(passed_s=st.sampled_from([100.0, 400.0]), early_probes=st.booleans())
    def a_recovery_fails_late(self, passed_s: float, early_probes: bool) -> None:
        chosen = replace(self.breaker.settings, early_probes=early_probes, open_for=2.0, max_open_for=16.0)
        self.breaker.settings = chosen
        self.now += passed_s
        self.wait()
        permit = self.acquire()
        assert permit is not None
        self.settle(permit, Signal.UNHEALTHY)

    @rule(is_ok=st.booleans())
    def a_light_probe_comes_back(self, is_ok: bool) -> None:
        before = self.seen()
        transition = self.breaker.note_probe(is_ok, self.now)
        if is_ok and before.state == "open":
            assert transition is not None
            assert self.seen().state == "half_open"
            self.successes = 0
            type(self).ended_early += 1
        else:
            assert (transition, self.seen()) == (None, before)

    @precondition(lambda self: self.seen().state == "open")
    @rule()
    def a_light_probe_finds_it_well(self) -> None:
        self.a_light_probe_comes_back(is_ok=True)

    @precondition(lambda self: self.seen().outage_at is not None and self.breaker.settings.slow_call is not None)
    @rule()
    def a_probe_is_slow(self) -> None:
        self.wait()
        permit = self.acquire()
        assert permit is not None
        self.settle(permit, Signal.HEALTHY, 1.25)

    @precondition(lambda self: self.seen().state in ("open", "half_open"))
    @rule(signal=signals, duration_s=durations)
    def a_probe_outlives_its_lease(self, signal: Signal, duration_s: float | None) -> None:
        """Another probe is in flight by then."""
        self.wait()
        overdue = self.acquire()
        self.now += 4.0
        self.wait()
        self.acquire()
        if overdue is not None:
            self.settle(overdue, signal, duration_s)

    @rule(mode=modes)
    def an_operator_overrides(self, mode: BreakerMode) -> None:
        self.check_override(mode, self.breaker.force(mode, self.now))

    @precondition(lambda self: self.seen().is_forced)
    @rule()
    def an_operator_lets_go(self) -> None:
        self.breaker.force("auto", self.now)
        assert self.seen().state == "closed"
        self.run = 0

    @precondition(lambda self: self.seen().is_forced)
    @rule(passed_s=quarters)
    def a_forced_state_outlives_everything(self, passed_s: float) -> None:
        before = self.seen()
        self.now += 1000 + passed_s
        for _ in range(30):
            permit = self.acquire()
            assert (permit is None) == (before.state == "forced_open")
            if permit is not None:
                self.settle(permit, Signal.UNHEALTHY, 1.25)
        assert self.seen().state == before.state
        assert self.seen().generation == before.generation

    def check_override(self, mode: BreakerMode, transition: Transition | None) -> None:
        seen = self.seen()
        assert seen.state == mode or (mode == "auto" and not seen.is_forced)
        if transition is None:
            return
        assert (transition.after, transition.at) == (seen.state, self.now)
        assert (seen.calls, seen.consecutive_failures, seen.outage_at) == (0, 0, None)
        self.run = 0

    @precondition(lambda self: self.seen().state != "forced_open")
    @rule()
    def reported_wait_is_always_enough(self) -> None:
        wait_s = self.breaker.retry_after_s(self.now)
        assert 0 <= wait_s <= max(self.lease_s(), self.length_s) + EXACT
        if wait_s > 0:
            assert self.acquire() is None
        self.wait()
        assert self.acquire() is not None

    @precondition(lambda self: self.seen().state in ("open", "half_open"))
    @rule()
    def every_probe_out_is_lost(self) -> None:
        self.wait()
        while self.acquire() is not None:
            pass
        lost = self.live_leases()
        type(self).leases_lost += lost
        self.wait()
        assert self.acquire() is not None

    @precondition(lambda self: self.seen().state in ("open", "half_open"))
    @rule()
    def cancelled_probe_returns_its_permit(self) -> None:
        self.wait()
        permit = self.acquire()
        assert permit is not None
        live = self.seen().leases
        self.settle(permit, Signal.NO_EVIDENCE)
        assert self.seen().leases == live - 1
        assert self.breaker.retry_after_s(self.now) == 0
        assert self.acquire() is not None

    @precondition(lambda self: self.seen().state in ("open", "half_open"))
    @rule(signal=st.sampled_from([Signal.HEALTHY, Signal.UNHEALTHY]), duration_s=durations)
    def a_probe_comes_back_with_news(self, signal: Signal, duration_s: float | None) -> None:
        self.wait()
        permit = self.acquire()
        assert permit is not None
        self.settle(permit, signal, duration_s)

    @rule(chosen=breaker_settings)
    def the_config_is_reloaded(self, chosen: BreakerSettings) -> None:
        before, was = self.seen(), self.breaker.settings.state
        self.breaker.settings = chosen
        after = self.seen()
        if chosen.state == was:
            assert (after.state, after.generation) == (before.state, before.generation)
        elif chosen.state == "auto":
            assert after.state == ("closed" if before.is_forced else before.state)
        else:
            assert after.state == chosen.state
        self.run = self.run if after.generation == before.generation else 0

    @invariant()
    def snapshot_agrees_with_itself_and_with_the_model(self) -> None:
        seen = self.seen()
        assert seen.leases == self.live_leases()
        assert 0 <= seen.failures <= seen.calls
        assert 0 <= seen.slow_calls <= seen.calls
        assert seen.failure_share == (seen.failures / seen.calls if seen.calls else 0)
        assert seen.is_forced == (seen.state not in AUTOMATIC)
        assert (seen.outage_at is None) == (seen.state not in ("open", "half_open"))
        assert seen.state != "disabled" or (seen.calls, seen.consecutive_failures) == (0, 0)
        assert sum(seen.transitions.values()) == seen.generation
        assert seen.state == "half_open" or seen.leases == 0
        if seen.outage_at is not None:
            assert (seen.outage_at, seen.opened_at, seen.why) == (self.outage_at, self.opened_at, self.why)
        assert seen.state != "closed" or seen.why is None
        if seen.state == "open":
            assert abs((seen.probe_at or 0.0) - self.ends_at) < EXACT
            wait_s = max(0.0, self.ends_at - self.now)
            assert abs(self.breaker.retry_after_s(self.now) - wait_s) < EXACT

    def teardown(self) -> None:
        for name, count in self.seen().transitions.items():
            type(self).entered[name] += count


def test_breaker_holds_on_every_walk() -> None:
    run_state_machine_as_test(
        BreakerWalk,
        settings=settings(
            derandomize=True, deadline=None, max_examples=repeated(200, least=150), stateful_step_count=40
        ),
    )
    # A walk that never gets far proves nothing.
    assert min(BreakerWalk.entered.values()) > repeated(20)
    assert BreakerWalk.stragglers_settled > repeated(20)
    assert min(BreakerWalk.late_successes[sort] for sort in ("call", "probe")) > 0, BreakerWalk.late_successes
    assert BreakerWalk.leases_lost > repeated(20)
    assert BreakerWalk.openings_grown > repeated(10)
    assert BreakerWalk.slow_probes > 0
    assert BreakerWalk.ended_early > repeated(3)
    assert BreakerWalk.full_windows > repeated(3)
    assert min(BreakerWalk.early_failed[when] for when in ("new", "brownout", "outage")) > repeated(3)
    assert BreakerWalk.early_closed.total() > repeated(10)
    assert len(BreakerWalk.early_closed) > 1
    assert BreakerWalk.overdue_ignored > repeated(3)
    assert min(BreakerWalk.opened_literally[by] for by in ("run", "share")) > repeated(3)
