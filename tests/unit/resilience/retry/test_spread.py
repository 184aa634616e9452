"""A small run of the hedging and balancing simulation: the figures of A36 to A38 and A44, within wide bounds."""

from __future__ import annotations

import pytest

from benchmarks.storm.spread import Spread, rows, run
from llm_guard.resilience.retry.hedging import RESERVE

CALLS = 16_000


@pytest.fixture(scope="module")
def spread() -> Spread:
    return run(seed=7, calls=CALLS, seconds=12.0)


@pytest.mark.parametrize("name", ["two modes, set 150 ms", "two modes, learned p95"])
def test_slow_tail_is_cut_for_six_percent_of_extra_load(spread: Spread, name: str) -> None:
    """Scenario A36, with the jitter of a real network."""
    tail = next(each for each in spread.hedged if each.name == name)
    assert tail.alone_p99_s > 1.8
    assert tail.p99_s < 0.3
    assert 0.04 < tail.extra_load <= 0.06


def test_heavy_tail_becomes_lighter(spread: Spread) -> None:
    """Scenario A37: 10.3 -> 6.7 and 22.1 -> 9.6 in the long run; 16,000 calls are within 15 % and 35 % of that."""
    tail = next(each for each in spread.hedged if each.name.startswith("heavy tail"))
    assert tail.p99_s == pytest.approx(6.7, rel=0.15)
    assert tail.p999_s == pytest.approx(9.6, rel=0.35)
    assert tail.alone_p99_s == pytest.approx(10.3, rel=0.15)
    assert tail.extra_load == pytest.approx(0.05, abs=0.007)


def test_storm_is_not_fed_by_hedges(spread: Spread) -> None:
    """Scenario A38: nearly every call wants a hedge."""
    slow = next(each for each in spread.hedged if each.name == "all 10x slower, set 300 ms")
    assert slow.wanted > 0.8
    assert slow.extra_load <= 0.05 + RESERVE / CALLS


def test_odd_replica_is_avoided_by_latency(spread: Spread) -> None:
    """Scenario A44, next to other strategies at an error of 5 ms: the least loaded replica is the broken one."""
    shares = {(each.name, each.how): each.share for each in spread.balanced}
    assert shares["10x slower", "latency"] < 0.02
    assert 0.01 < shares["2x slower", "latency"] < 0.06
    assert shares["fails within 5 ms", "latency"] < 0.02
    assert shares["fails within 5 ms", "least_loaded"] > 0.3
    assert shares["10x slower", "weighted"] == pytest.approx(0.1, abs=0.02)


def test_no_row_is_broken_but_for_the_one_that_needs_more_calls(spread: Spread) -> None:
    lines = rows(spread)
    assert [row.scenario for row in lines] == ["A36", "A36", "A37", "A38", "A38", "A44", "A44", "A44"]
    assert [row.broken for row in lines if row.scenario != "A37" and row.broken] == []
