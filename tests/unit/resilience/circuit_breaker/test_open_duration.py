"""How long openings last and when probes pass: alone, within the breaker, and under traffic."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from typing import NamedTuple

import pytest

from llm_guard.outcome import Signal
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings, Permit
from llm_guard.resilience.circuit_breaker.history import BreakerMode, Transition
from llm_guard.resilience.circuit_breaker.open_duration import OpenDuration

HEALTHY, UNHEALTHY, NO_EVIDENCE = Signal.HEALTHY, Signal.UNHEALTHY, Signal.NO_EVIDENCE
EARLY = BreakerSettings(open_jitter=0.0)
AT = 1000.0


def begin(
    opening: OpenDuration,
    now: float,
    *,
    early: bool = True,
    brownout: bool = False,
    open_s: float = 30.0,
    jitter: float = 0,
) -> float:
    """Begins an opening, the first one or the one after a failed probe; returns its length in seconds."""
    opening.begin(now, open_s, 300.0, jitter, has_early_probes=early, is_brownout=brownout)
    return opening.probe_at() - now


def begun(*, early: bool = True, brownout: bool = False) -> OpenDuration:
    opening = OpenDuration(0.0)
    begin(opening, AT, early=early, brownout=brownout)
    return opening


def acquire(breaker: Breaker, now: float) -> Permit:
    permit = breaker.try_acquire(now)
    assert permit is not None
    return permit


def probe(breaker: Breaker, signal: Signal, now: float) -> Transition | None:
    permit = acquire(breaker, now)
    assert permit.is_probe
    return breaker.settle(permit, signal, now)


def opened(settings: BreakerSettings = EARLY, phase: float = 0.0) -> Breaker:
    """Returns a breaker that opened at the instant `AT`."""
    breaker = Breaker(settings, phase)
    for place in range(settings.consecutive_failures):
        at = AT if place else AT - 1.0
        breaker.settle(acquire(breaker, at), UNHEALTHY, at)
    assert breaker.state == "open"
    return breaker


def succeed(breaker: Breaker, now: float) -> None:
    """Makes a hundred successful calls, after which an outage is forgotten."""
    for _ in range(100):
        breaker.settle(acquire(breaker, now), HEALTHY, now)


def probes_until(breaker: Breaker, last_s: float) -> list[float]:
    """Returns when each probe passed, in seconds since the opening. Each fails at once; a call arrives every 1/64 s."""
    probed = []
    for tick in range(1, int(last_s * 64) + 1):
        now = AT + tick / 64
        permit = breaker.try_acquire(now)
        if permit is not None:
            probed.append(now - AT)
            breaker.settle(permit, UNHEALTHY, now)
    return probed


@pytest.mark.parametrize(
    ("outage_s", "length_s"),
    [(0.25, 0.80625), (2.0, 0.85), (8.0, 1.0), (16.0, 1.2), (18.0, 1.25), (28.0, 1.25), (600.0, 1.25), (1e6, 1.25)],
)
def test_openings_with_early_probes_are_800_ms_and_a_fortieth_of_the_outage_up_to_a_longest_one(
    outage_s: float, length_s: float
) -> None:
    assert begin(begun(), AT + outage_s) == pytest.approx(length_s)


def test_first_early_probe_of_each_outage_is_due_after_250_ms() -> None:
    opening = OpenDuration(0.0)
    assert begin(opening, AT) == 0.25
    assert begin(opening, AT + 0.25) > 0.8
    opening.end()
    assert (opening.outage_at, opening.is_brownout) == (None, False)
    assert begin(opening, AT + 100.0) == 0.25


@pytest.mark.parametrize("outage_s", [0.0, 0.25, 8.0, 34.0])
def test_brownout_is_probed_at_intervals_of_250_ms_and_a_fortieth_of_it(outage_s: float) -> None:
    opening = begun(brownout=True)
    assert opening.is_brownout
    assert opening.probe_at() == AT + 0.25
    assert begin(opening, AT + outage_s) == pytest.approx(0.25 + outage_s / 40)
    assert opening.is_brownout, "a probe that fails does not make it an outage"
    assert not begun().is_brownout


@pytest.mark.parametrize(("failed_s", "length_s"), [(30.0, 30.0), (240.0, 30.0), (400.0, 50.0), (4000.0, 300.0)])
def test_openings_without_early_probes_last_open_for_or_an_eighth_of_the_outage(
    failed_s: float, length_s: float
) -> None:
    opening = begun(early=False)
    assert opening.length_s == 30.0
    assert begin(opening, AT + failed_s, early=False) == length_s
    assert (opening.began_at, opening.outage_at) == (AT + failed_s, AT)


def test_no_opening_with_early_probes_is_longer_than_open_for() -> None:
    opening = OpenDuration(0.0)
    assert [begin(opening, AT + at, open_s=0.125) for at in (0.0, 0.125, 60.0)] == [0.125] * 3
    assert begin(opening, AT + 600.0, open_s=1.0) == 1.0


@pytest.mark.parametrize("early", [True, False])
def test_jitter_shortens_each_opening_by_another_share(early: bool) -> None:
    opening = OpenDuration(0.25)
    plain = begun(early=early)
    shares = [begin(opening, AT, early=early, jitter=0.5) / plain.length_s]
    for i in range(1, 6):
        now = AT + 40.0 * i
        shares.append(begin(opening, now, early=early, jitter=0.5) / begin(plain, now, early=early))
    assert shares[0] == 0.875
    assert all(0.5 < share <= 1 for share in shares)
    assert len({round(share, 6) for share in shares}) == 6


@pytest.mark.parametrize(("outage_s", "lease_s"), [(0.25, 1.0), (4.0, 1.0), (20.0, 1.8), (28.0, 2.125), (1e6, 2.125)])
@pytest.mark.parametrize("early", [True, False])
def test_lease_of_a_probe_grows_with_the_outage_from_one_second_to_a_longest_one(
    early: bool, outage_s: float, lease_s: float
) -> None:
    assert begun(early=early).lease_s(AT + outage_s) == pytest.approx(lease_s)


def test_breaker_probes_during_the_whole_outage_at_growing_intervals() -> None:
    probed = probes_until(opened(), 600.0)
    assert probed[:4] == [0.25, 1.0625, 1.890625, 2.75]
    intervals = [after - before for before, after in pairwise(probed)]
    assert intervals == sorted(intervals)
    assert max(intervals) == 1.25
    assert [sum(at <= outage_s for at in probed) for outage_s in (2, 8, 60, 600)] == [3, 9, 52, 484]


@pytest.mark.parametrize("outage_s", [0.3, 1.0, 2.0, 8.0, 60.0, 600.0, 3600.0])
def test_recovery_is_noticed_within_800_ms_and_a_fortieth_of_the_outage(outage_s: float) -> None:
    breaker = opened()
    probes_until(breaker, outage_s)
    assert breaker.retry_after_s(AT + outage_s) <= min(1.25, 0.8 + outage_s / 40)


@pytest.mark.parametrize(
    ("calls_per_s", "interval_s"), [(50, 0.9), (400, 0.625), (1000, 0.3), (4000, 0.3)]
)  # fmt: skip
def test_where_many_calls_are_refused_a_probe_is_one_of_250_of_them(calls_per_s: int, interval_s: float) -> None:
    """If an outage's end is detected late, 1,000 clients that wait for it are served late."""
    breaker, probed = opened(), []
    for tick in range(1, 5 * calls_per_s):
        now = AT + tick / calls_per_s
        permit = breaker.try_acquire(now)
        if permit is not None:
            probed.append(now - AT)
            breaker.settle(permit, UNHEALTHY, now)
    last_s = next(after - before for before, after in pairwise(probed) if after >= 4.0 > before)
    assert last_s == pytest.approx(interval_s, abs=0.03)


