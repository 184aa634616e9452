from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_guard.admin.monitor import rates
from llm_guard.admin.monitor.rates import NOTHING, CallTally, quantile
from llm_guard.proxy.telemetry.recorder import DeploymentCounts, ModelCounts

BOUNDS = (1.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("counts", "q", "expected"),
    [
        ((10, 0, 0, 0), 0.5, 0.5),
        ((0, 10, 0, 0), 0.5, 1.5),
        ((5, 5, 0, 0), 0.5, 1.0),
        ((5, 0, 5, 0), 0.95, 3.8),
        ((0, 0, 0, 3), 0.5, 4.0),
        ((0, 0, 0, 0), 0.5, None),
        ((), 0.5, None),
    ],
)
def test_quantile_is_guessed_between_bounds(counts: tuple[int, ...], q: float, expected: float | None) -> None:
    found = quantile(BOUNDS, counts, q)
    assert found == (None if expected is None else pytest.approx(expected))


@given(st.lists(st.floats(0, 3.9), min_size=1, max_size=50), st.sampled_from([0.5, 0.95, 0.99]))
def test_estimated_quantile_is_within_the_bounds_of_the_true_one(values: list[float], q: float) -> None:
    counts = [0] * 4
    for value in values:
        counts[bisect_left(BOUNDS, value)] += 1
    ranked = sorted(values)
    true = ranked[min(len(ranked) - 1, max(0, -int(-q * len(ranked) // 1) - 1))]
    found = quantile(BOUNDS, tuple(counts), q)
    index = bisect_left(BOUNDS, true)
    assert found is not None
    assert (BOUNDS[index - 1] if index else 0.0) <= found <= BOUNDS[index]


def test_interval_between_two_instants_is_the_difference() -> None:
    counts = ModelCounts()
    counts.calls["ok"] += 3
    counts.call_duration["ok"].note(0.07)
    counts.judged, counts.attempts_made, counts.retries_made, counts.limits_hit = 3, 5, 2, 1
    before = rates.of_model(counts)
    counts.calls["timeout"] += 1
    counts.judged += 1
    counts.call_duration["failed"].note(0.07)
    counts.time_to_first_token.note(0.02)
    news = rates.of_model(counts).since(before)
    assert (news.calls, news.judged, news.ok, news.attempts) == (1, 1, 0, 0)
    assert (sum(news.durations), sum(news.failed_durations), sum(news.refused_durations)) == (0, 1, 0)
    assert sum(news.first_tokens) == 1
    assert news.success_rate == 0.0


def test_unchanged_value_is_the_same_object() -> None:
    model, deployment = ModelCounts(), DeploymentCounts()
    model.calls["ok"] += 1
    deployment.attempts["ok"] += 1
    of_model, of_deployment = rates.of_model(model), rates.of_deployment(deployment)
    assert rates.of_model(model, of_model) is of_model
    assert rates.of_deployment(deployment, of_deployment) is of_deployment
    model.calls["refused"] += 1
    deployment.attempts["timeout"] += 1
    assert rates.of_model(model, of_model).calls == rates.of_deployment(deployment, of_deployment).attempts == 2


def test_attempts_that_end_for_the_calls_sake_do_not_judge_a_deployment() -> None:
    counts = DeploymentCounts()
    for outcome in ("ok", "ok", "ok", "rate_limit", "client_cancelled", "superseded", "invalid_request"):
        counts.attempts[outcome] += 1
    counts.timeouts["idle"] += 1
    counts.retries["rate_limit"] += 2
    found = rates.of_deployment(counts)
    assert (found.calls, found.attempts, found.judged, found.ok) == (7, 7, 4, 3)
    assert (found.timeouts, found.retries) == (1, 2)
    assert found.success_rate == 0.75


def test_sum_adds_each_number() -> None:
    one = CallTally(1, 2, 3, 4, 5, 6, (1, 0), (0, 2))
    assert rates.total([one, NOTHING, one]) == CallTally(2, 4, 6, 8, 10, 12, (2, 0), (0, 4))
    assert rates.total([]) == NOTHING


def test_nothing_has_no_rate() -> None:
    assert NOTHING.success_rate is None
    assert rates.share(0, 0) is None


# calls that the gateway itself refused


def test_refusals_are_counted_by_cause() -> None:
    counts = ModelCounts()
    counts.calls["refused"] = 5
    counts.refusals.update(breaker=2, limit=2, auth=1)
    assert rates.of_model(counts).refused_by == {"breaker": 2, "limit": 2}
    assert NOTHING.refused_by == {}


def test_call_that_was_refused_is_a_deployments_call_and_no_attempt() -> None:
    counts = DeploymentCounts()
    counts.attempts["ok"] = 1
    before = rates.of_deployment(counts)
    counts.refusals["cooldown"] = counts.turned_away = 3
    now = rates.of_deployment(counts, before)
    assert (now.calls, now.attempts, now.refused_by) == (4, 1, {"cooldown": 3})
    assert now.since(before).refused_by == {"cooldown": 3}
    assert rates.total([now, before, now]).refused_by == {"cooldown": 6}
