from __future__ import annotations

import random
from math import exp, inf

import pytest

from llm_guard.resilience.routing.candidates import (
    CAPACITY,
    DECAY_S,
    ENOUGH,
    FORGOTTEN_S,
    PENALTY,
    WINDOW_S,
    Latency,
    LatencySnapshot,
    PeakEwma,
    PeakEwmaSnapshot,
    known,
)


def noted(*durations_s: float, now: float = 0.0) -> Latency:
    latency = Latency()
    for duration_s in durations_s:
        latency.note(duration_s, now)
    return latency


def hundred() -> Latency:
    """Returns samples of 1 s to 100 s in mixed order."""
    return noted(*(float(i * 37 % 101) for i in range(1, 101)))


def test_quantiles_are_those_of_the_sample_by_nearest_rank() -> None:
    latency = hundred()
    found = [latency.quantile(q, 0.0) for q in (0.01, 0.05, 0.5, 0.501, 0.95, 0.99, 0.991, 1.0)]
    assert found == [1.0, 5.0, 50.0, 51.0, 95.0, 99.0, 100.0, 100.0]


@pytest.mark.parametrize("percent", range(1, 100))
def test_every_percentile_is_exact_in_spite_of_floats(percent: int) -> None:
    assert hundred().quantile(percent / 100, 0.0) == percent


def test_quantile_needs_twenty_exchanges() -> None:
    latency = noted(*[1.0] * (ENOUGH - 1))
    assert latency.quantile(0.5, 0.0) is None
    latency.note(1.0, 0.0)
    assert latency.quantile(0.5, 0.0) == 1.0


def test_sample_forgets_after_five_minutes_to_the_second() -> None:
    latency = noted(*[1.0] * 20)
    latency.note(9.0, 1.0)
    assert latency.quantile(0.5, WINDOW_S - 0.001) == 1.0
    assert latency.quantile(0.5, WINDOW_S) is None
    assert latency.snapshot(WINDOW_S).count == 1
    assert latency.snapshot(WINDOW_S + 1).count == 0


def test_sample_retains_the_last_512() -> None:
    latency = noted(*[9.0] * CAPACITY)
    for i in range(CAPACITY - 1):
        latency.note(1.0, i / CAPACITY)
    assert latency.snapshot(2.0).count == CAPACITY
    assert latency.quantile(1.0, 2.0) == 9.0
    latency.note(1.0, 2.0)
    assert latency.quantile(1.0, 2.0) == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_sample_is_the_same_after_any_number_of_reads(seed: int) -> None:
    at_once, now_and_then, at_last = Latency(), Latency(), Latency()
    all_of_them, draw = (at_once, now_and_then, at_last), random.Random(seed)
    now = 0.0
    for _ in range(3 * CAPACITY):
        now += draw.expovariate(3.0)
        duration_s, is_cut = draw.random(), draw.random() < 0.02
        for latency in all_of_them:
            latency.note_cut(2.0, now) if is_cut else latency.note(duration_s, now)
        at_once.quantile(0.5, now)
        if draw.random() < 0.01:
            now_and_then.quantile(0.5, now)
            assert now_and_then.snapshot(now) == at_once.snapshot(now)
    assert at_once.snapshot(now) == now_and_then.snapshot(now) == at_last.snapshot(now)
    assert 0 < at_last.snapshot(now).cut < at_last.snapshot(now).count


def test_sample_that_is_never_read_is_the_last_512_as_well() -> None:
    at_once, at_last = Latency(), Latency()
    for i in range(2 * CAPACITY):
        for latency in (at_once, at_last):
            latency.note(float(i), 0.0)
        at_once.quantile(0.5, 0.0)
        if i == CAPACITY // 2:
            at_last.quantile(0.5, 0.0)
    assert at_last.snapshot(0.0) == at_once.snapshot(0.0)
    assert at_last.snapshot(0.0).count == CAPACITY


def test_cut_exchange_is_longer_than_all_that_finished() -> None:
    """Survivors alone would make a deployment that answers 90 of 100 in 1 s and hangs on the rest look as fast."""
    latency = noted(*[1.0] * 90)
    for _ in range(10):
        latency.note_cut(1.5, 0.0)
    assert latency.quantile(0.9, 0.0) == 1.0
    assert latency.quantile(0.91, 0.0) == inf
    assert latency.snapshot(0.0) == LatencySnapshot(p50_s=1.0, p95_s=None, p99_s=None, count=100, cut=10)


def test_cut_before_the_median_proves_nothing() -> None:
    latency = hundred()
    latency.note_cut(50.9, 0.0)
    assert latency.snapshot(0.0).cut == 0
    latency.note_cut(51.0, 0.0)
    assert latency.snapshot(0.0).cut == 1