def test_calls_of_an_earlier_outage_shorten_no_interval() -> None:
    breaker = opened()
    for _ in range(10_000):
        assert breaker.try_acquire(AT) is None
    probe(breaker, HEALTHY, AT + 0.25)
    succeed(breaker, AT + 2.0)
    for _ in range(5):
        breaker.settle(acquire(breaker, AT + 50.0), UNHEALTHY, AT + 50.0)
    probe(breaker, UNHEALTHY, AT + 50.25)
    assert breaker.retry_after_s(AT + 50.25) == pytest.approx(0.80625)


def test_breaker_without_early_probes_probes_at_the_end_of_each_opening_only() -> None:
    assert probes_until(opened(replace(EARLY, early_probes=False)), 125.0) == [30.0, 60.0, 90.0, 120.0]


def test_probes_of_breakers_that_opened_together_do_not_stay_together() -> None:
    breakers = [opened(BreakerSettings(), phase) for phase in (0.0, 0.3, 0.6)]
    for breaker in breakers:
        for _ in range(8):
            now = breaker.snapshot(AT).probe_at or 0.0
            probe(breaker, UNHEALTHY, now)
    assert len({breaker.snapshot(AT).probe_at for breaker in breakers}) == 3


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_no_more_early_probes_are_in_flight_than_may_be_half_open(at_once: int) -> None:
    breaker = opened(replace(EARLY, half_open_calls=at_once))
    permits = [breaker.try_acquire(AT + 0.25) for _ in range(50)]
    granted = [permit for permit in permits if permit is not None]
    assert len(granted) == at_once
    assert all(permit.is_probe for permit in granted)
    assert [breaker.try_acquire(AT + later_s) for later_s in (0.5, 1.0, 1.24)] == [None] * 3
    breaker.settle(granted[0], UNHEALTHY, AT + 1.0)
    assert breaker.try_acquire(AT + 1.07) is None
    assert breaker.try_acquire(AT + 1.08) is not None


