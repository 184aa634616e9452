"""How long openings last and what early probes change, alone, within the breaker, and under traffic."""

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
from llm_guard.policy.breaker import Breaker, BreakerSettings, Permit
from llm_guard.policy.opening import Looks, Opening
from llm_guard.policy.transition import BreakerMode, Transition

HEALTHY, UNHEALTHY, NO_EVIDENCE = Signal.HEALTHY, Signal.UNHEALTHY, Signal.NO_EVIDENCE
EARLY = BreakerSettings(open_jitter=0.0)
AT = 1000.0


def begun(open_s: float = 30.0, *, looks: Looks = "seldom") -> Opening:
    opening = Opening(0.0)
    opening.begin(AT, open_s, 300.0, 0.0, looks)
    return opening


def fail(opening: Opening, now: float) -> float:
    """A probe fails; when the next is due, from the beginning on."""
    opening.begin(now, 30.0, 300.0, 0.0, looks="seldom")
    return opening.probe_at() - AT


def acquire(breaker: Breaker, now: float) -> Permit:
    permit = breaker.try_acquire(now)
    assert permit is not None
    return permit


def probe(breaker: Breaker, signal: Signal, now: float) -> Transition | None:
    permit = acquire(breaker, now)
    assert permit.is_probe
    return breaker.settle(permit, signal, now)


def opened(settings: BreakerSettings = EARLY, phase: float = 0.0) -> Breaker:
    """Since the instant `AT`."""
    breaker = Breaker(settings, phase)
    for _ in range(settings.consecutive_failures):
        breaker.settle(acquire(breaker, AT), UNHEALTHY, AT)
    assert breaker.state == "open"
    return breaker


def probes_until(breaker: Breaker, last_s: float) -> list[float]:
    """When each probe was let through, as seconds since it opened; all fail at once, and somebody asks each 1/64 s."""
    probed = []
    for tick in range(1, int(last_s * 64) + 1):
        now = AT + tick / 64
        permit = breaker.try_acquire(now)
        if permit is not None:
            probed.append(now - AT)
            breaker.settle(permit, UNHEALTHY, now)
    return probed


def test_early_probes_are_due_after_250_ms_and_then_each_four_times_later() -> None:
    opening = begun(open_s=300.0)
    due_s = [opening.probe_at() - AT]
    for _ in range(5):
        due_s.append(fail(opening, AT + due_s[-1]))
    assert due_s == [0.25, 1.0, 4.0, 16.0, 64.0, 256.0]


def test_end_of_the_opening_comes_before_a_later_early_probe() -> None:
    opening = begun(open_s=3.0)
    assert fail(opening, AT + 1.5) == 3.0
    assert begun(open_s=0.125).probe_at() == AT + 0.125


def test_nothing_is_early_unless_asked_for() -> None:
    opening = begun(looks="never")
    assert opening.probe_at() == AT + 30.0
    assert fail(opening, AT + 1.0) == 31.0
    assert opening.began_at == AT + 1.0


def test_early_probe_that_fails_changes_nothing_about_the_end() -> None:
    opening = begun()
    for now in (AT + 0.25, AT + 1.0, AT + 29.999):
        fail(opening, now)
        assert (opening.began_at, opening.length_s, opening.outage_at) == (AT, 30.0, AT)
        assert not opening.is_over(AT + 29.999)
        assert opening.is_over(AT + 30.0)


def test_settings_of_a_failed_early_probe_do_not_change_the_opening_either() -> None:
    opening = begun()
    opening.begin(AT + 0.25, 2.0, 2.0, 0.5, looks="never")
    assert (opening.began_at, opening.length_s, opening.probe_at()) == (AT, 30.0, AT + 1.0)


@pytest.mark.parametrize(
    ("ended_s", "next_s"),
    [(0.26, 1.0), (0.999, 1.0), (1.0, 4.0), (3.999, 4.0), (4.0, 16.0), (15.5, 16.0), (16.0, 30.0), (29.9, 30.0)],
)
def test_slow_early_probe_skips_those_that_came_due_while_it_was_out(ended_s: float, next_s: float) -> None:
    assert fail(begun(), AT + ended_s) == next_s


def test_early_probe_that_fails_after_the_end_begins_the_next_opening() -> None:
    opening = begun()
    assert fail(opening, AT + 45.0) == 75.0
    assert (opening.began_at, opening.outage_at) == (AT + 45.0, AT)
    assert [opening.is_over(AT + now_s) for now_s in (45.0, 74.999, 75.0)] == [False, False, True]


