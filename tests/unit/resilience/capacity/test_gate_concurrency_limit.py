from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import get_args

import pytest

from llm_guard.resilience.capacity.gate import RAMP_START, Ending, Limiter
from llm_guard.resilience.capacity.settings import LimiterSettings

ADAPTIVE = LimiterSettings(concurrency="adaptive")


def limiter(**changes: object) -> Limiter:
    return Limiter(replace(ADAPTIVE, **changes))  # type: ignore[arg-type]  # names and types are each test's own


def note(
    law: Limiter, ending: Ending, at: float, latency_s: float | None = None, *, entered_at: float | None = None
) -> int:
    """Notes one call that ends while the limit is in use; returns the limit after it."""
    limit = law.limit(at)
    assert limit is not None
    law.note(ending, at if entered_at is None else entered_at, at, latency_s, limit)
    return law.limit(at) or 0


def test_without_a_limit_every_call_enters() -> None:
    law = Limiter(LimiterSettings())
    law.note("overloaded", 0.0, 0.0, None, 10**6)
    assert law.limit(0.0) is None
    assert law.opens_at(10**6, 0.0) == -inf


def test_fixed_limit_does_not_move() -> None:
    law = Limiter(LimiterSettings(concurrency=3))
    for ending in ("ok", "overloaded", "failed"):
        law.note(ending, 0.0, 0.0, 1.0, 3)
    assert law.limit(0.0) == 3
    assert law.opens_at(2, 0.0) == -inf
    assert law.opens_at(3, 0.0) == inf


def test_overloads_take_more_the_more_there_are() -> None:
    law = limiter()
    assert law.limit(0.0) == 20
    assert [note(law, "overloaded", float(at)) for at in range(1, 6)] == [19, 17, 14, 11, 8]


def test_burst_of_failures_is_one_signal() -> None:
    law = limiter()
    assert [note(law, "overloaded", 1.0 + i / 100, entered_at=0.9) for i in range(10)] == [19] * 10
    assert note(law, "overloaded", 2.0, entered_at=1.0) < 19


def test_limit_grows_by_one_for_an_answer_that_finds_half_of_it_in_use() -> None:
    law = limiter()
    law.note("ok", 0.0, 1.0, None, 10)
    assert law.limit(1.0) == 21


def test_limit_does_not_grow_when_idle() -> None:
    law = limiter()
    for _ in range(100):
        law.note("ok", 0.0, 1.0, 0.1, 9)
    assert law.limit(1.0) == 20


@pytest.mark.parametrize("ending", ["failed", "rate_limited"])
def test_other_failures_prove_nothing_about_the_limit(ending: Ending) -> None:
    assert note(limiter(), ending, 1.0, 0.1) == 20


def test_limit_stays_within_its_bounds() -> None:
    law = limiter(min_concurrency=10, max_concurrency=22)
    assert [note(law, "overloaded", float(at)) for at in range(1, 9)][-1] == 10
    assert [note(law, "ok", float(at)) for at in range(100, 200)][-1] == 22


def test_limit_grows_again_from_the_minimum_after_a_minute_at_most() -> None:
    law = limiter(min_concurrency=10)
    for at in range(1, 30):
        note(law, "overloaded", float(at))
    assert note(law, "ok", 90.0) == 11


def test_start_is_within_the_bounds_and_the_maximum_wins() -> None:
    assert limiter(min_concurrency=50).limit(0.0) == 50
    assert limiter(max_concurrency=2).limit(0.0) == 2


def test_answer_slower_than_slow_is_an_overload() -> None:
    law = limiter(latency_threshold=2.0)
    assert note(law, "ok", 1.0, 2.0) == 21
    assert note(law, "ok", 2.0, 2.01) == 19
    assert note(law, "failed", 3.0, 2.01) < 19


def test_where_slow_is_set_the_usual_latency_does_not_matter() -> None:
    law = limiter(latency_threshold=2.0)
    for at in range(5):
        note(law, "ok", float(at), 0.01)
    assert note(law, "ok", 9.0, 1.9) == 26