def test_good_early_probe_closes_at_once_with_an_empty_window() -> None:
    breaker = opened()
    probe(breaker, UNHEALTHY, AT + 0.25)
    assert probe(breaker, HEALTHY, AT + 1.5) == Transition("half_open", "closed", AT + 1.5, "probes succeeded")
    seen = breaker.snapshot(AT + 1.5)
    assert (seen.calls, seen.consecutive_failures, seen.outage_at, seen.probe_at) == (0, 0, None, None)
    assert breaker.retry_after_s(AT + 1.5) == 0.0


def test_outage_after_a_blip_begins_with_a_short_interval_again() -> None:
    breaker = opened()
    probe(breaker, UNHEALTHY, AT + 0.25)
    probe(breaker, HEALTHY, AT + 1.5)
    succeed(breaker, AT + 2.0)
    for _ in range(5):
        breaker.settle(acquire(breaker, AT + 50.0), UNHEALTHY, AT + 50.0)
    assert breaker.retry_after_s(AT + 50.0) == 0.25
    assert breaker.snapshot(AT + 50.0).outage_at == AT + 50.0


def test_enough_good_probes_are_needed_early_too() -> None:
    breaker = opened(replace(EARLY, success_threshold=3))
    assert probe(breaker, HEALTHY, AT + 0.25) is None
    assert probe(breaker, HEALTHY, AT + 0.5) is None
    assert probe(breaker, UNHEALTHY, AT + 0.75) is not None
    assert breaker.retry_after_s(AT + 0.75) == pytest.approx(0.81875)
    assert [probe(breaker, HEALTHY, AT + 2.0) is None for _ in range(3)] == [True, True, False]


def test_slow_answer_to_an_early_probe_begins_the_next_opening() -> None:
    breaker = opened(replace(EARLY, slow_call=2.0))
    permit = acquire(breaker, AT + 0.25)
    transition = breaker.settle(permit, HEALTHY, AT + 5.25, duration_s=5.0)
    assert transition == Transition("half_open", "open", AT + 5.25, "a probe was slow")
    assert breaker.retry_after_s(AT + 5.25) == pytest.approx(0.93125)
    seen = breaker.snapshot(AT + 5.25)
    assert (seen.outage_at, seen.opened_at) == (AT, AT + 5.25)


def test_cancelled_early_probe_returns_its_permit() -> None:
    breaker = opened()
    assert probe(breaker, NO_EVIDENCE, AT + 0.25) is None
    assert breaker.state == "half_open"
    assert breaker.retry_after_s(AT + 0.3) == 0.0
    assert probe(breaker, HEALTHY, AT + 0.3) is not None


def test_probes_that_hang_are_followed_by_others_in_bounded_time() -> None:
    """No probe returns for ten minutes: at first one is sent each second, then one every 2.1 s."""
    breaker = opened()
    sent = [tick / 64 for tick in range(600 * 64) if breaker.try_acquire(AT + tick / 64) is not None]
    intervals = [after - before for before, after in pairwise(sent)]
    assert (min(intervals), max(intervals)) == (1.0, 2.125)
    assert intervals == sorted(intervals)
    assert len(sent) == 290