def test_only_the_first_opening_of_an_outage_has_early_probes() -> None:
    opening = begun()
    assert fail(opening, AT + 30.0) == 60.0
    assert fail(opening, AT + 60.0) == 90.0
    opening.end()
    assert opening.outage_at is None
    opening.begin(AT + 100.0, 30.0, 300.0, 0.0, looks="seldom")
    assert opening.probe_at() == AT + 100.25


@pytest.mark.parametrize(("failed_s", "length_s"), [(30.0, 30.0), (240.0, 30.0), (400.0, 50.0), (4000.0, 300.0)])
def test_openings_after_early_probes_grow_with_the_outage_as_without_them(failed_s: float, length_s: float) -> None:
    early, plain = begun(), begun(looks="never")
    for now in (AT + 0.25, AT + 1.0):
        fail(early, now)
    for opening in (early, plain):
        fail(opening, AT + failed_s)
        assert (opening.began_at, opening.length_s) == (AT + failed_s, length_s)


def test_brownout_is_looked_at_every_quarter_of_a_second_until_its_opening_is_over() -> None:
    opening = begun(2.0, looks="often")
    assert opening.is_brownout
    assert [fail(opening, AT + at) for at in (0.25, 0.5, 1.1, 1.8)] == [0.5, 0.75, 1.25, 2.0]
    assert fail(opening, AT + 2.0) == 32.0
    assert not begun().is_brownout


def test_jitter_is_drawn_for_each_opening_and_not_for_early_probes() -> None:
    early, plain = Opening(0.25), Opening(0.25)
    lengths: list[list[float]] = [[], []]
    looks: tuple[Looks, Looks] = ("seldom", "never")
    for opening, drawn, look in zip((early, plain), lengths, looks, strict=True):
        opening.begin(AT, 32.0, 300.0, 0.5, look)
        if look == "seldom":
            fail(opening, AT + 0.25)
            fail(opening, AT + 1.0)
        drawn.append(opening.length_s)
        for now in (AT + 40.0, AT + 80.0, AT + 120.0):
            opening.begin(now, 32.0, 300.0, 0.5, look)
            drawn.append(opening.length_s)
    assert lengths[0] == lengths[1]
    assert lengths[0][0] == 28.0
    assert len(set(lengths[0])) == 4


def test_breaker_probes_early_in_the_first_opening_and_at_the_end_of_each() -> None:
    assert probes_until(opened(), 125.0) == [0.25, 1.0, 4.0, 16.0, 30.0, 60.0, 90.0, 120.0]


def test_breaker_without_early_probes_probes_at_the_end_of_each_opening_only() -> None:
    assert probes_until(opened(replace(EARLY, early_probes=False)), 125.0) == [30.0, 60.0, 90.0, 120.0]


def test_later_openings_of_a_breaker_with_early_probes_grow_up_to_the_longest() -> None:
    settings = replace(EARLY, open_for=2.0, max_open_for=4.0)
    probed = probes_until(opened(settings), 80.0)
    assert probed[:5] == [0.25, 1.0, 2.0, 4.0, 6.0]
    waits = [after - before for before, after in pairwise(probed[3:])]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (2.0, 4.0)
    late = probes_until(opened(replace(settings, early_probes=False)), 80.0)
    assert late == probed[2:]


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_no_more_early_probes_are_out_at_once_than_may_be_half_open(at_once: int) -> None:
    breaker = opened(replace(EARLY, half_open_calls=at_once))
    permits = [breaker.try_acquire(AT + 0.25) for _ in range(50)]
    granted = [permit for permit in permits if permit is not None]
    assert len(granted) == at_once
    assert all(permit.is_probe for permit in granted)
    assert [breaker.try_acquire(AT + later_s) for later_s in (0.5, 1.0, 4.0, 16.0, 30.0)] == [None] * 5
    breaker.settle(granted[0], UNHEALTHY, AT + 0.5)
    assert breaker.try_acquire(AT + 0.999) is None
    assert breaker.try_acquire(AT + 1.0) is not None


@pytest.mark.parametrize("due_s", [0.25, 1.0, 4.0, 16.0])
def test_good_early_probe_closes_at_once_with_an_empty_window(due_s: float) -> None:
    breaker = opened()
    transition = None
    for early_s in (0.25, 1.0, 4.0, 16.0):
        transition = probe(breaker, HEALTHY if early_s == due_s else UNHEALTHY, AT + early_s)
        if early_s == due_s:
            break
    assert transition == Transition("half_open", "closed", AT + due_s, "probes succeeded")
    seen = breaker.snapshot(AT + due_s)
    assert (seen.calls, seen.consecutive_failures, seen.outage_at, seen.probe_at) == (0, 0, None, None)
    assert breaker.retry_after_s(AT + due_s) == 0.0


