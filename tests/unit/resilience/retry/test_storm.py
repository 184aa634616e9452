"""Small runs of `benchmarks/storm`: the simulation agrees with known results, and the policies hold."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from benchmarks.scenario_coverage import COVERAGE, IDS
from benchmarks.storm import breakers, budgets, jitter, metastable, recovery, throttle
from benchmarks.storm.frontier import Point
from benchmarks.storm.metastable import Course, Scheme
from benchmarks.storm.report import page
from benchmarks.storm.row import Row
from benchmarks.storm.simulate import Provider, Request, Timeline
from tests.effort import some

ROOT = Path(__file__).parents[4]
SCHEMES = {scheme.name: scheme for scheme in metastable.SCHEMES}


def storm(scheme: str, rate: int, watched_s: int = 30) -> Course:
    return metastable.storm(SCHEMES[scheme], rate, seed=7, watched_s=watched_s)


@cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


# virtual time


def test_simultaneous_events_happen_in_order_of_arrival() -> None:
    timeline, seen = Timeline(), list[str]()
    for name, at in (("c", 2.0), ("a", 1.0), ("b", 1.0)):
        timeline.at(at, lambda name=name: seen.append(name))  # type: ignore[misc]  # the default binds the name
    timeline.run(until=1.0)
    assert (seen, timeline.now) == (["a", "b"], 1.0)
    timeline.run()
    assert (seen, timeline.now) == (["a", "b", "c"], 2.0)


@pytest.mark.parametrize(("is_told", "served_at"), [(True, 20.0), (False, 22.0)])
def test_provider_that_sees_disconnects_drops_abandoned_requests(is_told: bool, served_at: float) -> None:
    timeline, served = Timeline(), list[float]()
    provider = Provider(timeline, 1.0, (10.0, 20.0), is_told)
    requests = [Request(lambda: served.append(timeline.now)) for _ in range(3)]

    def leave() -> None:
        for request in requests[:2]:
            request.is_abandoned = True

    for request in requests:
        timeline.at(15.0, partial(provider.send, request))
    timeline.at(16.0, leave)
    timeline.run()
    assert served == [served_at]


# recovery


@pytest.mark.parametrize("rate", [200, 280])
def test_naive_retries_prevent_the_recovery_of_a_provider(rate: int) -> None:
    """Scenario A45: twice the rate exceeds the capacity."""
    course = storm(metastable.NAIVE, rate)
    assert course.recovered_s is None
    assert sum(course.goodput[-15:]) == 0


def test_without_retries_the_queue_drains() -> None:
    """Scenario A45: 8 s at 140 calls/s."""
    recovered_s = storm("no retries", 140).recovered_s
    assert recovered_s is not None
    assert abs(recovered_s - 8) <= 2


@pytest.mark.parametrize(("rate", "most_s"), [(140, 6), (200, 6), (280, 12)])
def test_our_policies_allow_a_recovery(rate: int, most_s: int) -> None:
    """Scenario A46."""
    course = storm(metastable.OURS, rate)
    assert course.recovered_s is not None
    assert course.recovered_s <= most_s
    assert course.requests_per_call < 0.2


@pytest.mark.parametrize("death", recovery.DEATHS)
@pytest.mark.parametrize("answer_s", some(recovery.ANSWERS_S))
def test_calls_are_served_again_soon_after_any_outage(death: recovery.Death, answer_s: float) -> None:
    """95 % succeed from 10 s after the recovery on, with few requests before. The benchmark runs long outages."""
    lengths_s, rates_per_s = (2.0, 8.0, 60.0), (0.5, 50.0, 200.0)
    rows = recovery.rows(recovery.run(recovery.matrix(lengths_s, rates_per_s, (answer_s,), (death,))))
    assert len(rows) == 3
    assert not [row.broken for row in rows if row.broken]


def test_ramp_from_four_in_flight_would_turn_calls_away() -> None:
    """Shows why the ramp starts at recent concurrency, which is unknown without calls before the outage. From 4, one
    call in 35 is turned away, and from 2, one in 33."""
    outages = recovery.matrix((60.0,), (200.0,), (2.0,), ("503 at once",))
    (cold,), (warm,) = recovery.run(outages, quiet_s=0.0), recovery.run(outages)
    assert cold.share < 0.972
    assert warm.share == 1.0
    assert warm.most_in_flight < 1000


def test_recovery_is_no_luck_of_one_length_of_outage() -> None:
    assert metastable.whenever(lengths_s=(7, 11)).verdict == "holds"


def test_provider_that_sees_timeouts_comes_back_at_once() -> None:
    """Scenario A48."""
    assert storm(metastable.TOLD, 280).recovered_s in (0, 1)


def test_relapse_is_no_recovery() -> None:
    """The outage resumes at the end of the observed period: the healthy part in between does not count."""
    course = metastable.recovered_after([1.0] * 20 + [0.0] * 5 + [1.0] * 5 + [0.5] + [1.0] * 3, back_s=25)
    assert course == 6
    assert metastable.recovered_after([1.0] * 30 + [0.9], back_s=25) is None


def test_the_same_seed_is_the_same_storm() -> None:
    scheme = Scheme("any", budget=SCHEMES[metastable.BUDGET].budget)
    first, again, other = (metastable.storm(scheme, 140, seed=seed, watched_s=5) for seed in (7, 7, 8))
    assert first == again != other


# herds


def test_herd_is_spread_as_expected() -> None:
    """Scenario A26."""
    rows = jitter.herd_rows(jitter.herds())
    assert not [row.broken for row in rows if row.broken]
    assert {row.measured for row in rows if "no jitter" in row.what or "exactly" in row.what} == {"1,000"}


def test_herd_meets_an_open_breaker() -> None:
    with_breaker, without = (jitter.as_configured(has_breaker=has_breaker) for has_breaker in (True, False))
    assert with_breaker == (1, 1), "one early probe"
    assert 0 < without[0] <= jitter.HERD


def test_busiest_bucket_is_counted() -> None:
    assert jitter.busiest((0.05, 0.1, 0.15, 0.199, 0.2)) == 3
    assert jitter.busiest(()) == 0


def test_full_jitter_halves_the_calls_of_contending_writers() -> None:
    """Scenario A27, two trials."""
    calls = {
        (contention.name, contention.writers): contention.calls
        for contention in jitter.contentions(trials=2, writers=(100,))
    }
    assert calls["full", 100] <= 0.45 * calls["expo", 100]
    assert calls["±30 %", 100] <= 0.6 * calls["expo", 100]


# circuit breakers, and throttles of the client


def test_naive_window_opens_by_chance_and_the_breaker_does_not() -> None:
    """Scenario A12, 10,000 calls."""
    trips = {false_open.name: false_open.trips for false_open in breakers.false_opens(calls=10_000, rates=(0.3,))}
    assert trips[breakers.naive(10)] > 200
    assert trips[breakers.naive(20)] > 40
    assert {trips[breakers.ours(per_s)] for per_s in breakers.CALLS_PER_S} == {0}


@pytest.mark.parametrize(
    "rows", [breakers.refusing, breakers.load_protection, breakers.stacked, lambda: [breakers.rate_limited()]]
)
def test_dead_provider_is_spared_and_still_probed(rows: Callable[[], list[Row]]) -> None:
    """Scenarios A05, A11, A13 and A17."""
    assert not [row.broken for row in rows() if row.broken]


def test_pacer_sends_little_more_than_is_taken() -> None:
    """Scenario A39."""
    sent = throttle.paced(seconds=70, settled_s=60)
    assert sent.sent <= 111
    assert sent.taken >= 90


def test_dead_provider_is_probed_now_and_then() -> None:
    """Scenario A40."""
    assert 0.2 < throttle.broken_off(is_dead=True).sent < 1.5  # a probe every 1.25 s


# results


def test_missed_target_is_named() -> None:
    points = [Point(scheme, rate, 0.5, 3.0) for scheme in budgets.SCHEMES for rate in (0.01, 0.3, 0.4, 1.0)]
    broken = [row.broken for row in budgets.rows(points) if row.broken]
    assert "brownout llm_guard, adaptive, 40 % fail: 3.000, 50.00 % against ≤ 1.75, ≥ 95 %" in broken


def test_page_shows_every_row_and_every_scenario() -> None:
    written = page([Row("A26", "herd", "29", "31", "broken", "luck")])
    assert "| A26 | herd | 29 | 31 | ✗ **does not hold**: luck |" in written
    assert all(f"| {scenario} |" in written for scenario in IDS)


def test_every_scenario_is_accounted_for_once() -> None:
    assert tuple(each.scenario for each in COVERAGE) == IDS
    assert all(each.where if each.kind != "not" else each.note for each in COVERAGE)


@pytest.mark.parametrize("where", sorted({where for each in COVERAGE for where in each.where}))
def test_place_that_covers_a_scenario_exists(where: str) -> None:
    path, _, name = where.partition("::")
    assert name in functions_of(ROOT / path)
