"""Measures several ways in turns in one run, so that changes of the machine affect all of them alike.

Defines the order of turns, and the ratio that is taken in each round.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.compare.load import Calls

PerRound = Mapping[str, Sequence[float]]
"""One value a round for each way."""


def in_turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yields (round, name), rotated in each round: each one changes the state of the machine for the next."""
    for turn in range(rounds):
        at = turn % len(names)
        for name in (*names[at:], *names[:at]):
            yield turn, name


def ratio(figure: PerRound, way: str, base: str) -> tuple[float, float, float]:
    """Ratio to `base`: the median over rounds, the lowest and the highest."""
    found = [one / other for one, other in zip(figure[way], figure[base], strict=True)]
    return statistics.median(found), min(found), max(found)


def joined(pieces: Sequence[Calls]) -> Calls:
    """One turn that was measured in pieces."""
    return Calls(
        sum(piece.seconds for piece in pieces),
        sum(piece.cpu_s for piece in pieces),
        tuple(latency for piece in pieces for latency in piece.latencies_s),
        sum(piece.failed for piece in pieces),
        next((piece.complaint for piece in pieces if piece.complaint), ""),
    )


def calls_per_s(found: Mapping[str, Sequence[Calls]]) -> dict[str, tuple[float, ...]]:
    """Calls a second in finished turns."""
    return {name: tuple(len(turn.latencies_s) / turn.seconds for turn in turns) for name, turns in found.items()}


def cpu_s_per_call(found: Mapping[str, Sequence[Calls]]) -> dict[str, tuple[float, ...]]:
    """CPU time per call in finished turns."""
    return {name: tuple(turn.cpu_s / len(turn.latencies_s) for turn in turns) for name, turns in found.items()}