def test_outage_after_a_blip_has_early_probes_of_its_own() -> None:
    breaker = opened()
    probe(breaker, UNHEALTHY, AT + 0.25)
    probe(breaker, HEALTHY, AT + 1.0)
    for _ in range(5):
        breaker.settle(acquire(breaker, AT + 50.0), UNHEALTHY, AT + 50.0)
    assert breaker.retry_after_s(AT + 50.0) == 0.25
    assert breaker.snapshot(AT + 50.0).outage_at == AT + 50.0


def test_enough_good_probes_are_needed_early_too_and_one_failure_keeps_the_end() -> None:
    breaker = opened(replace(EARLY, success_threshold=3))
    assert probe(breaker, HEALTHY, AT + 0.25) is None
    assert probe(breaker, HEALTHY, AT + 0.5) is None
    assert probe(breaker, UNHEALTHY, AT + 0.75) is not None
    assert breaker.retry_after_s(AT + 0.75) == 0.25
    assert [probe(breaker, HEALTHY, AT + 1.0) is None for _ in range(3)] == [True, True, False]


def test_slow_answer_to_an_early_probe_keeps_the_end_of_the_opening() -> None:
    breaker = opened(replace(EARLY, slow_call=2.0))
    permit = acquire(breaker, AT + 0.25)
    transition = breaker.settle(permit, HEALTHY, AT + 5.25, duration_s=5.0)
    assert transition == Transition("half_open", "open", AT + 5.25, "a probe was slow")
    assert breaker.retry_after_s(AT + 5.25) == 10.75
    assert breaker.snapshot(AT + 5.25).opened_at == AT


def test_cancelled_early_probe_returns_its_permit() -> None:
    breaker = opened()
    assert probe(breaker, NO_EVIDENCE, AT + 0.25) is None
    assert breaker.state == "half_open"
    assert breaker.retry_after_s(AT + 0.3) == 0.0
    assert probe(breaker, HEALTHY, AT + 0.3) is not None


def test_lost_early_probe_frees_its_place_when_its_lease_ends() -> None:
    breaker = opened()
    acquire(breaker, AT + 0.25)
    assert breaker.retry_after_s(AT + 10.25) == 20.0
    assert breaker.try_acquire(AT + 30.24) is None
    assert breaker.try_acquire(AT + 30.25) is not None


def test_wait_that_is_told_ends_at_the_very_instant_of_the_next_probe() -> None:
    breaker, now, told = opened(), AT, []
    for _ in range(6):
        wait_s = breaker.retry_after_s(now)
        told.append(wait_s)
        assert breaker.retry_after_s(now + wait_s / 2) == wait_s / 2
        assert breaker.try_acquire(now + wait_s - 1 / 1024) is None
        now += wait_s
        assert breaker.retry_after_s(now) == 0.0
        assert breaker.snapshot(now).probe_at == now
        probe(breaker, UNHEALTHY, now)
    assert told == [0.25, 0.75, 3.0, 12.0, 14.0, 30.0]


def test_early_probe_that_nobody_asks_for_stays_due() -> None:
    breaker = opened()
    assert breaker.retry_after_s(AT + 7.0) == 0.0
    assert breaker.state == "open"
    probe(breaker, UNHEALTHY, AT + 7.0)
    assert breaker.retry_after_s(AT + 7.0) == 9.0


def test_phase_moves_the_end_of_the_first_opening_but_not_its_early_probes() -> None:
    breaker = opened(BreakerSettings(open_jitter=0.5), phase=0.5)
    assert probes_until(breaker, 23.0) == [0.25, 1.0, 4.0, 16.0, 22.5]


def test_opening_that_has_begun_keeps_its_early_probes_through_a_reload() -> None:
    breaker = opened()
    breaker.settings = replace(EARLY, early_probes=False, open_for=2.0)
    assert probes_until(breaker, 35.0) == [0.25, 1.0, 4.0, 16.0, 30.0, 33.75]
    breaker = opened(replace(EARLY, early_probes=False))
    breaker.settings = EARLY
    assert probes_until(breaker, 35.0) == [30.0]


def test_next_outage_after_a_reload_goes_by_the_new_settings() -> None:
    breaker = opened()
    breaker.settings = replace(EARLY, early_probes=False)
    probe(breaker, HEALTHY, AT + 0.25)
    for _ in range(5):
        breaker.settle(acquire(breaker, AT + 1.0), UNHEALTHY, AT + 1.0)
    assert breaker.retry_after_s(AT + 1.0) == 30.0


