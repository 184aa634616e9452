"""A route goes through outages, lulls and slow responses: its mode always has a reason."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from llm_guard.resilience.degradation.degraded_mode import Degradation, DegradedSettings, RouteTotals
from tests.effort import repeated

rules = st.builds(
    DegradedSettings,
    enter_failure_rate=st.sampled_from([0.2, 0.5, 1.0]),
    exit_failure_rate=st.sampled_from([0.0, 0.1]),
    window=st.sampled_from([1.0, 60.0, 600.0]),
    min_calls=st.sampled_from([1, 10]),
    recovery_window=st.sampled_from([0.5, 30.0, 900.0]),
    max_wait=st.sampled_from([0.1, 10.0]),
)


class DegradedWalk(RuleBasedStateMachine):
    entered: ClassVar[int] = 0
    left_well: ClassVar[int] = 0
    left_silent: ClassVar[int] = 0

    @initialize(chosen=rules)
    def begin(self, chosen: DegradedSettings) -> None:
        self.chosen, self.now = chosen, 1000.0
        self.seen = RouteTotals()
        self.mode = Degradation(chosen, self.seen, self.now)
        self.turned_at = self.called_at = self.now
        self.history: list[tuple[float, int, int]] = []
        """Instants, with the numbers of answered and failed calls."""

    def step(self, answered: int = 0, failed: int = 0, cut_short: int = 0) -> None:
        begun = self.seen.begun + answered + failed + cut_short
        if begun > self.seen.begun:
            self.called_at = self.now
        self.seen = RouteTotals(begun, self.seen.answered + answered, self.seen.failed + failed)
        self.history.append((self.now, answered, failed))
        was = self.mode.is_degraded
        turn = self.mode.note(self.seen, self.now)
        assert (turn is not None) == (was != self.mode.is_degraded)
        if turn is None:
            return
        assert turn.is_degraded == self.mode.is_degraded
        self.check_entered() if turn.is_degraded else self.check_left()
        self.turned_at = self.now
        self.history.clear()

    def counted(self, since: float) -> tuple[int, int]:
        kept = [each for each in self.history if each[0] > since]
        return sum(each[1] for each in kept), sum(each[2] for each in kept)

    def check_entered(self) -> None:
        # The counts reach back as far as the step before the window's beginning.
        answered, failed = self.counted(self.turned_at - 1)
        assert failed >= self.chosen.enter_failure_rate
        assert answered + failed >= self.chosen.min_calls
        type(self).entered += 1

    def check_left(self) -> None:
        if self.now - self.called_at >= self.chosen.window:
            type(self).left_silent += 1
            return
        assert self.now - self.turned_at >= self.chosen.recovery_window
        assert self.counted(self.turned_at - 1)[0] > 0, "nobody has had a real response"
        type(self).left_well += 1

    @rule(passed_s=st.floats(0, 2) | st.floats(0, 1000))
    def no_calls(self, passed_s: float) -> None:
        self.now += passed_s
        self.step()

    @rule(answered=st.integers(0, 20), failed=st.integers(0, 20), cut_short=st.integers(0, 20))
    def calls_end(self, answered: int, failed: int, cut_short: int) -> None:
        self.now += 0.25
        self.step(answered, failed, cut_short)

    @rule()
    def everything_fails_until_it_is_degraded(self) -> None:
        """However well it worked before, a window of nothing but failures is an outage."""
        for _ in range(330):
            self.now += self.chosen.window / 100
            self.step(failed=self.chosen.min_calls)
            if self.mode.is_degraded:
                break
        assert self.mode.is_degraded

    @rule()
    def everything_is_answered_until_it_is_well(self) -> None:
        for _ in range(220):
            self.now += self.chosen.recovery_window / 100
            self.step(answered=1)
        assert not self.mode.is_degraded

    @rule()
    def outage_comes_and_goes(self) -> None:
        self.everything_fails_until_it_is_degraded()
        self.everything_is_answered_until_it_is_well()

    @rule()
    def silence_ends_it(self) -> None:
        self.now = max(self.now, max(self.called_at, self.turned_at) + self.chosen.window + 0.001)
        self.step()
        assert not self.mode.is_degraded

    @rule(calls=st.integers(1, 100))
    def most_calls_have_a_short_deadline(self, calls: int) -> None:
        """At any instant at most one of them may wait without a shortened deadline."""
        assert sum(self.mode.may_wait(self.now) for _ in range(calls)) <= 1

    @invariant()
    def snapshot_is_sound(self) -> None:
        found = self.mode.snapshot(self.now)
        assert (found.since is not None) == found.is_degraded == bool(found.why)
        assert 0 <= found.failed <= found.calls
        assert len(self.mode._at) == len(self.mode._seen) <= 2005
        assert self.mode._at == sorted(self.mode._at)


def test_mode_holds_on_every_walk() -> None:
    run_state_machine_as_test(
        DegradedWalk, settings=settings(max_examples=repeated(240, least=120), stateful_step_count=30, deadline=None)
    )
    assert min(DegradedWalk.entered, DegradedWalk.left_well, DegradedWalk.left_silent) > repeated(20)


@given(st.lists(st.tuples(st.floats(0.01, 20), st.integers(0, 3), st.integers(0, 3)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_more_frequent_checks_change_no_sum(steps: list[tuple[float, int, int]]) -> None:
    """The count is at least that of the window, and at most that of the window plus 21 s before it."""
    chosen = DegradedSettings(enter_failure_rate=1.0, exit_failure_rate=0.0, min_calls=10_000)
    mode, seen, now = Degradation(chosen, RouteTotals(), 0.0), RouteTotals(), 0.0
    noted = []
    for passed_s, answered, failed in steps:
        now += passed_s
        seen = RouteTotals(seen.begun + answered + failed, seen.answered + answered, seen.failed + failed)
        mode.note(seen, now)
        noted.append((now, answered + failed))
    window = sum(calls for at, calls in noted if at > now - chosen.window)
    slack = sum(calls for at, calls in noted if now - chosen.window - 21 < at <= now - chosen.window)
    assert window <= mode.snapshot(now).calls <= window + slack
