from __future__ import annotations

from typing import ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from llm_guard.resilience.retry import retry_yield
from llm_guard.resilience.retry.limits import (
    FADE_S,
    MEMORY,
    MEMORY_S,
    BudgetSettings,
    FailureRate,
    RetryBudget,
    try_spend_all,
)
from tests.effort import repeated

budget_settings = st.builds(
    BudgetSettings,
    ratio=st.sampled_from([0.0, 0.1, 0.2, 1.0]),
    min_per_second=st.sampled_from([0.0, 0.03, 0.1, 1.0, 10.0]),
    adaptive=st.booleans(),
    max_ratio=st.sampled_from([0.0, 0.1, 1.0, 2.5]),
)


class BudgetWalk(RuleBasedStateMachine):
    times_empty: ClassVar[int] = 0
    quiet_calls: ClassVar[int] = 0
    outages: ClassVar[int] = 0
    recoveries: ClassVar[int] = 0
    refused_by_one: ClassVar[int] = 0

    @initialize(chosen=budget_settings, of_route=budget_settings)
    def begin(self, chosen: BudgetSettings, of_route: BudgetSettings) -> None:
        self.now = 1000.0
        self.chosen = chosen
        self.reserve = max(1.0, chosen.min_per_second * MEMORY_S) if chosen.min_per_second else 0.0
        self.budget = RetryBudget(chosen, self.now)
        self.route = RetryBudget(of_route, self.now)
        self.calls = self.spent = 0
        self.brought = 0.0

    def call_begins(self) -> None:
        before = self.budget.snapshot(self.now)
        self.budget.deposit(self.now)
        self.calls += 1
        assert 0 <= self.budget.snapshot(self.now).tokens - before.tokens <= before.ratio + 1e-6 * (1 + before.tokens)
        self.brought += before.ratio

    def spend(self) -> bool:
        before = self.budget.snapshot(self.now)
        is_granted = self.budget.try_spend(self.now)
        after = self.budget.snapshot(self.now)
        assert is_granted == (before.tokens >= 1 - 1e-9)
        assert abs(before.tokens - after.tokens - is_granted) < 1e-6
        self.spent += is_granted
        return is_granted

    @rule(passed_s=st.floats(0, 1) | st.floats(0, 100))
    def time_passes(self, passed_s: float) -> None:
        self.now += passed_s

    @rule(calls=st.integers(1, 30))
    def calls_begin(self, calls: int) -> None:
        for _ in range(calls):
            self.call_begins()

    @rule()
    def retry_is_granted_if_it_was_forecast(self) -> None:
        promised = self.budget.can_spend(self.now)
        assert self.spend() is promised

    @rule()
    def retry_until_empty(self) -> None:
        while self.spend():
            pass
        type(self).times_empty += 1
        assert self.budget.snapshot(self.now).tokens < 1

    @rule()
    def quiet_caller_gets_its_retry(self) -> None:
        if self.chosen.min_per_second == 0:
            return
        self.now += 1 / self.chosen.min_per_second
        self.call_begins()
        assert self.spend()
        type(self).quiet_calls += 1

    @rule()
    def everything_fails_for_a_while(self) -> None:
        self.now += 10 * retry_yield.FADE_S
        ratios = []
        for place in range(5 * MEMORY):
            self.budget.note(True, self.now, is_retry=place % 2 == 1)
            ratios.append(self.budget.snapshot(self.now).ratio)
        assert ratios[-1] <= ratios[0]
        if self.chosen.adaptive:
            assert ratios[-1] <= self.chosen.ratio
        else:
            assert set(ratios) == {self.chosen.ratio}
        type(self).outages += 1

    @rule()
    def everything_is_well_again(self) -> None:
        self.now += 10 * retry_yield.FADE_S
        for place in range(5 * MEMORY):
            self.budget.note(False, self.now, is_retry=place % 2 == 1)
        is_generous = self.chosen.adaptive and self.chosen.ratio > 0
        assert self.budget.snapshot(self.now).ratio == (self.chosen.max_ratio if is_generous else self.chosen.ratio)
        type(self).recoveries += 1

    @rule(is_route_first=st.booleans(), route_is_empty=st.booleans())
    def retry_is_paid_by_both_or_by_neither(self, is_route_first: bool, route_is_empty: bool) -> None:
        while route_is_empty and self.route.try_spend(self.now):
            pass
        both = (self.budget, self.route)
        before = [budget.snapshot(self.now) for budget in both]
        is_payable = [budget.can_spend(self.now) for budget in both]
        is_granted = try_spend_all(both[::-1] if is_route_first else both, self.now)
        after = [budget.snapshot(self.now) for budget in both]
        assert is_granted == all(is_payable)
        assert [a.spent - b.spent for a, b in zip(after, before, strict=True)] == [is_granted, is_granted]
        assert is_granted or after == before
        self.spent += is_granted
        type(self).refused_by_one += is_payable[0] != is_payable[1]

    @invariant()
    def no_more_is_spent_than_calls_and_floor_brought(self) -> None:
        seen = self.budget.snapshot(self.now)
        assert (seen.calls, seen.spent) == (self.calls, self.spent)
        brought = self.reserve + self.brought + self.chosen.min_per_second * (self.now - 1000)
        assert self.spent + seen.tokens <= brought + 1e-6 * (1 + self.spent)
        assert seen.tokens >= 0

    @invariant()
    def floor_does_not_fill_beyond_the_reserve(self) -> None:
        tokens = self.budget.snapshot(self.now).tokens
        assert tokens <= self.reserve + self.brought + 1e-6


