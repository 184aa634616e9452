from __future__ import annotations

import pytest

from llm_guard.proxy.telemetry.recorder import DeploymentCounts, Distribution, ModelCounts

BOUNDS = (0.1, 0.5, 1, 30)


@pytest.mark.parametrize(
    ("value", "index"), [(0.0, 0), (0.1, 0), (0.10001, 1), (1, 2), (30, 3), (30.1, 4), (float("inf"), 4)]
)
def test_value_is_counted_below_the_first_bound_that_it_does_not_exceed(value: float, index: int) -> None:
    seen, of_calls = Distribution(BOUNDS), Distribution(BOUNDS)
    seen.note(value)
    of_calls.note_call(value, "lg-1", 0, 5.0)
    assert seen.counts == of_calls.counts == [int(each == index) for each in range(5)]
    assert seen.sum == of_calls.sum == value


def test_latest_call_is_the_example_of_its_bucket_alone() -> None:
    seen = Distribution(BOUNDS)
    seen.note_call(0.3, "lg-1", 0, 5.0)
    seen.note_call(0.4, "lg-2", 0x4BF9, 6.0)
    seen.note_call(31.0, "lg-3", 0, 7.0)
    seen.note(0.2)
    assert seen.exemplars == [None, ("lg-2", 0x4BF9, 0.4, 6.0), None, None, ("lg-3", 0, 31.0, 7.0)]


def test_buckets_span_the_durations_of_model_calls() -> None:
    counts = ModelCounts()
    for duration in (*counts.call_duration.values(), *DeploymentCounts().upstream_duration.values()):
        assert (duration.bounds[0], duration.bounds[-1]) == (0.05, 600)
    assert (counts.time_to_first_token.bounds[0], counts.time_to_first_token.bounds[-1]) == (0.005, 120)
    assert (counts.overhead.bounds[0], counts.overhead.bounds[-1]) == (0.00005, 1)