@pytest.mark.parametrize("is_slow", [True, False])
def test_probe_that_hung_before_the_recovery_does_not_reopen_while_a_newer_one_is_in_flight(is_slow: bool) -> None:
    breaker = opened(replace(EARLY, slow_call=60.0))
    hung = acquire(breaker, AT + 1.0)
    newer = acquire(breaker, AT + 2.0)
    signal = HEALTHY if is_slow else UNHEALTHY
    assert breaker.settle(hung, signal, AT + 2.5, duration_s=61.0 if is_slow else None) is None
    assert breaker.try_acquire(AT + 2.5) is None
    assert breaker.settle(newer, HEALTHY, AT + 2.75) is not None
    assert breaker.state == "closed"


def test_probe_that_outlived_its_lease_reopens_if_no_newer_one_is_in_flight() -> None:
    breaker = opened()
    hung = acquire(breaker, AT + 1.0)
    lost = acquire(breaker, AT + 2.0)
    assert breaker.settle(hung, UNHEALTHY, AT + 3.0) == Transition("half_open", "open", AT + 3.0, "a probe failed")
    breaker.settle(lost, HEALTHY, AT + 3.0)
    assert breaker.state == "closed", "it was sent in the outage, and has succeeded"


def test_calls_refused_during_a_probe_return_when_it_may_have_succeeded() -> None:
    """The suggested wait does not run until the lease ends, and grows with the duration of the probe."""
    breaker = opened()
    assert breaker.come_back_s(AT) == breaker.retry_after_s(AT) == 0.25
    acquire(breaker, AT + 1.0)
    assert breaker.retry_after_s(AT + 1.0) == 1.0
    assert [breaker.come_back_s(AT + after) for after in (1.0, 1.5, 1.75)] == [0.1, 0.5, 0.25]
    assert breaker.come_back_s(AT + 2.0) == 0.0


@pytest.mark.parametrize(
    ("took_s", "wait_s"), [(0.0, 1.0), (0.25, 0.75), (0.75, 0.25), (1.0, 0.0), (1.125, 0.0), (7.0, 0.0)]
)
def test_time_that_a_failed_probe_took_is_subtracted_from_the_open_period(took_s: float, wait_s: float) -> None:
    """Probes that hang until they time out used to delay the recovery by the timeout."""
    breaker = opened()
    permit = acquire(breaker, AT + 8.0 - took_s)
    assert breaker.settle(permit, UNHEALTHY, AT + 8.0) is not None
    assert breaker.retry_after_s(AT + 8.0) == pytest.approx(wait_s)


def test_without_early_probes_the_duration_of_a_probe_changes_no_open_period() -> None:
    breaker = opened(replace(EARLY, early_probes=False, open_for=2.0))
    permit = acquire(breaker, AT + 2.0)
    breaker.settle(permit, UNHEALTHY, AT + 3.5)
    assert breaker.retry_after_s(AT + 3.5) == 2.0


