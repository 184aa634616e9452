"""Openings of the breaker by chance, and limits that are learned."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

from benchmarks.frontier.limits import Crowded
from benchmarks.frontier.measure import MODEL, fared
from benchmarks.frontier.rows import Cell, Row
from benchmarks.virtual.clients import Load
from benchmarks.virtual.world import play
from llm_guard.outcome import Signal
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
_SEEDS = 10
_MINUTES = 10
_LIMITED = """
upstreams: {provider: {dialect: openai, base_url: "https://provider.example/v1", api_key: sk-provider}}
models: {model-a: {deployments: [{upstream: provider}], capacity: {concurrency: %s}}}
"""
_CROWDS = ((8, 24, 0.2, 60.0), (8, 24, 1.0, 12.0), (8, 24, 0.2, 200.0), (40, 100, 0.5, 150.0), (3, 6, 0.3, 20.0))
"""Concurrency from which it slows down, maximum concurrency, seconds of a response, calls a second."""


def cells() -> Iterator[Cell]:
    """All measurements of both kinds."""
    for share in SHARES:
        yield Cell("chance", f"{share:.0%} random, 100/s, 10 min, ten seeds", partial(_openings, share))
    for crowd in _CROWDS:
        yield Cell("adaptive limit", _name(*crowd), partial(_adaptive, *crowd))


def _openings(share: float) -> Row:
    """Openings of a breaker alone; each call is one attempt of 50 ms if it fails, of 200 ms if it succeeds."""
    openings = 0
    for seed in range(_SEEDS):
        dice, breaker = Random(f"{share} {seed}"), Breaker(BreakerSettings())
        for place in range(_MINUTES * 60 * 100):
            now = place / 100
            permit = breaker.try_acquire(now)
            if permit is None:
                continue
            signal = Signal.UNHEALTHY if dice.random() < share else Signal.HEALTHY
            change = breaker.settle(permit, signal, now)
            openings += change is not None and change.before == "closed"
    name = f"{share:.0%} random, 100/s, 10 min, ten seeds"
    return Row("chance", name, f"{openings} openings", (f"{openings} openings",) if openings else ())


def _adaptive(knee: int, most: int, answer_s: float, rate: float) -> Row:
    begin_s, end_s = 20.0, 100.0
    learned = play(_LIMITED % "adaptive", Crowded(knee, most, answer_s), [Load(MODEL, rate, end_s)])
    fixed = play(_LIMITED % knee, Crowded(knee, most, answer_s), [Load(MODEL, rate, end_s)])
    requests = [request for request in learned.requests if begin_s <= request.at < end_s]
    overloads = sum(request.status == 503 for request in requests) / len(requests)
    goodput = fared(learned, begin_s, end_s).ok_per_s / fared(fixed, begin_s, end_s).ok_per_s
    broken = [f"{overloads:.1%} overloads, promised 3 %"] if overloads > 0.03 else []
    broken += [f"{goodput:.2f} of the best fixed number, promised 0.95"] if goodput < 0.95 else []
    found = f"{overloads:.2%} overloads, {goodput:.2f} of the best fixed number's throughput"
    return Row("adaptive limit", _name(knee, most, answer_s, rate), found, tuple(broken))


def _name(knee: int, most: int, answer_s: float, rate: float) -> str:
    return f"slower from {knee} on, refused above {most}, answers of {answer_s:g} s, {rate:g}/s"