def warm(law: Limiter, latency_s: float = 0.1, answers: int = 200) -> float:
    """Notes steady answers without load, which leave the limit unchanged; returns the instant after them."""
    for i in range(answers):
        law.note("ok", i / 10, i / 10, latency_s, 1)
    return answers / 10


def test_latency_within_the_tolerance_does_not_decrease_the_limit() -> None:
    law = limiter()
    now = warm(law)
    limits = [note(law, "ok", now + i, 0.149) for i in range(20)]
    assert limits == list(range(21, 41))


def test_latency_that_doubles_decreases_the_limit_by_a_tenth_a_round_trip_at_most() -> None:
    """Scenario A41."""
    law = limiter(min_concurrency=5)
    now = warm(law)
    limits = [20, *(note(law, "ok", now + i * 0.4, 0.4) for i in range(60))]
    assert limits[-1] == 5
    assert all(after >= before * 0.9 - 1 for before, after in pairwise(limits))


def test_smallest_gradient_takes_a_tenth() -> None:
    law = limiter()
    now = warm(law)
    note(law, "ok", now, 10.0)
    assert law.snapshot(now).limit == 18


def test_limit_recovers_when_latency_is_back() -> None:
    law = limiter(min_concurrency=5)
    now = warm(law)
    for i in range(60):
        note(law, "ok", now + i * 0.4, 0.4)
    limits = [note(law, "ok", now + 30 + i / 10, 0.1) for i in range(60)]
    assert limits[-1] > 40


def test_usual_latency_falls_soon_after_a_long_overload() -> None:
    law = limiter()
    now = warm(law, 2.0)
    for i in range(60):
        law.note("ok", now, now + i / 10, 0.1, 1)
    assert (law.snapshot(now).usual_latency_s or inf) < 0.25


def test_busy_deployment_does_not_get_used_to_its_overload() -> None:
    """Ten seconds at a thousand answers a second."""
    law = limiter()
    now = warm(law)
    for i in range(10_000):
        law.note("ok", now, now + i / 1000, 0.4, 1)
    assert (law.snapshot(now).usual_latency_s or inf) < 0.25


def test_slow_latency_becomes_usual_with_time() -> None:
    law = limiter()
    now = warm(law)
    for minute in range(60):
        law.note("ok", now, now + 60 * minute, 0.4, 1)
    assert (law.snapshot(now).usual_latency_s or 0.0) > 0.38


