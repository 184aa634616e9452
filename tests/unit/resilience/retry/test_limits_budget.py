from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from math import exp
from random import Random

import pytest

from llm_guard.resilience.retry.limits import BudgetSettings, RetryBudget, try_spend_all
from llm_guard.resilience.retry.retry_yield import RetryYield

FIXED = BudgetSettings(adaptive=False)


def exchanges(calls: Iterable[float], fails: Callable[[], bool], budget: RetryBudget) -> tuple[int, int]:
    """Returns exchanges made and calls lost, with at most three attempts per call (an instant)."""
    made = lost = 0
    for now in calls:
        budget.deposit(now)
        for retries in range(3):
            made += 1
            if not fails():
                break
            if retries == 2 or not budget.try_spend(now):
                lost += 1
                break
    return made, lost


@pytest.mark.parametrize("calls_per_s", [100, 1000, 1e9])
def test_total_outage_costs_a_fifth_more_and_the_reserve(calls_per_s: float) -> None:
    """Scenario A18: 20 % of 10,000 calls plus a reserve of 10/s x 10 s: 1.21 times the load at any pace."""
    budget = RetryBudget(FIXED, 0.0)
    made, _ = exchanges((i / calls_per_s for i in range(10_000)), lambda: True, budget)
    assert 12_090 <= made <= 12_100


@pytest.mark.parametrize("share", [0.01, 0.05])
@pytest.mark.parametrize("calls_per_s", [1, 1000])
@pytest.mark.parametrize("chosen", [FIXED, BudgetSettings()], ids=["fixed", "adaptive"])
def test_budget_is_invisible_at_few_failures(share: float, calls_per_s: int, chosen: BudgetSettings) -> None:
    """Scenario A21: the load is that of unlimited retries, 1 + p + p**2, and no retry is denied."""
    dice = random.Random(7)
    outcomes = [dice.random() < share for _ in range(31_000)]
    calls = [i / calls_per_s for i in range(10_000)]
    replay = iter(outcomes)
    budgeted = exchanges(calls, lambda: next(replay), RetryBudget(chosen, 0.0))
    replay = iter(outcomes)
    unlimited = exchanges(calls, lambda: next(replay), RetryBudget(BudgetSettings(1.0, 1e9), 0.0))
    assert budgeted == unlimited
    assert budgeted[0] == pytest.approx(10_000 * (1 + share + share**2), rel=0.01)


