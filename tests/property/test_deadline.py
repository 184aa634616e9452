from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_guard.resilience.routing.candidates import (
    Latency,
    LearnedSettings,
    TimeoutSettings,
    attempt_ends_at,
    can_finish,
    first_token_s,
    reserve_s,
)
from tests.effort import repeated

quick = settings(derandomize=True, deadline=None, max_examples=repeated(200))
durations = st.floats(0.001, 100)


@st.composite
def histories(draw: st.DrawFn) -> Latency:
    """Latencies with no, too few, or enough samples, some of them cut short."""
    latency = Latency()
    some = draw(st.lists(durations, min_size=1, max_size=5))
    for duration_s in some * draw(st.sampled_from([0, 1, 20])):
        latency.note(duration_s, 0.0)
    for _ in range(draw(st.sampled_from([0, 1, 30]))):
        latency.note_cut(1e9, 0.0)
    return latency


@given(st.floats(0.001, 600), durations, histories(), histories())
@quick
def test_attempt_has_the_time_it_needs_and_leaves_the_reserve(
    left_s: float, limit_s: float, own: Latency, following: Latency
) -> None:
    kept_s = reserve_s(left_s, limit_s, own, following, 0.0)
    granted_s = attempt_ends_at(0.0, limit_s, left_s, kept_s)
    assert 0 < granted_s <= min(limit_s, left_s)
    assert left_s - granted_s >= kept_s
    if kept_s > 0:
        p99_s = own.quantile(0.99, 0.0)
        assert granted_s >= min(limit_s, left_s / 2)
        assert granted_s >= min(limit_s, inf if p99_s is None else p99_s) * (1 - 1e-12)
        assert kept_s == following.quantile(0.95, 0.0)
    else:
        assert granted_s == min(limit_s, left_s)


@given(durations, st.floats(1, 10), durations, histories())
@quick
def test_learned_first_token_is_within_its_bounds(
    configured_s: float, factor: float, least_s: float, latency: Latency
) -> None:
    chosen = TimeoutSettings(first_token=configured_s, learned=LearnedSettings(factor, least_s))
    limit_s = first_token_s(chosen, latency, 0.0)
    assert min(least_s, configured_s) <= limit_s <= configured_s
    p99_s = latency.quantile(0.99, 0.0)
    if p99_s is None or p99_s == inf:
        assert limit_s == configured_s


@given(st.floats(-10, 200), histories())
@quick
def test_attempt_that_can_finish_has_as_long_as_the_fastest(left_s: float, latency: Latency) -> None:
    fastest_s = latency.quantile(0.05, 0.0)
    needed_s = 0.0 if fastest_s is None or fastest_s == inf else fastest_s
    assert can_finish(0.0, left_s, latency) == (left_s > 0 and left_s >= needed_s)
