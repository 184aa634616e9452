"""Breakers of several gateways in front of one provider: each alone, or with shared evidence and one probe lease.

Exchanges take place ten times a second, as with a store. At each, a gateway learns what the others published before.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from statistics import median

from benchmarks.storm.row import Row, promised
from benchmarks.storm.simulate import Timeline
from llm_guard.outcome import Signal
from llm_guard.resilience.circuit_breaker.breaker import BreakerSettings, Permit
from llm_guard.resilience.circuit_breaker.shared_breaker import EXCHANGE_S, SharedBreaker
from llm_guard.resilience.circuit_breaker.shared_evidence import BreakerSummary

_TRIES = 6
"""A call that requests the probe lease waits for so many halves of an exchange."""
_OK_S = 0.5
_QUIET_S = 60.0
_ONE_OPENING_S = 2.0
_GATEWAYS = 10
_SEEDS = (1, 2, 3)
_SCENARIO = "replicas"


@dataclass(frozen=True, slots=True)
class Trouble:
    """What a provider does from `_QUIET_S` on."""

    length_s: float
    share: float = 1.0
    """Share of the calls that fail."""
    takes_s: float = 0.05
    """How long a call takes to fail."""
    only: int | None = None
    """Index of the only gateway at which calls fail; None: they fail at all gateways."""

    @property
    def ends_at(self) -> float:
        return _QUIET_S + self.length_s

    def strikes(self, gateway: int, now: float, draw: float) -> bool:
        is_hit = self.only is None or self.only == gateway
        return is_hit and _QUIET_S <= now < self.ends_at and draw < self.share


@dataclass(slots=True)
class Course:
    """Results of one run."""

    sent: int = 0
    """Requests during the trouble."""
    openings: int = 0
    """Times at which closed breakers opened; several within two seconds count once."""
    opened_s: float = inf
    """Seconds until every gateway's breaker had opened; inf: not all did."""
    refused_elsewhere: int = 0
    """Calls refused by gateways that were not struck."""
    refused_after: int = 0
    """Calls refused since the end of the trouble."""
    most_probes: int = 0
    """Most probes in flight at once during the trouble, once every gateway knew that all breakers had opened."""


class Fleet:
    """Gateways on one timeline; `is_shared` False: each is alone."""

    def __init__(self, gateways: int, rate_per_s: float, trouble: Trouble, *, is_shared: bool, seed: int = 7) -> None:
        self._timeline = Timeline()
        self._draw = random.Random(seed)
        self._trouble = trouble
        self._rate_per_s = rate_per_s
        self._is_shared = is_shared
        self._breakers = [SharedBreaker(BreakerSettings(), self._draw.random()) for _ in range(gateways)]
        self._published: list[tuple[float, BreakerSummary] | None] = [None] * gateways
        self._lease: tuple[int, float] = (-1, -inf)
        self._opened: set[int] = set()
        self._latest_opening = -inf
        self._probes: set[Permit] = set()
        self.course = Course()

    def run(self, until: float) -> Course:
        for at in self._arrivals(until):
            self._timeline.at(at, partial(self._call, self._draw.randrange(len(self._breakers)), 0))
        if self._is_shared:
            for number in range(len(self._breakers)):
                self._timeline.at(self._draw.random() * EXCHANGE_S, partial(self._exchange, number, until))
        self._timeline.run(until)
        return self.course

    def _arrivals(self, until: float) -> Iterator[float]:
        at = 0.0
        while (at := at + self._draw.expovariate(self._rate_per_s)) < until:
            yield at

    def _call(self, number: int, tries: int) -> None:
        breaker, now, trouble = self._breakers[number], self._timeline.now, self._trouble
        permit = breaker.try_acquire(now)
        if permit is None:
            if breaker.awaits_lease(now) and tries < _TRIES:
                self._timeline.after(EXCHANGE_S / 2, partial(self._call, number, tries + 1))
                return
            self.course.refused_elsewhere += trouble.only is not None and trouble.only != number
            self.course.refused_after += now >= trouble.ends_at
            return
        is_in_trouble = _QUIET_S <= now < trouble.ends_at
        self.course.sent += is_in_trouble
        if permit.is_probe and is_in_trouble and now > _QUIET_S + self.course.opened_s + 2 * EXCHANGE_S:
            self._probes.add(permit)
            self.course.most_probes = max(self.course.most_probes, len(self._probes))
        is_bad = trouble.strikes(number, now, self._draw.random())
        self._timeline.after(trouble.takes_s if is_bad else _OK_S, partial(self._end, number, permit, is_bad))

    def _end(self, number: int, permit: Permit, is_bad: bool) -> None:
        self._probes.discard(permit)
        signal = Signal.UNHEALTHY if is_bad else Signal.HEALTHY
        self._note(number, self._breakers[number].settle(permit, signal, self._timeline.now) is not None)

    def _exchange(self, number: int, until: float) -> None:
        breaker, now = self._breakers[number], self._timeline.now
        summary = breaker.summary(now)
        self._published[number] = None if summary is None else (now, summary)
        others = [
            summary.aged(now - at)
            for other, published in enumerate(self._published)
            if other != number and published is not None
            for at, summary in [published]
        ]
        breaker.note_calls_elsewhere(sum(other.calls for other in others))
        self._note(number, breaker.conclude_with(others, now) is not None)
        holder, ends_at = self._lease
        wanted_until = breaker.lease.wanted_until(now)
        if wanted_until is not None and (now >= ends_at or holder == number):
            self._lease = (number, wanted_until)
            breaker.lease.grant(wanted_until, now)
        elif wanted_until is not None:
            breaker.lease.note_taken(ends_at)
        if now + EXCHANGE_S < until:
            self._timeline.after(EXCHANGE_S, partial(self._exchange, number, until))

    def _note(self, number: int, has_changed: bool) -> None:
        breaker, now = self._breakers[number], self._timeline.now
        if not has_changed or breaker.state != "open" or breaker.history.latest()[-1].before != "closed":
            return
        self.course.openings += now - self._latest_opening > _ONE_OPENING_S
        self._latest_opening = now
        self._opened.add(number)
        if len(self._opened) == len(self._breakers):
            self.course.opened_s = min(self.course.opened_s, now - _QUIET_S)


