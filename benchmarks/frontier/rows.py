"""The promises: what must hold for each kind of provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from random import Random

from benchmarks.frontier.limits import Returning
from benchmarks.frontier.measure import ALONE, MODEL, WITH_FALLBACK, WITH_STAND_IN, Fared, fared, is_served, run
from benchmarks.frontier.providers import (
    DOWN,
    ERROR_S,
    SLOW_ERROR_S,
    WELL,
    BadShard,
    Course,
    Overload,
    RandomFailures,
    Regime,
)
from benchmarks.virtual.clients import Load
from benchmarks.virtual.world import Played, play

RANDOM = {
    0.1: (0.999, 1.13, None),
    0.2: (0.995, 1.27, None),
    0.4: (0.97, 1.7, None),
    0.6: (0.8, 2.2, 4.0),
    0.8: (0.5, 3.0, None),
    0.9: (0.28, 3.5, None),
}
"""For each share of requests that fail: minimum share of calls served, maximum requests per call and maximum p99."""
FALLBACK_AFTER_S = 5.0
SLOW_START_S = 10.0

# The times of probes are jittered, so two runs do not send the same number of them.
_MORE_PROBES = 5
_SEGMENT_S = 30.0
_SETTLED_S = 5.0
_DEVIATIONS = 1.5
# Retries in the last seconds of a segment fall into the next one.
_RETRIED_S = 3.0
_DRAWN = range(1, 11)
_FALLS_S, _BACK_S, _ENDS_S = 40.0, 43.0, 80.0


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement, and the promises that it breaks."""

    part: str
    name: str
    found: str
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement to be made; cells are independent of each other."""

    part: str
    name: str
    measure: Callable[[], Row]


def cells() -> Iterator[Cell]:
    """All cells."""
    for share, (rate, seconds) in product(RANDOM, ((5.0, 300.0), (50.0, 60.0))):
        yield _cell("random", f"{share:.0%} random, {rate:g}/s", _random, share, rate, seconds)
    for share, rate in product((0.1, 0.4, 0.8, 1.0), (5.0, 50.0)):
        yield _cell("stand-in", f"{share:.0%} random, a stand-in, {rate:g}/s", _stand_in, share, rate)
        yield _cell("fallback", f"{share:.0%} random, a fallback, {rate:g}/s", _fallback, share, rate)
    for capacity, times, failure_s in product((20.0, 100.0), (1.2, 2.0, 5.0), (ERROR_S, SLOW_ERROR_S)):
        name = f"serves {capacity:g}/s of {capacity * times:g}/s, and fails the rest after {failure_s:g} s"
        yield _cell("overload", name, _overload, capacity, times, failure_s)
    for capacity, times, failure_s, left in product((20.0, 100.0), (1.2, 5.0), (ERROR_S, SLOW_ERROR_S), (0.5, 0.8)):
        loads = f"{capacity * times:g}/s and then {capacity * left:g}/s"
        name = f"serves {capacity:g}/s of {loads}, and fails the rest after {failure_s:g} s"
        yield _cell("recovery", name, _recovery, capacity, times, failure_s, left)
    for rate in (5.0, 14.0, 50.0, 100.0):
        yield _cell("shard", f"30 % by content always fail, {rate:g}/s", _shard, rate)
    yield from _outages()
    for seed in _DRAWN:
        yield _cell("drawn", f"regimes drawn, seed {seed}, 50/s", _drawn, seed)


def _outages() -> Iterator[Cell]:
    for down_s in (2.0, 8.0, 60.0, 600.0):
        yield _cell("outage", f"down for {down_s:g} s, 50/s", _outage, down_s)
    for down_s in (8.0, 60.0, 600.0):
        yield _cell("outage", f"down for {down_s:g} s, a call in 4 s", _quiet_outage, down_s)
    yield _cell("outage", "5 s up, 5 s down, 50/s", _flapping)
    for per_s, back_at in product((100.0, 200.0, 400.0), (4.0, 8.0)):
        yield _cell("herd", f"1,000 clients, {per_s:g}/s served after {back_at:g} s", _herd, per_s, back_at)
    for share in (0.4, 0.6, 0.8):
        yield _cell("change", f"{share:.0%} random, then down, 50/s", _into_outage, share)
        yield _cell("change", f"down, then {share:.0%} random, 50/s", _out_of_outage, share)


def _cell(part: str, name: str, measure: Callable[..., tuple[str, list[str]]], *facts: object) -> Cell:
    def measured() -> Row:
        found, broken = measure(*facts)
        return Row(part, name, found, tuple(broken))

    return Cell(part, name, measured)


def _random(share: float, rate: float, seconds: float) -> tuple[str, list[str]]:
    seen = fared(run([(0.0, RandomFailures(share))], rate, seconds), 0.0, seconds)
    return in_words(seen), random_promises(share, seen)


def random_promises(share: float, seen: Fared) -> list[str]:
    """The promises that do not hold. A miss by less than `_DEVIATIONS` standard deviations may be chance."""
    least, most, p99_s = RANDOM[share]
    chance = _DEVIATIONS * (least * (1 - least) / max(1, seen.calls)) ** 0.5
    broken = []
    if seen.served < least - chance:
        broken.append(f"{seen.served:.2%} served, promised {least:.1%}")
    if seen.requests_per_call > most + _DEVIATIONS * ((most - 1) / max(1, seen.calls)) ** 0.5:
        broken.append(f"{seen.requests_per_call:.2f} requests per call, promised {most}")
    if p99_s is not None and seen.p99_s > p99_s:
        broken.append(f"p99 {seen.p99_s:.2f} s, promised {p99_s:g} s")
    return broken


def _stand_in(share: float, rate: float) -> tuple[str, list[str]]:
    seen = fared(run([(10.0, RandomFailures(share))], rate, 100.0, WITH_STAND_IN), 15.0, 100.0)
    broken = _at_least("served", seen.served, 0.999) + _at_most("p99", seen.p99_s, 0.5)
    return in_words(seen), broken + _at_most("requests per call", seen.requests_per_call, 1.5)


def _fallback(share: float, rate: float) -> tuple[str, list[str]]:
    regimes = [(10.0, RandomFailures(share))]
    alone = fared(run(regimes, rate, 100.0, ALONE), 10.0, 100.0)
    seen = fared(run(regimes, rate, 100.0, WITH_FALLBACK), 10.0, 100.0)
    broken = _at_least("served", seen.served, 0.999) + _at_most("p99", seen.p99_s, FALLBACK_AFTER_S + 1)
    most = alone.requests_per_call + 1 + _MORE_PROBES / seen.calls
    return in_words(seen), broken + _at_most("requests per call", seen.requests_per_call, most)


def _overload(capacity: float, times: float, failure_s: float) -> tuple[str, list[str]]:
    played = run([(0.0, Overload(capacity, failure_s))], capacity * times, 60.0)
    seen = fared(played, 10.0, 60.0)
    found = f"{seen.ok_per_s / capacity:.2f} C served, {seen.requests_per_s / capacity:.2f} C sent"
    broken = _at_least("of C served", seen.ok_per_s / capacity, 0.95)
    return found, broken + _at_most("of C sent", seen.requests_per_s / capacity, 1.15)


def _recovery(capacity: float, times: float, failure_s: float, left: float) -> tuple[str, list[str]]:
    """Measures from 3 s after the load has fallen, and compares with the same load without an overload before it, where
    calls that come in a burst wait or fail too."""
    before, after = Load(MODEL, capacity * times, _FALLS_S), Load(MODEL, capacity * left, _ENDS_S, begins_at=_FALLS_S)
    seen = fared(play(ALONE, Course([(0.0, Overload(capacity, failure_s))]), [before, after]), _BACK_S, _ENDS_S)
    never = fared(run([(0.0, Overload(capacity, failure_s))], capacity * left, _ENDS_S), _BACK_S, _ENDS_S)
    found = f"{seen.served:.2%} served, half within {seen.median_s:.2f} s and 95 % within {seen.p95_s:.2f} s"
    broken = _at_least("served", seen.served, 0.999) + _at_most("s for half", seen.median_s, never.median_s + 0.1)
    return found, broken + _at_most("s for 95 %", seen.p95_s, never.p95_s + 1.0)


def _shard(rate: float) -> tuple[str, list[str]]:
    shard = BadShard(0.3)
    played = run([(0.0, shard)], rate, 120.0)
    good = [call for call in played.calls if not shard.has(call.number)]
    served = sum(map(is_served, good)) / len(good)
    per_call = len(played.requests) / len(played.calls)
    broken = _at_least("of the others served", served, 0.99)
    return (
        f"{served:.2%} of the others served, {per_call:.2f} requests per call",
        broken + _at_most("requests per call", per_call, 1.95 if rate < 15 else 1.6),
    )


def _outage(down_s: float) -> tuple[str, list[str]]:
    back_at = 20.0 + down_s
    played = run([(20.0, DOWN), (back_at, WELL)], 50.0, back_at + 60.0)
    requests = sum(20.0 <= request.at < back_at for request in played.requests)
    in_flight = sum(20.0 <= request.at < 20.0 + ERROR_S for request in played.requests)
    first = _first_success(played, back_at)
    after = fared(played, first + SLOW_START_S, back_at + 60.0)
    refused = [call.took_s for call in played.calls if not call.attempts and not is_served(call)]
    most = 20 + in_flight + (0.06 * 50 if down_s >= 60 else 1.5) * down_s
    broken = _at_most("requests", requests, most) + _at_most("s to the first success", first - back_at, 1 + down_s / 20)
    broken += _at_least("served afterwards", after.served, 0.95) + _at_most(
        "s to a refusal", max(refused, default=0.0), 0.005
    )
    return f"{requests} requests, back after {first - back_at:.2f} s, then {after.served:.1%} served", broken


def _quiet_outage(down_s: float) -> tuple[str, list[str]]:
    back_at = 40.0 + down_s
    played = run([(40.0, DOWN), (back_at, WELL)], 0.25, back_at + 80.0)
    lost = 0
    for call in (call for call in played.calls if call.arrived_at >= back_at):
        if is_served(call):
            break
        lost += 1
    return f"served from call {lost + 1} on", _at_most("calls until it is back", lost + 1, 2)


def _flapping() -> tuple[str, list[str]]:
    regimes: list[tuple[float, Regime]] = [(place * 5.0, DOWN if place % 2 else WELL) for place in range(24)]
    played = run(regimes, 50.0, 120.0)
    up = sum(call.arrived_at % 10.0 < 5.0 for call in played.calls)
    share = sum(map(is_served, played.calls)) / up
    return f"{share:.2f} of what the up-time allows", _at_least("of the up-time", share, 0.85)


def _herd(per_s: float, back_at: float) -> tuple[str, list[str]]:
    """Clients that arrive within a second, and retry until they are served."""
    answer_s, calls = 0.1, 1000
    provider = Returning(back_at, round(per_s * answer_s), answer_s)
    played = play(ALONE, provider, [Load(MODEL, calls, 1.0, arrivals="even", asks_for_s=60.0)])
    last_at = max(call.ended_at for call in played.calls)
    per_call = len(played.requests) / len(played.calls)
    broken = [] if all(map(is_served, played.calls)) else ["not all are answered"]
    broken += _at_most("s to the last answer", last_at, 1.1 * (back_at + calls / per_s))
    return f"the last is answered after {last_at:.2f} s, {per_call:.2f} requests per call", broken + _at_most(
        "requests per call", per_call, 1.3
    )


def _into_outage(share: float) -> tuple[str, list[str]]:
    played = run([(0.0, RandomFailures(share)), (30.0, DOWN)], 50.0, 60.0)
    requests = sum(31.0 <= request.at < 60.0 for request in played.requests)
    return f"{requests / 29:.1f} requests/s from a second on", _at_most("requests a second", requests / 29, 1.5)


def _out_of_outage(share: float) -> tuple[str, list[str]]:
    played = run([(20.0, DOWN), (40.0, RandomFailures(share))], 50.0, 100.0)
    first = _first_success(played, 40.0)
    seen = fared(played, first + 1.0, 100.0)
    least = RANDOM[share][0]
    return f"{seen.served:.1%} served from a second on", _at_least("served", seen.served, least)


def _drawn(seed: int) -> tuple[str, list[str]]:
    """Regimes follow each other, two a minute; each promise counts from 5 s after the change. After an outage it counts
    from 1 s after the first request that succeeds, because any probe may be one of those that fail."""
    dice = Random(f"drawn {seed}")
    kinds: list[Regime] = [*map(RandomFailures, RANDOM), Overload(25.0), BadShard(0.3), DOWN, WELL]
    chosen = [dice.choice(kinds) for _ in range(10)]
    played = run([(place * _SEGMENT_S, each) for place, each in enumerate(chosen)], 50.0, _SEGMENT_S * len(chosen))
    broken, back_at = [], 0.0
    for place, each in enumerate(chosen):
        begin_s, end_s = place * _SEGMENT_S, (place + 1) * _SEGMENT_S - _RETRIED_S
        if place and chosen[place - 1] is DOWN and each is not DOWN:
            back_at = _first_success(played, begin_s) + 1.0
        settled_at = begin_s + _SETTLED_S if each is DOWN else max(begin_s + _SETTLED_S, back_at)
        if settled_at >= end_s - _RETRIED_S:
            continue
        seen = fared(played, settled_at, end_s)
        broken += [f"segment {place + 1} ({each}): {promise}" for promise in _drawn_promises(each, seen)]
    return f"{len(chosen) - len({each.partition(':')[0] for each in broken})} of {len(chosen)} segments hold", broken


def _drawn_promises(regime: Regime, seen: Fared) -> list[str]:
    match regime:
        case RandomFailures(share) if share:
            return random_promises(share, seen)
        case RandomFailures():
            return _at_least("served", seen.served, 0.95)
        case Overload(capacity):
            broken = _at_least("of C served", seen.ok_per_s / capacity, 0.95)
            return broken + _at_most("of C sent", seen.requests_per_s / capacity, 1.15)
        case BadShard(share):
            return _at_least("served", seen.served, 0.99 * (1 - share))
        case _:
            return _at_most("requests a second", seen.requests_per_s, 1.5)


def _first_success(played: Played, since: float) -> float:
    """Time at which the first request sent after `since` succeeded."""
    return min(
        request.ended_at or request.at for request in played.requests if request.at > since and request.status == 200
    )


def in_words(seen: Fared) -> str:
    return f"{seen.served:.2%} served, {seen.requests_per_call:.2f} requests per call, p99 {seen.p99_s:.2f} s"


def _at_least(what: str, found: float, least: float) -> list[str]:
    return [f"{what}: {found:.4g}, promised at least {least:.4g}"] if found < least else []


def _at_most(what: str, found: float, most: float) -> list[str]:
    return [f"{what}: {found:.4g}, promised at most {most:.4g}"] if found > most else []
