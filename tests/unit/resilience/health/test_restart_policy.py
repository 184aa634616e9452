from __future__ import annotations

from dataclasses import replace

import pytest

from llm_guard.resilience.health.restart_policy import (
    HOUR_S,
    PRESETS,
    GiveUpWindow,
    RestartSettings,
    delay_s,
    giving_up,
    opens_at,
)

PLAIN = RestartSettings(base_delay=2.0, max_delay=10.0, jitter=0.0, max_attempts=4, max_per_hour=100)


def test_each_wait_is_twice_the_one_before_up_to_the_longest() -> None:
    assert [delay_s(PLAIN, attempt, 0.5) for attempt in range(1, 6)] == [2, 4, 8, 10, 10]


def test_jitter_spreads_a_wait_in_both_directions() -> None:
    spread = replace(PLAIN, jitter=0.25)
    assert [delay_s(spread, 1, u) for u in (0.0, 0.5, 1.0)] == [1.5, 2.0, 2.5]


def test_jitter_stays_below_the_longest_wait() -> None:
    assert delay_s(replace(PLAIN, jitter=1.0), 50, 1.0) == 10.0


def test_time_until_giving_up_is_the_sum_of_all_waits_and_attempts() -> None:
    assert giving_up(PLAIN, 0.0) == GiveUpWindow(24, 24, 24)
    assert giving_up(PLAIN, 30.0) == GiveUpWindow(144, 144, 144)


def test_time_until_giving_up_has_the_bounds_of_the_jitter() -> None:
    spread = replace(PLAIN, jitter=0.5, max_delay=1000.0)
    assert giving_up(spread, 1.0) == GiveUpWindow(19, 34, 49)


def test_hourly_limit_draws_the_time_until_giving_up_out() -> None:
    few = replace(PLAIN, max_per_hour=3)
    # The fourth attempt begins an hour after the first, which began after 2 s.
    assert giving_up(few, 0.0).expected_s == 2 + HOUR_S


def test_hourly_limit_opens_when_the_oldest_that_counts_is_an_hour_old() -> None:
    few = replace(PLAIN, max_per_hour=2)
    assert opens_at(few, [], 50.0) == 50.0
    assert opens_at(few, [10.0], 50.0) == 50.0
    assert opens_at(few, [10.0, 40.0], 50.0) == 10.0 + HOUR_S
    assert opens_at(few, [5.0, 10.0, 40.0], 50.0) == 10.0 + HOUR_S
    assert opens_at(few, [10.0, 40.0], 11.0 + HOUR_S) == 11.0 + HOUR_S


@pytest.mark.parametrize(
    ("preset", "hangs_s"), [("demo", (490, 493)), ("production", (970, 1_099)), ("outage-tolerant", (15_600, 26_000))]
)
def test_presets_give_up_after_minutes_or_hours(preset: str, hangs_s: tuple[float, float]) -> None:
    found = giving_up(PRESETS[preset], 120.0)  # type: ignore[index]
    assert hangs_s[0] <= found.soonest_s <= found.expected_s <= found.latest_s <= hangs_s[1]
