from __future__ import annotations

import math

import pytest

from llm_guard.resilience.alerts.baseline import Gains, Trend


def fed(trend: Trend, mean: float, begin: float, end: float, sums: tuple[float, float] = (0, 0)) -> tuple[float, float]:
    """Notes one answer per second that took `mean` seconds; returns the sums at the end."""
    total, weight = sums
    now = begin
    while now < end:
        total, weight, now = total + mean, weight + 1, now + 1
        trend.note(total, weight, now)
    return total, weight


def test_baseline_without_data_is_unknown() -> None:
    trend = Trend(300, 14_400)
    assert (trend.recent.weight, trend.usual.weight, trend.recent.value) == (0, 0, 0)


def test_first_note_sets_where_the_sums_begin() -> None:
    trend = Trend(300, 14_400)
    trend.note(5000, 1000, 0)
    trend.note(5003, 1001, 1)
    assert (trend.recent.total, trend.recent.weight) == (3, 1)


def test_all_is_recent_until_the_window_is_full() -> None:
    trend = Trend(300, 14_400)
    trend.note(0, 0, 0)
    fed(trend, 1.0, 0, 299)
    assert (trend.recent.weight, trend.usual.weight) == (299, 0)


def test_values_that_leave_the_window_become_the_baseline() -> None:
    trend = Trend(300, 14_400)
    trend.note(0, 0, 0)
    fed(trend, 2.0, 0, 900)
    assert trend.recent.weight == pytest.approx(300, abs=10)
    assert trend.usual.weight == pytest.approx(600, rel=0.03)
    assert trend.usual.value == pytest.approx(2.0)


def test_rise_is_not_held_against_itself() -> None:
    trend = Trend(300, 14_400)
    trend.note(0, 0, 0)
    sums = fed(trend, 1.0, 0, 3600)
    fed(trend, 2.0, 3600, 3890, sums)
    assert trend.usual.value == pytest.approx(1.0)
    assert trend.recent.value == pytest.approx(2.0, rel=0.05)


def test_lasting_change_becomes_the_baseline_in_the_end() -> None:
    trend = Trend(300, 3600)
    trend.note(0, 0, 0)
    sums = fed(trend, 1.0, 0, 20_000)
    fed(trend, 2.0, 20_000, 20_000 + 300 + 3600, sums)
    assert trend.usual.value == pytest.approx(2 - math.exp(-1), rel=0.02)


def test_nothing_new_empties_the_window() -> None:
    trend = Trend(300, 14_400)
    trend.note(0, 0, 0)
    total, weight = fed(trend, 1.0, 0, 600)
    for now in range(601, 1000):
        trend.note(total, weight, now)
    assert trend.recent.weight == 0
    assert trend.usual.weight == pytest.approx(600, rel=0.05)


def test_long_gap_between_two_notes_is_no_trouble() -> None:
    trend = Trend(300, 3600)
    trend.note(0, 0, 0)
    fed(trend, 1.0, 0, 600)
    trend.note(600, 600, 1e6)
    trend.note(600, 600, 2e6)
    assert trend.recent.weight == 0
    assert trend.usual.weight == pytest.approx(0, abs=1e-6)


def test_window_is_stored_in_few_marks() -> None:
    trend = Trend(300, 14_400)
    for step in range(100_000):
        trend.note(step, step, step / 100)
    assert len(trend._marks) <= 33


def test_window_may_be_replaced() -> None:
    trend = Trend(300, 14_400)
    trend.note(0, 0, 0)
    sums = fed(trend, 1.0, 0, 600)
    trend.over_s = 60
    fed(trend, 1.0, 600, 601, sums)
    assert trend.recent.weight == pytest.approx(60, abs=10)


# increments within a window


def test_gains_are_those_of_the_window_and_of_no_more_than_a_note_before_it() -> None:
    gains = Gains(10.0, (0, 0), 0.0)
    assert gains.note((5, 1), 1.0)[0] == (5, 1)
    assert gains.note((7, 1), 10.0)[0] == (7, 1)
    assert gains.note((8, 1), 10.5)[0] == (8, 1)
    assert gains.note((8, 2), 11.0)[0] == (3, 1)
    assert gains.note((8, 2), 60.0)[0] == (0, 0)


def test_shorter_window_holds_from_the_next_note_on() -> None:
    gains = Gains(60.0, (0,), 0.0)
    assert gains.note((5,), 30.0)[0] == (5,)
    gains.over_s = 10.0
    assert gains.note((6,), 41.0)[0] == (1,)


def test_window_of_few_gains_is_longer_and_states_its_length() -> None:
    gains = Gains(10.0, (0,), 0.0)
    for second in range(1, 100):
        gains.note((second,), float(second))
    assert gains.note((100,), 100.0) == ((10,), 10.0)
    assert gains.note((100,), 101.0, lambda found: found[0] < 20) == ((20,), 21.0)
    assert gains.note((100,), 102.0, lambda found: found[0] < 100) == ((58,), 60.0)