@pytest.mark.parametrize("min_per_second", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("ratio", [0.0, 0.2])
def test_one_call_in_two_minutes_always_gets_its_retry(min_per_second: float, ratio: float) -> None:
    budget = RetryBudget(BudgetSettings(ratio, min_per_second), 0.0)
    for minute in range(0, 1000, 2):
        now = minute * 60.0
        budget.deposit(now)
        assert budget.try_spend(now)


def test_floor_refills_second_by_second() -> None:
    budget = RetryBudget(BudgetSettings(ratio=0.0, min_per_second=10.0), 0.0)
    while budget.try_spend(0.0):
        pass
    assert sum(budget.try_spend(1.0) for _ in range(100)) == 10
    assert sum(budget.try_spend(1.5) for _ in range(100)) == 5
    assert not budget.try_spend(1.595)
    assert budget.try_spend(1.6)


def test_floor_fills_no_further_than_ten_seconds_of_itself() -> None:
    budget = RetryBudget(BudgetSettings(ratio=0.0, min_per_second=10.0), 0.0)
    assert sum(budget.try_spend(1e6) for _ in range(1000)) == 100


def test_floor_is_not_added_to_the_budget_of_busy_traffic() -> None:
    budget = RetryBudget(BudgetSettings(ratio=0.2, min_per_second=10.0, adaptive=False), 0.0)
    while budget.try_spend(0.0):
        pass
    spent = 0
    for i in range(1, 1001):
        budget.deposit(i / 100)
        spent += budget.try_spend(i / 100)
    assert spent == pytest.approx(200, abs=1)


@pytest.mark.parametrize("is_adaptive", [False, True])
def test_saved_deposits_amount_to_ten_seconds_of_traffic(is_adaptive: bool) -> None:
    """With and without adaptation: what a brownout is granted must not accumulate until a healthy deployment dies."""
    budget = RetryBudget(BudgetSettings(ratio=0.2, min_per_second=0.0, adaptive=is_adaptive), 0.0)
    for i in range(100_000):
        budget.note(False, i / 1000, is_retry=i % 2 == 1)
        budget.deposit(i / 1000)
    assert budget.snapshot(100.0).tokens == pytest.approx(0.2 * 1000 * 10, rel=0.01)


def test_saved_deposits_fade() -> None:
    budget = RetryBudget(BudgetSettings(ratio=1.0, min_per_second=0.0), 0.0)
    for _ in range(1000):
        budget.deposit(0.0)
    assert budget.snapshot(10.0).tokens == pytest.approx(368, rel=0.01)
    assert not budget.can_spend(1000.0)


def test_without_floor_retries_are_earned_by_calls_alone() -> None:
    budget = RetryBudget(BudgetSettings(ratio=0.2, min_per_second=0.0, adaptive=False), 0.0)
    assert not budget.try_spend(100.0)
    for _ in range(5):
        budget.deposit(100.0)
    assert budget.try_spend(100.0)
    assert not budget.try_spend(100.0)


def test_check_spends_nothing() -> None:
    budget = RetryBudget(BudgetSettings(ratio=0.0, min_per_second=0.1), 0.0)
    assert all(budget.can_spend(0.0) for _ in range(10))
    assert budget.try_spend(0.0)
    assert not budget.can_spend(0.0)


def test_new_settings_hold_from_the_next_question_on() -> None:
    budget = RetryBudget(BudgetSettings(ratio=0.0, min_per_second=0.1), 0.0)
    assert budget.try_spend(0.0)
    budget.settings = BudgetSettings(ratio=0.0, min_per_second=100.0)
    assert not budget.can_spend(0.0)
    assert sum(budget.try_spend(1.0) for _ in range(1000)) == 100


def test_snapshot_counts_calls_and_retries() -> None:
    budget = RetryBudget(FIXED, 0.0)
    budget.deposit(0.0)
    budget.deposit(0.0)
    assert budget.try_spend(0.0)
    seen = budget.snapshot(0.0)
    assert (seen.calls, seen.spent) == (2, 1)
    assert seen.tokens == pytest.approx(99.4)
    assert seen.ratio == 0.2


@pytest.mark.parametrize(
    ("relative_yield", "success_share", "ratio"),
    [
        (1.0, 1.0, 3.0), (0.5, 0.1, 3.0), (0.3, 0.7, 1.6), (0.1, 0.7, 0.2), (0.0, 0.7, 0.2), (1.0, 0.025, 1.5),
        (1.0, 0.0, 0.0),
    ],
)  # fmt: skip
def test_ratio_follows_the_success_of_retries(relative_yield: float, success_share: float, ratio: float) -> None:
    assert BudgetSettings().effective_ratio(relative_yield, success_share) == pytest.approx(ratio)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_fixed_or_zero_ratio_is_unchanged(share: float) -> None:
    assert FIXED.effective_ratio(share, share) == 0.2
    assert BudgetSettings(ratio=0.0).effective_ratio(share, share) == 0.0


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_ratio_stays_below_a_lower_maximum(share: float) -> None:
    assert BudgetSettings(ratio=0.2, max_ratio=0.1).effective_ratio(share, share) <= 0.1
    assert BudgetSettings(ratio=0.2, max_ratio=0.0).effective_ratio(share, share) == 0.0


def test_random_failures_pay_for_all_retries() -> None:
    """80 % fail, 100 calls/s, three retries each: the reserve lasts until retries have proved worthwhile."""
    dice, budget, denied = Random(7), RetryBudget(BudgetSettings(), 0.0), 0
    for i in range(3000):
        now = i / 100
        budget.deposit(now)
        is_failing = dice.random() < 0.8
        budget.note(is_failing, now, is_retry=False)
        for _ in range(3):
            if is_failing and budget.try_spend(now):
                is_failing = dice.random() < 0.8
                budget.note(is_failing, now, is_retry=True)
            elif is_failing:
                denied += 1
                break
    assert denied <= 30


def test_failures_that_begin_at_random_after_health_pay_for_their_retries() -> None:
    """90 % fail from 30 s on, 50 calls/s: retries succeed as rarely as the first attempts of the same moment."""
    dice, budget, denied = Random(7), RetryBudget(BudgetSettings(), 0.0), 0
    for i in range(3000):
        now = i / 50
        share = 0.0 if now < 30 else 0.9
        budget.deposit(now)
        is_failing = dice.random() < share
        budget.note(is_failing, now, is_retry=False)
        for _ in range(3):
            if is_failing and budget.try_spend(now):
                is_failing = dice.random() < share
                budget.note(is_failing, now, is_retry=True)
            elif is_failing:
                denied += now >= 35
                break
    assert denied <= 30


def test_retries_of_constant_failures_are_not_paid_for() -> None:
    """Three calls in ten always fail: the floor remains, and a fifth of the calls."""
    budget = RetryBudget(BudgetSettings(), 0.0)
    for i in range(6000):
        now = i / 100
        budget.deposit(now)
        is_failing = i % 10 < 3
        budget.note(is_failing, now, is_retry=False)
        for _ in range(3):
            if is_failing and budget.try_spend(now):
                budget.note(True, now, is_retry=True)
    assert budget.snapshot(60.0).spent <= 0.2 * 6000 + 120


def run_at_100_per_s(budget: RetryBudget, begin_s: int, end_s: int, *, is_failing: bool) -> int:
    """Returns the number of retries granted when each failing call requests three."""
    spent = budget.snapshot(begin_s).spent
    for i in range(begin_s * 100, end_s * 100):
        now = i / 100
        budget.deposit(now)
        budget.note(is_failing, now, is_retry=False)
        for _ in range(3):
            if is_failing and budget.try_spend(now):
                budget.note(True, now, is_retry=True)
    return budget.snapshot(end_s).spent - spent


def test_outage_at_full_speed_costs_the_savings_and_the_floor() -> None:
    """Costs the reserve of 100, 200 saved, and a fifth of the calls, as without adaptation."""
    budget = RetryBudget(BudgetSettings(), 0.0)
    run_at_100_per_s(budget, 0, 60, is_failing=False)
    assert run_at_100_per_s(budget, 60, 70, is_failing=True) <= 100 + 200 + 1000 / 5
    assert run_at_100_per_s(budget, 70, 80, is_failing=True) <= 1000 / 5


def test_quiet_caller_gets_its_retries_however_much_fails() -> None:
    budget = RetryBudget(BudgetSettings(), 0.0)
    run_at_100_per_s(budget, 0, 60, is_failing=True)
    for minute in range(2, 60):
        now = minute * 60.0
        budget.deposit(now)
        for _ in range(3):
            budget.note(True, now, is_retry=True)
            assert budget.try_spend(now)


def test_retry_is_paid_by_all_budgets_or_by_none() -> None:
    small, large = (RetryBudget(BudgetSettings(0.0, floor), 0.0) for floor in (0.1, 1.0))
    assert try_spend_all((large, small), 0.0)
    assert (small.snapshot(0.0).spent, large.snapshot(0.0).spent) == (1, 1)
    for order in ((small, large), (large, small)):
        assert not try_spend_all(order, 0.0)
    assert (small.snapshot(0.0).spent, large.snapshot(0.0).spent) == (1, 1)
    assert large.snapshot(0.0).tokens == 9
    assert try_spend_all((small, large), 10.0)


def test_earlier_instant_neither_brings_nor_takes_anything() -> None:
    budget = RetryBudget(BudgetSettings(0.0, 1.0), 10.0)
    while budget.try_spend(10.0):
        pass
    assert budget.snapshot(9.0).tokens == 0
    assert not budget.can_spend(10.0)
    assert budget.can_spend(11.0)


def test_new_ratio_changes_at_once_how_fast_savings_fade() -> None:
    kept, changed = (RetryBudget(BudgetSettings(adaptive=False), 0.0) for _ in range(2))
    for budget in (kept, changed):
        for _ in range(500):
            budget.deposit(0.0)
    changed.settings = BudgetSettings(ratio=0.1, adaptive=False)
    assert changed.snapshot(2.0).tokens < kept.snapshot(2.0).tokens
    assert kept.snapshot(2.0).tokens == pytest.approx(100 + 100 * exp(-0.2))


def test_successes_before_a_failure_count_before_it() -> None:
    """A budget is notified of every call, so successes are batched; the result must equal counting one by one."""
    budget, alone = RetryBudget(BudgetSettings(), 0.0), RetryYield(0.0)
    for outcome in "FFFF" + "S" * 30 + "RRR" + "F" + "S" * 10 + "R":
        is_failure, is_retry = outcome == "F", outcome == "R"
        budget.note(is_failure, 0.1, is_retry=is_retry)
        alone.note(is_failure, 0.1, is_retry=is_retry)
    expected = BudgetSettings().effective_ratio(alone.relative(), alone.success_share())
    assert budget.snapshot(0.1).ratio == pytest.approx(expected)
    assert 0.2 < expected < 3.0