def test_limit_finds_the_capacity_of_a_server() -> None:
    """The server handles 50 calls at a time in 0.1 s and slows down in proportion beyond that; demand is constant."""
    law = limiter()
    now, in_flight, limits = 0.0, 0, []
    ends: list[tuple[float, float]] = []
    while now < 60:
        while law.opens_at(in_flight, now) <= now:
            in_flight += 1
            heapq.heappush(ends, (now + 0.1 * max(1.0, in_flight / 50), now))
        now, entered_at = heapq.heappop(ends)
        law.note("ok", entered_at, now, now - entered_at, in_flight)
        in_flight -= 1
        limits.append(law.limit(now) or 0)
    settled = limits[len(limits) // 2 :]
    assert min(settled) >= 45
    assert max(settled) <= 200
    assert 50 <= sum(settled) / len(settled) <= 110


def test_ramp_begins_with_four_and_adds_one_for_every_success() -> None:
    law = Limiter(LimiterSettings())
    law.ramp(10.0, 5.0, 0)
    assert law.limit(10.0) == RAMP_START == 4
    assert law.opens_at(3, 10.0) == -inf
    assert law.opens_at(4, 10.0) == 15.0
    law.note("ok", 10.0, 11.0, 0.1, 2)
    law.note("failed", 10.0, 11.0, 0.1, 2)
    assert law.limit(11.0) == 5
    assert law.limit(14.9) == 5
    assert law.limit(15.0) is None
    assert law.opens_at(100, 15.0) == -inf


def test_call_from_before_the_outage_does_not_speed_up_the_ramp() -> None:
    law = Limiter(LimiterSettings())
    law.ramp(10.0, 5.0, 1)
    law.note("ok", 9.0, 11.0, 2.0, 2)
    assert law.limit(11.0) == RAMP_START


def test_ramp_begins_with_half_of_the_usual_calls_in_flight() -> None:
    """From 4, a busy deployment with slow answers would refuse calls for as long as the ramp lasts."""
    law = Limiter(LimiterSettings())
    now = busy(law, 400)
    law.ramp(now + 600.0, 10.0, 0)
    assert 180 <= (law.limit(now + 600.0) or 0) <= 200


def busy(law: Limiter, in_flight: int, seconds: int = 60) -> float:
    """Notes a history with `in_flight` concurrent calls and ten successes a second; returns the instant after it."""
    for i in range(seconds * 10):
        law.note("ok", i / 10 - 1.0, i / 10, 1.0, in_flight)
    return float(seconds)


def test_usual_number_in_flight_is_that_of_the_last_ten_seconds() -> None:
    law = Limiter(LimiterSettings())
    now = busy(law, 400)
    for i in range(300):
        law.note("ok", now, now + i / 10, 1.0, 40)
    law.ramp(now + 30.0, 10.0, 0)
    assert 20 <= (law.limit(now + 30.0) or 0) <= 32


def test_failures_a_long_outage_and_a_ramp_do_not_change_the_usual_level() -> None:
    law = Limiter(LimiterSettings())
    now = busy(law, 400)
    law.ramp(now, 10.0, 0)
    start = law.limit(now)
    for i in range(90):
        law.note("ok", now, now + i / 10, 1.0, 5)
    for i in range(600):
        law.note("failed", now, now + 10 + i, 1.0, 5)
    law.ramp(now + 700, 10.0, 0)
    assert law.limit(now + 700) == start
    law.note("ok", now + 600, now + 711, 1.0, 1)
    law.ramp(now + 711, 10.0, 0)
    assert (law.limit(now + 711) or 0) > 160, "one answer after a pause is one answer"


def test_calls_that_hang_from_before_the_ramp_take_none_of_its_places() -> None:
    law = Limiter(LimiterSettings())
    law.ramp(10.0, 5.0, 300)
    assert law.limit(10.0) == 304
    assert law.opens_at(303, 10.0) == -inf
    assert law.opens_at(304, 10.0) == 15.0
    for i, ending in enumerate(get_args(Ending)):
        law.note(ending, 3.0, 11.0, None, 304 - i)
        assert law.limit(11.0) == 303 - i, "its place is gone with it"
    law.note("ok", 10.5, 11.0, None, 299)
    assert law.limit(11.0) == 300


def test_ramp_doubles_once_per_round_trip() -> None:
    law = Limiter(LimiterSettings())
    law.ramp(0.0, 10.0, 0)
    for trip in range(1, 5):
        for _ in range(law.limit(float(trip)) or 0):
            law.note("ok", trip - 0.5, float(trip), 0.5, 1)
    assert law.limit(5.0) == 64


def test_ramp_does_not_raise_the_limit() -> None:
    law = Limiter(LimiterSettings(concurrency=1))
    law.ramp(0.0, 10.0, 0)
    assert law.limit(0.0) == 1
    assert law.opens_at(1, 0.0) == inf


def test_second_ramp_starts_from_the_bottom() -> None:
    law = Limiter(LimiterSettings())
    law.ramp(0.0, 10.0, 0)
    law.note("ok", 0.0, 1.0, None, 1)
    law.ramp(2.0, 10.0, 0)
    assert law.snapshot(2.0).limit == RAMP_START
    assert law.snapshot(2.0).ramp_until == 12.0
    assert law.snapshot(12.0).ramp_until is None


def test_settings_may_change_at_any_moment() -> None:
    law = limiter()
    law.settings = LimiterSettings(concurrency=7)
    assert law.limit(0.0) == 7
    law.settings = LimiterSettings(concurrency="adaptive", max_concurrency=9)
    assert law.limit(0.0) == 9


def test_snapshot_shows_latencies_once_there_are_any() -> None:
    law = limiter()
    assert (law.snapshot(0.0).latency_s, law.snapshot(0.0).usual_latency_s) == (None, None)
    note(law, "ok", 1.0, 0.3)
    assert (law.snapshot(1.0).latency_s, law.snapshot(1.0).usual_latency_s) == (0.3, 0.3)