@pytest.mark.parametrize("fails_after_s", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("outage_s", [2.0, 8.0, 20.0, 60.0])
def test_probes_that_hang_do_not_delay_a_recovery(fails_after_s: float, outage_s: float) -> None:
    """The first success comes within 1 s and a twentieth of the outage, with at most 1.5 probes a second."""
    breaker, probes = opened(), 0
    now = AT + breaker.retry_after_s(AT)
    while now < AT + outage_s:
        permit = acquire(breaker, now)
        probes += 1
        now += fails_after_s
        breaker.settle(permit, UNHEALTHY, now)
        now += breaker.retry_after_s(now)
    assert now - AT - outage_s <= 1.0 + outage_s / 20
    assert probes <= 1.5 * (outage_s + 1.0)


def test_probe_that_fails_within_its_lease_reopens_though_another_is_in_flight() -> None:
    breaker = opened(replace(EARLY, half_open_calls=2))
    first, _ = acquire(breaker, AT + 1.0), acquire(breaker, AT + 1.0)
    assert breaker.settle(first, UNHEALTHY, AT + 1.5) is not None
    assert breaker.state == "open"


def test_retry_after_ends_at_the_instant_of_the_next_probe() -> None:
    breaker, now = opened(), AT
    for _ in range(60):
        wait_s = breaker.retry_after_s(now)
        assert breaker.retry_after_s(now + wait_s / 2) == pytest.approx(wait_s / 2)
        assert breaker.try_acquire(now + wait_s - 1 / 1024) is None
        now = breaker.snapshot(now).probe_at or 0.0
        assert breaker.retry_after_s(now) == 0.0
        probe(breaker, UNHEALTHY, now)
    assert breaker.retry_after_s(now) == 1.25


def test_probe_stays_due_until_a_call_arrives() -> None:
    breaker = opened()
    assert breaker.retry_after_s(AT + 7.0) == 0.0
    assert breaker.state == "open"
    probe(breaker, UNHEALTHY, AT + 7.0)
    assert breaker.retry_after_s(AT + 7.0) == pytest.approx(0.975)


def test_current_open_duration_outlives_a_reload_and_the_next_does_not() -> None:
    breaker = opened()
    breaker.settings = replace(EARLY, early_probes=False, open_for=2.0)
    assert probes_until(breaker, 5.0) == [0.25, 2.25, 4.25]
    breaker = opened(replace(EARLY, early_probes=False))
    breaker.settings = EARLY
    assert probes_until(breaker, 33.0) == [30.0, 31.25, 32.5]


@pytest.mark.parametrize("mode", ["forced_open", "forced_closed", "metrics_only", "disabled"])
def test_override_ends_early_probes_with_the_outage(mode: BreakerMode) -> None:
    breaker = opened()
    early = acquire(breaker, AT + 0.25)
    breaker.force(mode, AT + 0.5)
    assert breaker.settle(early, HEALTHY, AT + 0.5) is None
    permits = [breaker.try_acquire(AT + later_s) for later_s in (1.0, 4.0, 16.0, 30.0)]
    if mode == "forced_open":
        assert permits == [None] * 4
        assert breaker.retry_after_s(AT + 1.0) == 30.0
    else:
        assert [permit is not None and not permit.is_probe for permit in permits] == [True] * 4
    breaker.force("auto", AT + 31.0)
    assert (breaker.state, breaker.snapshot(AT + 31.0).outage_at) == ("closed", None)
    succeed(breaker, AT + 32.0)
    for _ in range(5):
        breaker.settle(acquire(breaker, AT + 40.0), UNHEALTHY, AT + 40.0)
    assert breaker.retry_after_s(AT + 40.0) == 0.25


def test_good_light_probe_precedes_the_early_ones() -> None:
    breaker = opened()
    breaker.note_probe(True, AT + 0.125)
    probe(breaker, UNHEALTHY, AT + 0.125)
    seen = breaker.snapshot(AT + 0.125)
    assert (seen.outage_at, seen.opened_at) == (AT, AT + 0.125)
    assert breaker.retry_after_s(AT + 0.125) == pytest.approx(0.803125)


# Under traffic: attempts take 20 ms; clients that retry do so after 0.2, 0.4 and 0.8 s.


class Seen(NamedTuple):
    attempts: list[float]
    """Instants at which the breaker let an attempt through."""
    ended: Counter[str]
    """Number of calls by result: ok, failed, refused."""
    transitions: list[Transition]


def simulate(
    breaker: Breaker,
    is_down: Callable[[float], bool],
    *,
    calls_per_s: int,
    until: float,
    retries: int = 0,
    attempt_s: float = 0.02,
) -> Seen:
    order = count()
    seen = Seen([], Counter(), [])
    todo: list[tuple[float, int, int, Permit | None]] = [
        (i / calls_per_s, next(order), 0, None) for i in range(int(until * calls_per_s))
    ]
    while todo:
        now, _, tries, permit = heapq.heappop(todo)
        if permit is None:
            permit = breaker.try_acquire(now)
            if permit is None:
                seen.ended["refused"] += 1
                continue
            seen.attempts.append(now)
            heapq.heappush(todo, (now + attempt_s, next(order), tries, permit))
            continue
        is_failure = is_down(now - attempt_s)
        transition = breaker.settle(permit, UNHEALTHY if is_failure else HEALTHY, now)
        if transition is not None:
            seen.transitions.append(transition)
        if is_failure and tries < retries:
            heapq.heappush(todo, (now + 0.2 * 2**tries, next(order), tries + 1, None))
        else:
            seen.ended["failed" if is_failure else "ok"] += 1
    return seen


def blips(burst_s: float, shift_s: float) -> Callable[[float], bool]:
    """Every 2 s, from 2 s on, all calls fail for `burst_s` seconds."""
    return lambda now: now >= 2 and (now - shift_s) % 2 < burst_s


@pytest.mark.parametrize("shift_s", [0.0, 0.003, 0.5, 1.1])
def test_blips_of_a_fifth_of_a_second_never_open_a_busy_deployment(shift_s: float) -> None:
    seen = simulate(Breaker(BreakerSettings()), blips(0.2, shift_s), calls_per_s=100, until=60)
    assert seen.transitions == []
    assert seen.ended["refused"] == 0
    assert seen.ended["ok"] >= 0.89 * 6000


def test_blip_that_opens_a_cold_deployment_costs_a_quarter_of_a_second() -> None:
    """The calls of the first 250 ms fail. This used to cause half a minute of refusals."""
    seen = simulate(Breaker(BreakerSettings()), lambda now: now < 0.25, calls_per_s=100, until=60)
    assert [transition.after for transition in seen.transitions] == ["open", "closed"]
    assert seen.transitions[1].at - seen.transitions[0].at == pytest.approx(0.27, abs=0.011)
    assert seen.ended["ok"] >= 5945


@pytest.mark.parametrize(("shift_s", "early_probes"), [(0.0, True), (0.003, True), (1.1, True), (0.0, False)])
def test_blips_of_half_a_second_open_it_until_the_first_early_probe(shift_s: float, early_probes: bool) -> None:
    settings = BreakerSettings(early_probes=early_probes)
    seen = simulate(Breaker(settings), blips(0.5, shift_s), calls_per_s=100, until=60)
    openings = [transition for transition in seen.transitions if transition.before == "closed"]
    if not early_probes:  # the reason for early probes
        assert len(openings) == 1
        assert seen.ended["ok"] < 0.1 * 6000
        return
    assert 28 <= len(openings) <= 30
    assert seen.ended["ok"] >= 0.73 * 6000
    spans = [after.at - before.at for before, after in pairwise(seen.transitions) if after.after == "closed"]
    assert max(spans) < 0.3


def test_opening_by_chance_in_a_brownout_costs_a_second_instead_of_half_a_minute() -> None:
    """The first five calls fail, then 40 % do, and so do four in ten of the early probes."""

    def refused_s(seed: int, early_probes: bool) -> float:
        dice, now, lost_s = random.Random(seed), AT, 0.0
        breaker = opened(BreakerSettings(early_probes=early_probes), phase=seed / 200)
        for _ in range(500):
            wait_s = breaker.retry_after_s(now)
            lost_s += wait_s
            now += max(wait_s, 0.01)
            breaker.settle(acquire(breaker, now), UNHEALTHY if dice.random() < 0.4 else HEALTHY, now)
        return lost_s

    early, plain = (sorted(refused_s(seed, is_on) for seed in range(200)) for is_on in (True, False))
    assert early[100] < 1.1
    assert sum(early) / 200 < 1.2
    assert sum(plain) / 200 > 40


@pytest.mark.parametrize("open_for", [1.0, 2.0, 30.0])
@pytest.mark.parametrize("shift_s", [0.0, 0.7, 3.3, 5.9])
@pytest.mark.parametrize("phase", [0.0, 0.4, 0.8])
@pytest.mark.parametrize(("calls_per_s", "most"), [(50, 20 + 8 * 1.5), (100, 48)])
def test_outage_of_eight_seconds_admits_few_attempts_and_its_end_is_noticed(
    open_for: float, shift_s: float, phase: float, calls_per_s: int, most: float
) -> None:
    """Each call has up to three retries. At 50/s the goal is at most 20 attempts and 1.5 probes a second, at 100/s at
    most 0.06 attempts per call."""
    begins_at = 60 + shift_s
    ends_at = begins_at + 8
    seen = simulate(
        Breaker(BreakerSettings(open_for=open_for), phase),
        lambda now: begins_at <= now < ends_at,
        calls_per_s=calls_per_s,
        until=80,
        retries=3,
    )
    assert sum(begins_at <= now < ends_at for now in seen.attempts) <= most
    assert seen.transitions[0].at - begins_at < 0.3
    assert seen.transitions[-1].after == "closed"
    assert ends_at <= seen.transitions[-1].at < ends_at + min(open_for, 1.0) + 0.05
