"""Load balancing: the order in which a call's targets are tried.

Candidates are chosen before (breakers, cooldowns: `proxy.attempts.admission`); latency is measured in
`resilience.routing.latency`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from llm_guard.resilience.units import Unit, at_least, number_from

Balance = Literal["order", "weighted", "least_loaded", "latency"]
"""order: as written; weighted: at random; least_loaded: by calls in flight; latency: by cost and calls in flight."""

Draw = Callable[[], float]
"""Source of uniform draws from [0, 1)."""


def parse_priority(value: object) -> int:
    """Checks a whole number of at least 0; raises ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"not a priority: {value!r:.60}; write a whole number, 0 for the first")
    return value


Weight = Annotated[float, Unit(at_least(0.001), number_from(0.001))]
"""Share of the traffic, relative to the other deployments'."""
Priority = Annotated[int, Unit(parse_priority, {"type": "integer", "minimum": 0})]
"""0 is tried first."""


# A deployment is failing if its share of failures is more than twice the best one's, plus this much: the margin takes
# more than one failure if few attempts are known.
_MUCH = 2.0
_FEW = 0.1


@dataclass(frozen=True, slots=True)
class LoadCandidate:
    """One target of a call."""

    group: int
    """Lower groups come first regardless of load: one number for each alias of the call and priority within it."""
    weight: float = 1.0
    """> 0."""
    in_flight: int = 0
    cost_s: float | None = None
    """`PeakEwma.cost_s`; None: unknown."""


def arranged(candidates: Sequence[LoadCandidate], how: Balance, draw: Draw) -> tuple[int, ...]:
    """Returns the indices of all candidates in the order in which to try them; groups are not mixed."""
    groups: dict[int, list[int]] = {}
    for index, candidate in enumerate(candidates):
        groups.setdefault(candidate.group, []).append(index)
    order: list[int] = []
    for group in sorted(groups):
        members = groups[group]
        order += members if len(members) == 1 else _within(members, candidates, how, draw)
    return tuple(order)


def failing_last(order: Sequence[int], groups: Sequence[int], shares: Sequence[float]) -> tuple[int, ...]:
    """Moves members that fail much more often than the best of their group behind its others, and keeps the order
    otherwise. `shares`: the recent share of failed attempts of each, 0 to 1."""
    best: dict[int, float] = {}
    for index in order:
        best[groups[index]] = min(shares[index], best.get(groups[index], 1.0))
    is_failing = {index: shares[index] > best[groups[index]] * _MUCH + _FEW for index in order}
    return tuple(sorted(order, key=lambda index: (groups[index], is_failing[index])))


def _within(members: list[int], candidates: Sequence[LoadCandidate], how: Balance, draw: Draw) -> list[int]:
    match how:
        case "order":
            return members
        case "weighted":
            return _by_lot(members, candidates, draw)
        case "least_loaded":
            lots = _by_lot(members, candidates, draw)
            return sorted(lots, key=lambda index: candidates[index].in_flight / candidates[index].weight)
        case "latency":
            return _by_latency(_by_lot(members, candidates, draw), candidates)


def _by_lot(members: list[int], candidates: Sequence[LoadCandidate], draw: Draw) -> list[int]:
    """Returns a random order in which each comes first in proportion to its weight.

    Efraimidis and Spirakis, "Weighted random sampling with a reservoir" (2006): the keys u ** (1 / weight), here
    their logarithms, which do not underflow.
    """
    keys = {index: -math.log(1.0 - draw()) / candidates[index].weight for index in members}
    return sorted(members, key=keys.__getitem__)


def _by_latency(lots: list[int], candidates: Sequence[LoadCandidate]) -> list[int]:
    """Returns the better of the first two drawn, then all others, best first.

    Two choices suffice (Mitzenmacher 2001), and unlike the best of all they differ between calls that choose at the
    same moment. A deployment without a cost of its own counts as the best known one: it gets traffic at once, and as
    its calls in flight count too, no more than the best would get. Finagle lets one call through and then waits for
    its response, tower assumes a second: with responses of half a minute both guesses are far off.
    """
    known = [cost_s for index in lots if (cost_s := candidates[index].cost_s) is not None]
    best_s = min(known, default=1.0)

    def load(index: int) -> float:
        candidate = candidates[index]
        cost_s = best_s if candidate.cost_s is None else candidate.cost_s
        return cost_s * (candidate.in_flight + 1) / candidate.weight

    first = min(lots[:2], key=load)
    return [first, *sorted((index for index in lots if index != first), key=load)]
