"""Hedging and the choice among replicas in virtual time: A36 to A38 and A44, with the gateway's own policies.

Latencies are drawn, not caused by a queue: the cost of a hedge or a choice for other calls is measured as load.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

from benchmarks.storm.row import Row, promised
from benchmarks.storm.simulate import Timeline
from llm_guard.resilience.retry.hedging import RESERVE, HedgeBudget, HedgeSettings, hedge_delay_s
from llm_guard.resilience.routing.candidates import Balance, Latency, LoadCandidate, PeakEwma, arranged

CALLS = 60_000
SECONDS = 60.0
HEDGED_RATE_PER_S = 100
BALANCED_RATE_PER_S = 500
REPLICAS = 10

Scenario = Literal["A36", "A37", "A38"]
Draw = Callable[[random.Random, float], float]
"""Duration in seconds of an exchange that begins at a given time."""


@dataclass(frozen=True, slots=True)
class Hedged:
    """Seconds, except for the shares; `alone`: the same calls without hedging."""

    name: str
    p99_s: float
    p999_s: float
    alone_p99_s: float
    alone_p999_s: float
    extra_load: float
    """Hedges per call."""
    wanted: float
    """Share of calls that were not finished after the delay."""
    calls: int


@dataclass(frozen=True, slots=True)
class Balanced:
    """Requests sent to the one odd replica of ten, as a share of all."""

    name: str
    how: Balance
    share: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Spread:
    hedged: tuple[Hedged, ...]
    balanced: tuple[Balanced, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def two_modes(dice: random.Random, _: float) -> float:
    """A36: 95 % at 0.1 s, 5 % at 2 s, each ±10 %."""
    return (2.0 if dice.random() < 0.05 else 0.1) * dice.uniform(0.9, 1.1)


def heavy_tail(dice: random.Random, _: float) -> float:
    """A37: lognormal with sigma 1 and a median of one second."""
    return dice.lognormvariate(0.0, 1.0)


def storm(dice: random.Random, now: float) -> float:
    """A38: lognormal, and from the tenth second on ten times as slow."""
    return dice.lognormvariate(-2.0, 0.5) * (10.0 if now >= 10.0 else 1.0)


@dataclass(slots=True, eq=False)
class _Call:
    began_at: float
    out: dict[int, float] = field(default_factory=dict)
    """Start times of the exchanges in progress, by number."""


class _Hedging:
    """One deployment with Poisson arrivals."""

    def __init__(self, draw: Draw, settings: HedgeSettings | None, calls: int, seed: int) -> None:
        self._draw = draw
        self._settings = settings
        self._calls = calls
        self._dice = random.Random(seed)
        self._timeline = Timeline()
        self._latency = Latency()
        self.budget = HedgeBudget(settings or HedgeSettings())
        self.wanted = 0
        self.took_s: list[float] = []

    def run(self) -> _Hedging:
        self._arrive(self._calls)
        self._timeline.run()
        self.took_s.sort()
        return self

    def _arrive(self, left: int) -> None:
        call = _Call(self._timeline.now)
        self.budget.deposit()
        self._send(call)
        now = self._timeline.now
        delay_s = hedge_delay_s(self._settings, self._latency, now) if self._settings else None
        if delay_s is not None:
            self._timeline.after(delay_s, partial(self._hedge, call))
        if left > 1:
            self._timeline.after(self._dice.expovariate(HEDGED_RATE_PER_S), partial(self._arrive, left - 1))

    def _send(self, call: _Call) -> None:
        number, now = len(call.out), self._timeline.now
        call.out[number] = now
        self._timeline.after(self._draw(self._dice, now), partial(self._answer, call, number))

    def _hedge(self, call: _Call) -> None:
        if call.out:
            self.wanted += 1
            if self.budget.try_spend():
                self._send(call)

    def _answer(self, call: _Call, number: int) -> None:
        began_at, now = call.out.pop(number, None), self._timeline.now
        if began_at is None:
            return
        self._latency.note(now - began_at, now)
        for cut_at in call.out.values():
            self._latency.note_cut(now - cut_at, now)
        call.out.clear()
        self.took_s.append(now - call.began_at)


@dataclass(slots=True, eq=False)
class _Replica:
    usual_s: float
    fails: bool = False
    in_flight: int = 0
    cost: PeakEwma = field(default_factory=PeakEwma)


class _Balancing:
    """Ten replicas of which the first is odd, with a steady stream of calls."""

    def __init__(self, odd: _Replica, how: Balance, seconds: float, seed: int) -> None:
        self._replicas = [odd, *(_Replica(0.1) for _ in range(REPLICAS - 1))]
        self._how = how
        self._seconds = seconds
        self._dice = random.Random(seed)
        self._timeline = Timeline()
        self.sent: Counter[int] = Counter()
        self.took_s: list[float] = []

    def run(self) -> _Balancing:
        self._timeline.at(0.0, self._arrive)
        self._timeline.run()
        self.took_s.sort()
        return self

    def _arrive(self) -> None:
        now = self._timeline.now
        candidates = [LoadCandidate(0, 1.0, each.in_flight, each.cost.cost_s(now)) for each in self._replicas]
        index = arranged(candidates, self._how, self._dice.random)[0]
        replica = self._replicas[index]
        self.sent[index] += 1
        replica.in_flight += 1
        took_s = replica.usual_s * self._dice.lognormvariate(0.0, 0.3)
        self._timeline.after(took_s, partial(self._answer, replica, took_s))
        if now < self._seconds:
            self._timeline.after(self._dice.expovariate(BALANCED_RATE_PER_S), self._arrive)

    def _answer(self, replica: _Replica, took_s: float) -> None:
        replica.in_flight -= 1
        note = replica.cost.note_failure if replica.fails else replica.cost.note
        note(took_s, self._timeline.now)
        self.took_s.append(took_s)


ODD: dict[str, tuple[float, bool]] = {
    "10x slower": (1.0, False),
    "2x slower": (0.2, False),
    "fails within 5 ms": (0.005, True),
}
HOWS: tuple[Balance, ...] = ("weighted", "least_loaded", "latency")
HEDGED: dict[str, tuple[Scenario, Draw, HedgeSettings]] = {
    "two modes, set 150 ms": ("A36", two_modes, HedgeSettings(after=0.15)),
    "two modes, learned p95": ("A36", two_modes, HedgeSettings()),
    "heavy tail, learned p95": ("A37", heavy_tail, HedgeSettings()),
    "all 10x slower, learned p95": ("A38", storm, HedgeSettings()),
    "all 10x slower, set 300 ms": ("A38", storm, HedgeSettings(after=0.3)),
}


def run(seed: int = 7, calls: int = CALLS, seconds: float = SECONDS) -> Spread:
    """Runs every case; about ten seconds at full size."""
    hedged = tuple(_hedged(name, draw, settings, calls, seed) for name, (_, draw, settings) in HEDGED.items())
    cases = [(name, how) for name in ODD for how in HOWS]
    return Spread(hedged, tuple(_balanced(name, how, seconds, seed) for name, how in cases))


def rows(found: Spread) -> list[Row]:
    """Rows A36 to A38 and A44, compared with the promises."""
    lines = [_hedged_row(each) for each in found.hedged]
    for each in found.balanced:
        if each.how == "latency":
            bound = 0.06 if each.name == "2x slower" else 0.02
            what = f"share of one replica of ten that is odd: {each.name}"
            lines.append(promised("A44", what, f"below {bound:.0%}", f"{each.share:.2%}", each.share < bound))
    return lines


def _hedged_row(tail: Hedged) -> Row:
    extra = f"extra {tail.extra_load:.1%} of {tail.wanted:.1%} wanted"
    p99 = f"p99 {tail.alone_p99_s:.3g} -> {tail.p99_s:.3g} s"
    p999 = f"p99.9 {tail.alone_p999_s:.3g} -> {tail.p999_s:.3g} s"
    match HEDGED[tail.name][0]:
        case "A36":
            holds = tail.p99_s < 0.3 and tail.extra_load <= 0.06
            expected = "p99 2.0 -> below 0.3 s, extra at most 6%"
            return promised("A36", tail.name, expected, f"{p99}, {p999}, {extra}", holds)
        case "A37":
            holds = tail.p99_s < 7.4 and tail.p999_s < 11 and tail.extra_load <= 0.055
            expected = "p99 10.3 -> 6.7 s, p99.9 22.1 -> 9.6 s, extra 5.0%"
            return promised("A37", tail.name, expected, f"{p99}, {p999}, {extra}", holds)
        case "A38":
            most = 0.05 + RESERVE / tail.calls
            return promised("A38", tail.name, f"extra at most {most:.2%}", extra, tail.extra_load <= most)


def _hedged(name: str, draw: Draw, settings: HedgeSettings, calls: int, seed: int) -> Hedged:
    alone = _Hedging(draw, None, calls, seed).run()
    found = _Hedging(draw, settings, calls, seed).run()
    return Hedged(
        name=name,
        p99_s=_at(found.took_s, 0.99),
        p999_s=_at(found.took_s, 0.999),
        alone_p99_s=_at(alone.took_s, 0.99),
        alone_p999_s=_at(alone.took_s, 0.999),
        extra_load=found.budget.snapshot().spent / calls,
        wanted=found.wanted / calls,
        calls=calls,
    )


def _balanced(name: str, how: Balance, seconds: float, seed: int) -> Balanced:
    found = _Balancing(_Replica(*ODD[name]), how, seconds, seed).run()
    return Balanced(name, how, found.sent[0] / found.sent.total(), _at(found.took_s, 0.99))


def _at(took_s: list[float], q: float) -> float:
    return took_s[int(q * len(took_s))]
