from __future__ import annotations

from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from llm_guard.policy.retry_budget import MEMORY_S, BudgetSettings, RetryBudget


class BudgetWalk(RuleBasedStateMachine):
    times_empty: ClassVar[int] = 0
    quiet_calls: ClassVar[int] = 0

    @initialize(ratio=st.sampled_from([0.0, 0.1, 0.2, 1.0]), floor=st.sampled_from([0.0, 0.03, 0.1, 1.0, 10.0]))
    def begin(self, ratio: float, floor: float) -> None:
        self.now = 1000.0
        self.ratio, self.floor = ratio, floor
        self.reserve = max(1.0, floor * MEMORY_S) if floor else 0.0
        self.budget = RetryBudget(BudgetSettings(ratio, floor), self.now)
        self.calls = self.spent = 0

    @rule(passed_s=st.floats(0, 1) | st.floats(0, 100))
    def time_passes(self, passed_s: float) -> None:
        self.now += passed_s

    @rule(calls=st.integers(1, 30))
    def calls_begin(self, calls: int) -> None:
        for _ in range(calls):
            self.budget.deposit(self.now)
        self.calls += calls

    @rule()
    def retry_is_granted_if_it_was_promised(self) -> None:
        promised = self.budget.can_spend(self.now)
        assert self.budget.try_spend(self.now) is promised
        self.spent += promised

    @rule()
    def retry_until_empty(self) -> None:
        while self.budget.try_spend(self.now):
            self.spent += 1
        type(self).times_empty += 1
        assert self.budget.snapshot(self.now).tokens < 1

    @rule()
    def quiet_caller_gets_its_retry(self) -> None:
        if self.floor == 0:
            return
        self.now += 1 / self.floor
        self.budget.deposit(self.now)
        self.calls += 1
        assert self.budget.try_spend(self.now)
        self.spent += 1
        type(self).quiet_calls += 1

    @invariant()
    def no_more_is_spent_than_calls_and_floor_brought(self) -> None:
        seen = self.budget.snapshot(self.now)
        assert (seen.calls, seen.spent) == (self.calls, self.spent)
        brought = self.reserve + self.ratio * self.calls + self.floor * (self.now - 1000)
        assert self.spent + seen.tokens <= brought + 1e-6 * (1 + self.spent)
        assert seen.tokens >= 0

    @invariant()
    def floor_does_not_fill_beyond_the_reserve(self) -> None:
        tokens = self.budget.snapshot(self.now).tokens
        assert tokens <= self.reserve + self.ratio * self.calls + 1e-6


def test_budget_holds_on_every_walk() -> None:
    run_state_machine_as_test(
        BudgetWalk,
        settings=settings(derandomize=True, deadline=None, max_examples=100, stateful_step_count=30),
    )
    assert BudgetWalk.times_empty > 100
    assert BudgetWalk.quiet_calls > 100
