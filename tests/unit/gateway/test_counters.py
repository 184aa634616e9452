from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from llm_guard.gateway.counters import CallCounters, Distribution
from llm_guard.ops.metrics import new_registry, render

BOUNDS = (0.1, 0.5, 1, 30)


def registered() -> tuple[CallCounters, CollectorRegistry]:
    counters, registry = CallCounters(), CollectorRegistry()
    registry.register(counters)
    return counters, registry


@pytest.mark.parametrize(
    ("value", "index"), [(0.0, 0), (0.1, 0), (0.10001, 1), (1, 2), (30, 3), (30.1, 4), (float("inf"), 4)]
)
def test_value_is_counted_below_the_first_bound_that_it_does_not_exceed(value: float, index: int) -> None:
    seen = Distribution(BOUNDS)
    seen.note(value)
    assert seen.counts == [int(each == index) for each in range(5)]
    assert seen.sum == value


@given(st.lists(st.floats(0, 1000) | st.sampled_from([0.05, 0.1, 0.25, 1.0, 30.0, 600.0])))
def test_histogram_is_the_one_that_prometheus_client_would_keep(values: list[float]) -> None:
    counters, registry = registered()
    seen = counters.models["m"].call_duration
    theirs = new_registry()  # without `_created`
    histogram = Histogram("llm_guard_call_duration_seconds", "A call.", ["model"], registry=theirs, buckets=seen.bounds)
    for value in values:
        seen.note(value)
        histogram.labels("m").observe(value)

    def samples(registry: CollectorRegistry) -> list[tuple[str, dict[str, str], float]]:
        families = [each for each in registry.collect() if each.name == "llm_guard_call_duration_seconds"]
        return [(each.name, each.labels, each.value) for family in families for each in family.samples]

    assert samples(registry) == samples(theirs)


def test_page_of_a_gateway_without_calls_names_every_metric_and_shows_no_value() -> None:
    _, registry = registered()
    page = render(registry).decode().splitlines()
    assert all(line.startswith("# ") for line in page)
    assert [line.split()[2] for line in page if line.startswith("# TYPE")] == [
        "llm_guard_calls_total",
        "llm_guard_attempts_total",
        "llm_guard_retries_total",
        "llm_guard_fallbacks_total",
        "llm_guard_refusals_total",
        "llm_guard_timeouts_total",
        "llm_guard_tokens_total",
        "llm_guard_call_duration_seconds",
        "llm_guard_time_to_first_token_seconds",
        "llm_guard_upstream_duration_seconds",
        "llm_guard_overhead_seconds",
        "llm_guard_hedges_total",
        "llm_guard_recoveries_total",
        "llm_guard_tokens_thrown_away_total",
        "llm_guard_malformed_events_total",
        "llm_guard_queue_wait_seconds",
        "llm_guard_retry_delay_seconds",
        "llm_guard_in_flight_calls",
    ]


def test_only_what_was_counted_is_shown() -> None:
    counters, registry = registered()
    counters.models["m"].refusals["limit"] += 1
    counters.deployments["a/x"].queue_wait.note(31.0)
    shown = {sample.name: sample for family in registry.collect() for sample in family.samples}
    assert set(shown) == {"llm_guard_refusals_total"} | {
        f"llm_guard_queue_wait_seconds_{part}" for part in ("bucket", "count", "sum")
    }
    assert shown["llm_guard_refusals_total"].labels == {"model": "m", "by": "limit"}
    assert registry.get_sample_value("llm_guard_queue_wait_seconds_bucket", {"deployment": "a/x", "le": "30.0"}) == 0
    assert registry.get_sample_value("llm_guard_queue_wait_seconds_bucket", {"deployment": "a/x", "le": "+Inf"}) == 1


def test_labels_beyond_the_first_are_the_key() -> None:
    counters, registry = registered()
    counters.models["m"].recoveries["prefill", "ok"] += 2
    counters.models["m"].tokens_thrown_away[()] += 5
    shown = {tuple(sorted(sample.labels.items())): sample.value for f in registry.collect() for sample in f.samples}
    assert shown == {(("manner", "prefill"), ("model", "m"), ("outcome", "ok")): 2, (("model", "m"),): 5}


def test_models_without_calls_in_flight_show_none_only_if_they_had_some() -> None:
    counters, registry = registered()
    counters.models["busy"].begun = counters.models["quiet"].begun = counters.models["quiet"].ended = 3
    counters.models["refused"].calls["refused"] += 1
    values = {name: registry.get_sample_value("llm_guard_in_flight_calls", {"model": name}) for name in counters.models}
    assert values == {"busy": 3, "quiet": 0, "refused": None}
