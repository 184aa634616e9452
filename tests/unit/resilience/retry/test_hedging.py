from __future__ import annotations

import random
import weakref

import pytest

from llm_guard.resilience.retry.hedging import (
    RESERVE,
    HedgeBudget,
    HedgeBudgetSnapshot,
    HedgeDelays,
    HedgeSettings,
    hedge_delay_s,
    parse_after,
)
from llm_guard.resilience.routing.candidates import Latency


def noted(*durations_s: float, cut: int = 0) -> Latency:
    latency = Latency()
    for duration_s in durations_s:
        latency.note(duration_s, 0.0)
    for _ in range(cut):
        latency.note_cut(1e9, 0.0)
    return latency


def delay_s(latency: Latency, after: float | str = "p95") -> float | None:
    return hedge_delay_s(HedgeSettings(after=after), latency, 0.0)


def test_defaults_are_the_documented_ones() -> None:
    assert HedgeSettings() == HedgeSettings(after="p95", max_extra=0.05)


@pytest.mark.parametrize(("written", "value"), [("p50", "p50"), ("p99", "p99"), ("150ms", 0.15), ("2s", 2.0)])
def test_delay_is_written_as_a_quantile_or_a_duration(written: str, value: float | str) -> None:
    assert parse_after(written) == value


@pytest.mark.parametrize("written", ["p49", "p100", "p9", "p995", "95", 0.15, None, "", "0s"])
def test_other_delays_are_refused_with_a_valid_example(written: object) -> None:
    with pytest.raises(ValueError, match="p50 to p99"):
        parse_after(written)


def test_set_delay_needs_no_history() -> None:
    assert delay_s(Latency(), 0.15) == 0.15


def test_learned_delay_waits_for_history() -> None:
    assert delay_s(noted(*[0.1] * 19)) is None
    assert delay_s(noted(*[0.1] * 20)) == 0.1


def test_learned_delay_is_the_configured_quantile() -> None:
    latency = noted(*(1 + i / 1000 for i in range(1, 101)))
    assert [delay_s(latency, after) for after in ("p50", "p75", "p95", "p99")] == [1.05, 1.075, 1.095, 1.099]


@pytest.mark.parametrize("slow", [4, 5, 6, 9])
def test_slow_mode_at_the_edge_of_the_quantile_cannot_pull_the_delay_to_itself(slow: int) -> None:
    """Scenario A36: 95 % at 0.1 s and 5 % at 2 s; samples of a hundred contain varying numbers of slow ones."""
    learned_s = delay_s(noted(*[0.1] * (100 - slow), *[2.0] * slow))
    assert learned_s is not None
    assert learned_s <= 0.15 + 1e-12


def test_losers_of_hedges_do_not_take_the_delay_away() -> None:
    assert delay_s(noted(*[0.1] * 93, cut=7)) == pytest.approx(0.15)


def test_deployment_that_is_cut_too_often_has_no_learned_delay() -> None:
    assert delay_s(noted(*[0.1] * 89, cut=11)) is None


def test_learned_delay_is_no_shorter_than_timers_are() -> None:
    assert delay_s(noted(*[0.0001] * 20)) == 0.002
    assert delay_s(noted(*[0.003] * 20)) == 0.003
    assert delay_s(Latency(), 0.0001) == 0.0001


P95 = HedgeSettings(after="p95")


def test_learned_delay_is_cached_for_a_moment() -> None:
    delays, latency = HedgeDelays(), noted(*[0.1] * 20)
    assert delays.delay_s(P95, latency, 0.0) == 0.1
    for _ in range(100):
        latency.note(0.2, 0.0)
    assert [delays.delay_s(P95, latency, now) for now in (0.0, 0.04, 0.06)] == [0.1, 0.1, 0.2]


def test_cached_delay_belongs_to_one_deployment_and_one_route() -> None:
    delays, latency = HedgeDelays(), noted(*(1 + i / 1000 for i in range(1, 101)))
    assert delays.delay_s(P95, latency, 0.0) == 1.095
    assert delays.delay_s(HedgeSettings(after="p50"), latency, 0.0) == 1.05
    assert delays.delay_s(HedgeSettings(after=7.0), latency, 0.0) == 7.0
    assert delays.delay_s(P95, noted(*[0.1] * 20), 0.0) == 0.1
    assert delays.delay_s(P95, latency, 0.0) == 1.095


def test_unknown_delay_is_known_with_the_next_response() -> None:
    delays, latency = HedgeDelays(), noted(*[0.1] * 19)
    assert delays.delay_s(P95, latency, 0.0) is None
    latency.note(0.1, 0.0)
    assert delays.delay_s(P95, latency, 0.0) == 0.1


def test_delays_of_deployments_that_are_no_more_are_forgotten() -> None:
    class Sample(Latency):
        """A sample that accepts weak references, so that its collection can be observed."""

    def ask(sample: Sample) -> None:
        seen.add(sample)
        for _ in range(20):
            sample.note(0.1, 0.0)
        assert delays.delay_s(P95, sample, 0.0) == 0.1

    delays, seen = HedgeDelays(), weakref.WeakSet[Sample]()
    for _ in range(1000):
        ask(Sample())
    assert len(seen) <= 256


def test_calls_pay_for_hedges() -> None:
    budget = HedgeBudget(HedgeSettings(max_extra=0.05))
    assert sum(budget.try_spend() for _ in range(100)) == RESERVE
    for _ in range(19):
        budget.deposit()
    assert not budget.try_spend()
    budget.deposit()
    assert budget.try_spend()
    assert not budget.try_spend()
    snapshot = budget.snapshot()
    assert snapshot == HedgeBudgetSnapshot(snapshot.tokens, 20, int(RESERVE) + 1)
    assert snapshot.tokens == pytest.approx(0.0)


def test_no_more_than_the_reserve_is_saved_up() -> None:
    budget = HedgeBudget(HedgeSettings(max_extra=1.0))
    for _ in range(1000):
        budget.deposit()
    assert budget.snapshot().tokens == RESERVE


def test_no_extra_load_means_no_hedge() -> None:
    budget = HedgeBudget(HedgeSettings(max_extra=0.0))
    budget.deposit()
    assert not budget.try_spend()


def test_settings_may_be_replaced() -> None:
    budget = HedgeBudget(HedgeSettings(max_extra=0.0))
    budget.settings = HedgeSettings(max_extra=0.5)
    assert budget.try_spend()


@pytest.mark.parametrize("max_extra", [0.01, 0.05, 0.3])
def test_storm_costs_the_share_and_the_reserve_and_no_more(max_extra: float) -> None:
    """Scenario A38: every call wants a hedge. The bound holds at every moment, not only at the end."""
    dice = random.Random(3)
    budget = HedgeBudget(HedgeSettings(max_extra=max_extra))
    spent = 0
    for calls in range(1, 5001):
        budget.deposit()
        for _ in range(dice.randrange(3)):
            spent += budget.try_spend()
        assert spent <= calls * max_extra + RESERVE + 1e-6
    assert spent >= 5000 * max_extra
