"""Scenarios A17, A18 and A20 to A23, simulated: the extra load that each retry budget allows at a failing upstream."""

from __future__ import annotations

import itertools
from functools import cache

import pytest

from benchmarks.storm.frontier import (
    FAILURE_RATES,
    SCHEMES,
    AwsQuota,
    GrpcThrottle,
    NoBudget,
    OwnBudget,
    Point,
    Throttle,
    measure,
    run,
)
from llm_guard.resilience.retry.limits import BudgetSettings


@cache
def points() -> dict[tuple[str, float], Point]:
    return {(point.scheme, point.failure_rate): point for point in run(calls=1500)}


def at(throttle: Throttle, failure_rate: float, calls: int = 5000, **facts: float) -> Point:
    return measure("", throttle, failure_rate, seed=7, calls=calls, **facts)  # type: ignore[arg-type]


def fixed(ratio: float, floor: float = 0.0) -> OwnBudget:
    return OwnBudget(BudgetSettings(ratio, floor, adaptive=False))


def test_every_scheme_has_a_point_at_every_rate_and_the_seed_decides_it() -> None:
    assert set(points()) == set(itertools.product(SCHEMES, FAILURE_RATES))
    assert at(NoBudget(), 0.4) == at(NoBudget(), 0.4)
    assert measure("", NoBudget(), 0.4, seed=8, calls=5000) != at(NoBudget(), 0.4)


def test_outage_without_budget_quadruples_the_load() -> None:
    """Scenario A17: exactly 1 + 3 retries."""
    point = points()["no budget", 1.0]
    assert (point.success, point.requests_per_call) == (0.0, 4.0)


def test_fixed_budget_holds_an_outage_to_a_fifth_more_and_the_reserve() -> None:
    """Scenario A18: 1.20, plus 100 tokens of reserve over 10,000 calls."""
    assert at(fixed(0.2, floor=10), 1.0, calls=10_000).requests_per_call == pytest.approx(1.21, abs=0.001)


@pytest.mark.parametrize(
    ("throttle", "load", "success", "max_attempts"),
    [
        (NoBudget(), 1.417, 0.992, 4),
        (fixed(0.2), 1.20, 0.841, 4),
        (fixed(0.1), 1.10, 0.770, 4),
        (GrpcThrottle(), 1.00, 0.700, 4),
        (AwsQuota(5), 1.39, 0.973, 3),
        (AwsQuota(14), 1.17, 0.820, 3),
    ],
)
def test_three_calls_of_ten_fail(throttle: Throttle, load: float, success: float, max_attempts: int) -> None:
    """Scenario A20, with the AWS quota's own three attempts: within 0.02 of the load and 1.5 % of the calls."""
    point = at(throttle, 0.3, calls=10_000, max_attempts=max_attempts)
    assert point.requests_per_call == pytest.approx(load, abs=0.02)
    assert point.success == pytest.approx(success, abs=0.015)


@pytest.mark.parametrize("scheme", ["no budget", "fixed 20 %", "AWS quota", "adaptive"])
@pytest.mark.parametrize("rate", [0.01, 0.05])
def test_budget_is_invisible_at_few_failures(scheme: str, rate: float) -> None:
    """Scenario A21: exactly the load of unlimited retries, and at most one call in 10,000 lost."""
    point = at(SCHEMES[scheme](), rate, calls=10_000)
    assert point.requests_per_call == at(NoBudget(), rate, calls=10_000).requests_per_call
    assert point.success >= 0.9999


@pytest.mark.parametrize(("cost", "retries"), [(5, 100), (10, 50), (14, 35)])
def test_aws_quota_grants_the_retries_of_500_tokens(cost: int, retries: int) -> None:
    """Scenario A22, exactly."""
    assert at(AwsQuota(cost), 1.0).requests_per_call == pytest.approx(1 + retries / 5000)


def test_grpc_throttle_ends_retries_after_the_third() -> None:
    """Scenario A23, exactly; the calls do not overlap."""
    assert at(GrpcThrottle(), 1.0, calls_per_s=0.1).requests_per_call == pytest.approx(1 + 3 / 5000)


def test_grpc_throttle_resumes_above_half_of_its_tokens() -> None:
    throttle = GrpcThrottle()
    for _ in range(5):
        throttle.fail(0, 0.0)
    assert not throttle.try_retry(0.0)
    throttle.succeed(0, 0.0)
    assert throttle.try_retry(0.0)


def test_adaptive_budget_cures_a_brownout_of_four_in_ten() -> None:
    """97.4 % success is expected where no retry is denied, at 1.624 requests per call."""
    point = at(SCHEMES["adaptive"](), 0.4, calls=10_000)
    assert point.success >= 0.965
    assert point.requests_per_call <= 1.70


@pytest.mark.parametrize(("rate", "success"), [(0.3, 0.985), (0.5, 0.92), (0.8, 0.56), (0.9, 0.31)])
def test_adaptive_budget_is_generous_where_failures_are_random(rate: float, success: float) -> None:
    assert points()["adaptive", rate].success >= success


def test_adaptive_budget_closes_in_an_outage() -> None:
    """A minute of outage at 100 calls/s without a breaker costs the reserve of 100 plus at most 15 %."""
    made = at(SCHEMES["adaptive"](), 1.0, calls=6000).requests_per_call * 6000
    assert made <= 100 + 1.15 * 6000