def rows() -> list[Row]:
    """Ten gateways beside one that makes all the calls, and beside ten that share nothing."""
    return [*_outages(), *_hangs(), _own_trouble(), *_brownouts()]


def _runs(gateways: int, rate_per_s: float, trouble: Trouble, *, is_shared: bool) -> list[Course]:
    until = trouble.ends_at + _QUIET_S
    return [Fleet(gateways, rate_per_s, trouble, is_shared=is_shared, seed=seed).run(until) for seed in _SEEDS]


def _outages() -> Iterator[Row]:
    trouble = Trouble(120.0)
    alone, shared = (_runs(_GATEWAYS, 1.0, trouble, is_shared=is_shared) for is_shared in (False, True))
    sent, opened_s = [course.sent for course in shared], median(course.opened_s for course in shared)
    yield promised(
        _SCENARIO, "10 gateways, an outage of 120 s, 1 call/s in all: requests that reach the provider", "≤ 60",
        f"{_listed(sent)}; sharing nothing {_listed(course.sent for course in alone)}", max(sent) <= 60,
    )  # fmt: skip
    yield promised(
        _SCENARIO, "the same: until all ten have opened, median", "≤ 7 s",
        f"{opened_s:.1f} s; sharing nothing {median(course.opened_s for course in alone):.0f} s", opened_s <= 7.0,
    )  # fmt: skip
    probes = max(course.most_probes for course in shared)
    yield promised(_SCENARIO, "the same: probes in flight at once, at most", "1", f"{probes}", probes <= 1)


def _hangs() -> Iterator[Row]:
    trouble = Trouble(300.0, takes_s=30.0)
    one = _runs(1, 10.0, trouble, is_shared=False)
    shared = _runs(_GATEWAYS, 10.0, trouble, is_shared=True)
    times = [ours.sent / single.sent for ours, single in zip(shared, one, strict=True)]
    yield promised(
        _SCENARIO, "10 gateways, requests hang for 30 s, 300 s at 10 calls/s: requests, relative to one gateway's",
        "≤ 1.25", " / ".join(f"{each:.2f}" for each in times), max(times) <= 1.25,
    )  # fmt: skip


def _own_trouble() -> Row:
    refused = [course.refused_elsewhere for course in _runs(10, 10.0, Trouble(120.0, only=3), is_shared=True)]
    return promised(_SCENARIO, "one of 10 gateways cut off from the provider: calls refused by the other nine", "0",
                    _listed(refused), not any(refused))  # fmt: skip


def _brownouts() -> Iterator[Row]:
    for share, rate in product((0.2, 0.4), (1.0, 10.0)):
        trouble = Trouble(600.0, share=share)
        alone, shared = (
            [course.openings for course in _runs(_GATEWAYS, rate, trouble, is_shared=is_shared)]
            for is_shared in (False, True)
        )
        yield promised(
            _SCENARIO, f"10 gateways, {share:.0%} of the calls fail for 600 s, {rate:g} calls/s: openings",
            "at most one more than sharing nothing", f"{_listed(shared)}; sharing nothing {_listed(alone)}",
            all(ours <= others + 1 for ours, others in zip(shared, alone, strict=True)),
        )  # fmt: skip


def _listed(figures: Iterable[int]) -> str:
    return " / ".join(map(str, figures))
