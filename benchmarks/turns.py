"""Several ways measured in turns, in one run: what the machine does to all of them in a round is no difference between
them.

Owns the order of turns, and the ratio that is taken in each round. Does not own what is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.compare.load import Calls

PerRound = Mapping[str, Sequence[float]]
"""By way, one value a round."""


def in_turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Who comes second finds the machine as the first has left it: they change places."""
    for turn in range(rounds):
        at = turn % len(names)
        for name in (*names[at:], *names[:at]):
            yield turn, name


def ratio(figure: PerRound, way: str, base: str) -> tuple[float, float, float]:
    """To `base`: the median over rounds, the lowest and the highest."""
    found = [one / other for one, other in zip(figure[way], figure[base], strict=True)]
    return statistics.median(found), min(found), max(found)


def calls_per_s(found: Mapping[str, Sequence[Calls]]) -> dict[str, tuple[float, ...]]:
    """Of finished turns."""
    return {name: tuple(len(each.latencies_s) / each.seconds for each in turns) for name, turns in found.items()}


def cpu_s_per_call(found: Mapping[str, Sequence[Calls]]) -> dict[str, tuple[float, ...]]:
    """Of finished turns."""
    return {name: tuple(each.cpu_s / len(each.latencies_s) for each in turns) for name, turns in found.items()}