def test_deployment_that_never_finishes_has_infinite_quantiles_and_is_then_forgotten() -> None:
    latency = Latency()
    for _ in range(CAPACITY + 88):
        latency.note_cut(5.0, 0.0)
    assert latency.quantile(0.05, 0.0) == inf
    assert latency.snapshot(0.0) == LatencySnapshot(None, None, None, CAPACITY, CAPACITY)
    assert latency.quantile(0.05, WINDOW_S) is None


def test_cut_is_judged_only_by_the_remembered_sample() -> None:
    latency = noted(*[60.0] * 30)
    latency.note_cut(1.0, WINDOW_S)
    assert latency.snapshot(WINDOW_S).cut == 1


def test_missing_or_infinite_latency_is_unknown() -> None:
    assert [known(each) for each in (None, inf, 0.0, 2.0)] == [None, None, 0.0, 2.0]


def test_snapshot_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        noted().snapshot(0.0).count = 1  # type: ignore[misc]


def test_peak_is_unknown_at_first() -> None:
    ewma = PeakEwma()
    assert ewma.cost_s(0.0) is None
    assert ewma.snapshot(0.0) == PeakEwmaSnapshot(None, None)


def test_peak_rises_at_once() -> None:
    ewma = PeakEwma()
    ewma.note(0.1, 0.0)
    ewma.note(5.0, 0.001)
    assert ewma.cost_s(0.001) == 5.0


def test_peak_falls_with_a_time_constant_of_ten_seconds() -> None:
    ewma = PeakEwma()
    ewma.note(5.0, 0.0)
    assert ewma.cost_s(DECAY_S) == pytest.approx(5 / exp(1))
    ewma.note(1.0, DECAY_S)
    assert ewma.cost_s(DECAY_S) == pytest.approx(5 / exp(1) + 1 - 1 / exp(1))


def test_reading_the_peak_does_not_change_it() -> None:
    read, unread = PeakEwma(), PeakEwma()
    for ewma in (read, unread):
        ewma.note(5.0, 0.0)
    for tenth in range(100):
        read.cost_s(tenth / 10)
    for ewma in (read, unread):
        ewma.note(1.0, 10.0)
    assert read.snapshot(10.0) == unread.snapshot(10.0)


def test_peak_is_forgotten_after_thirty_seconds_of_silence() -> None:
    ewma = PeakEwma()
    ewma.note(5.0, 0.0)
    assert ewma.cost_s(FORGOTTEN_S) == pytest.approx(5 / exp(3))
    assert ewma.cost_s(FORGOTTEN_S + 0.1) is None
    assert ewma.snapshot(FORGOTTEN_S + 0.1).usual_s == 5.0


def test_fast_failure_costs_ten_usual_answers() -> None:
    """Scenario A44: an error after 5 ms must not look fast."""
    ewma = PeakEwma()
    ewma.note(2.0, 0.0)
    ewma.note_failure(0.005, 0.0)
    assert ewma.cost_s(0.0) == PENALTY * 2.0


def test_failures_do_not_feed_the_penalty() -> None:
    ewma = PeakEwma()
    ewma.note(2.0, 0.0)
    for second in range(100):
        ewma.note_failure(0.005, float(second))
    assert ewma.cost_s(99.0) == pytest.approx(PENALTY * 2.0)


def test_failure_without_a_good_answer_costs_ten_seconds_and_a_slow_one_its_time() -> None:
    ewma = PeakEwma()
    ewma.note_failure(0.005, 0.0)
    assert ewma.cost_s(0.0) == 10.0
    ewma.note_failure(45.0, 0.0)
    assert ewma.cost_s(0.0) == 45.0


def test_first_good_answer_after_failures_is_the_usual_one() -> None:
    ewma = PeakEwma()
    ewma.note_failure(0.005, 0.0)
    ewma.note(2.0, 0.1)
    assert ewma.snapshot(0.1).usual_s == 2.0


def test_cut_exchange_can_only_raise_the_cost() -> None:
    ewma = PeakEwma()
    ewma.note(2.0, 0.0)
    ewma.note_cut(0.1, 1.0)
    assert ewma.cost_s(1.0) == pytest.approx(2 * exp(-0.1))
    ewma.note_cut(7.0, 1.0)
    assert ewma.snapshot(1.0) == PeakEwmaSnapshot(7.0, 2.0)


def test_cut_raises_a_cost_that_has_decayed_below_it() -> None:
    ewma = PeakEwma()
    ewma.note(8.0, 0.0)
    ewma.note_cut(6.0, 20.0)
    cost_s = ewma.cost_s(20.0)
    assert cost_s is not None
    assert 6.0 <= cost_s < 8.0