def test_budget_holds_on_every_walk() -> None:
    run_state_machine_as_test(
        BudgetWalk,
        settings=settings(derandomize=True, deadline=None, max_examples=repeated(80), stateful_step_count=30),
    )
    # A walk that never gets far proves nothing.
    reached = (BudgetWalk.times_empty, BudgetWalk.quiet_calls, BudgetWalk.outages, BudgetWalk.recoveries)
    assert min(reached) > repeated(10)
    assert BudgetWalk.refused_by_one > repeated(10)


shares = st.floats(0, 1)


@settings(derandomize=True, deadline=None, max_examples=repeated(300))
@given(budget_settings, shares, shares, shares)
def test_effective_ratio_grows_with_what_retries_achieve_and_stays_in_its_bounds(
    chosen: BudgetSettings, one: float, other: float, fixed: float
) -> None:
    less, more = sorted((one, other))
    assert chosen.effective_ratio(less, fixed) <= chosen.effective_ratio(more, fixed) + 1e-12
    assert chosen.effective_ratio(fixed, less) <= chosen.effective_ratio(fixed, more) + 1e-12
    most = chosen.max_ratio if chosen.adaptive else chosen.ratio
    assert 0 <= chosen.effective_ratio(one, other) <= most + 1e-12


@settings(derandomize=True, deadline=None, max_examples=repeated(300))
@given(
    st.lists(st.tuples(st.booleans(), st.just(0.0) | st.floats(0, 100)), max_size=300),
    st.floats(0, 1000),
    st.floats(0, 1000),
)
def test_failure_share_is_bounded_falls_in_silence_and_is_zero_after_minutes(
    attempts: list[tuple[bool, float]], silence_s: float, more_s: float
) -> None:
    now = 1000.0
    recent = FailureRate(now)
    for is_failure, passed_s in attempts:
        now += passed_s
        before = recent.failure_share(now)
        recent.note(is_failure, now)
        after = recent.failure_share(now)
        assert 0 <= after <= 1
        assert after >= before if is_failure else after <= before
        assert abs(after - before) <= 0.1 + 1e-9
    assert recent.failure_share(now) >= recent.failure_share(now + silence_s)
    assert recent.failure_share(now + silence_s) >= recent.failure_share(now + silence_s + more_s)
    assert recent.failure_share(now + 20 * FADE_S) < 1e-6
    assert recent.snapshot(now).attempts <= MEMORY + 1e-9