@pytest.mark.parametrize("mode", ["forced_open", "forced_closed", "metrics_only", "disabled"])
def test_operators_word_ends_early_probes_with_the_outage(mode: BreakerMode) -> None:
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
    for _ in range(5):
        breaker.settle(acquire(breaker, AT + 40.0), UNHEALTHY, AT + 40.0)
    assert probes_until(breaker, 60.0) == [40.25, 41.0, 44.0, 56.0]


def test_good_light_probe_comes_before_the_early_ones_and_a_failure_then_keeps_the_end() -> None:
    breaker = opened()
    breaker.note_probe(True, AT + 0.125)
    probe(breaker, UNHEALTHY, AT + 2.0)
    assert breaker.snapshot(AT + 2.0).opened_at == AT
    assert breaker.retry_after_s(AT + 2.0) == 2.0


# Under traffic: attempts of 20 ms; whoever failed comes back after 0.2, 0.4 and 0.8 s, if he retries at all.


class Seen(NamedTuple):
    attempts: list[float]
    """When each was let through."""
    ended: Counter[str]
    """Of the calls: ok, failed, refused."""
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
    """Every 2 s, from 2 s on, all calls of `burst_s` fail."""
    return lambda now: now >= 2 and (now - shift_s) % 2 < burst_s


@pytest.mark.parametrize("shift_s", [0.0, 0.003, 0.5, 1.1])
def test_blips_of_a_fifth_of_a_second_never_open_a_busy_deployment(shift_s: float) -> None:
    seen = simulate(Breaker(BreakerSettings()), blips(0.2, shift_s), calls_per_s=100, until=60)
    assert seen.transitions == []
    assert seen.ended["refused"] == 0
    assert seen.ended["ok"] >= 0.89 * 6000


def test_blip_that_opens_a_cold_deployment_costs_a_quarter_of_a_second() -> None:
    """Its first 200 ms of calls fail; half a minute of refusals followed once."""
    seen = simulate(Breaker(BreakerSettings()), lambda now: now < 0.2, calls_per_s=100, until=60)
    assert [each.after for each in seen.transitions] == ["open", "closed"]
    assert seen.transitions[1].at - seen.transitions[0].at == pytest.approx(0.27, abs=0.011)
    assert seen.ended["ok"] >= 5965


@pytest.mark.parametrize(("shift_s", "early_probes"), [(0.0, True), (0.003, True), (1.1, True), (0.0, False)])
def test_blips_of_half_a_second_open_it_until_the_first_early_probe(shift_s: float, early_probes: bool) -> None:
    settings = BreakerSettings(early_probes=early_probes)
    seen = simulate(Breaker(settings), blips(0.5, shift_s), calls_per_s=100, until=60)
    openings = [each for each in seen.transitions if each.before == "closed"]
    if not early_probes:  # what the early probes are for
        assert len(openings) == 1
        assert seen.ended["ok"] < 0.1 * 6000
        return
    assert 28 <= len(openings) <= 30
    assert seen.ended["ok"] >= 0.73 * 6000
    spans = [after.at - before.at for before, after in pairwise(seen.transitions) if after.after == "closed"]
    assert max(spans) < 0.3


def test_opening_by_chance_in_a_brownout_costs_seconds_instead_of_half_a_minute() -> None:
    """The first five calls fail, then 40 %: four early probes in ten fail, and all of them once in forty."""

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
    assert early[100] == 0.25
    assert sum(early) / 200 < 4
    assert sum(plain) / 200 > 40


@pytest.mark.parametrize(("open_for", "most"), [(1.0, 23), (2.0, 21)])
@pytest.mark.parametrize("shift_s", [0.0, 0.7, 3.3, 5.9])
@pytest.mark.parametrize("phase", [0.0, 0.4, 0.8])
def test_outage_of_eight_seconds_lets_few_attempts_through_and_its_end_is_noticed(
    open_for: float, most: int, shift_s: float, phase: float
) -> None:
    """50 calls/s, 400 in the outage, each with up to three retries; at most 0.06 attempts per call are wanted."""
    begins_at = 60 + shift_s
    ends_at = begins_at + 8
    seen = simulate(
        Breaker(BreakerSettings(open_for=open_for), phase),
        lambda now: begins_at <= now < ends_at,
        calls_per_s=50,
        until=80,
        retries=3,
    )
    assert sum(begins_at <= now < ends_at for now in seen.attempts) <= most
    assert seen.transitions[0].at - begins_at < 0.3
    assert seen.transitions[-1].after == "closed"
    assert ends_at <= seen.transitions[-1].at < ends_at + open_for + 0.05
