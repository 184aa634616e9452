"""Runs all measurements of the storm matrix, on all processors of the machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from benchmarks.rig import begin_simulation
from benchmarks.storm_matrix import fallbacks, measure, slow
from benchmarks.storm_matrix.cells import ANSWER_S, Cell, cells
from benchmarks.storm_matrix.fallbacks import Substitution
from benchmarks.storm_matrix.measure import Storm
from benchmarks.storm_matrix.slow import Slowness


@dataclass(frozen=True, slots=True)
class Matrix:
    """All measurements."""

    storms: list[Storm]
    substitutions: list[Substitution]
    slowness: list[Slowness]

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        measured: list[Storm | Substitution | Slowness] = [*self.storms, *self.substitutions, *self.slowness]
        return [promise for each in measured for promise in each.broken]

    def as_dict(self) -> dict[str, Any]:
        return {
            "storms": [storm.as_dict() for storm in self.storms],
            "fallbacks": [substitution.as_dict() for substitution in self.substitutions],
            "slow_answers": [each.as_dict() for each in self.slowness],
        }


def run(say: Callable[[str], None], processes: int | None = None) -> Matrix:
    """Measures everything; `say` is called as each measurement is ready."""
    substitutions, slowness = run_fallbacks(say), run_slow(say)
    return Matrix(run_cells(say, list(cells()), processes), substitutions, slowness)


def run_fallbacks(say: Callable[[str], None]) -> list[Substitution]:
    """Measures random errors before a fallback to another model."""
    found = []
    for flaw in fallbacks.flaws():
        found.append(fallbacks.measure(flaw))
        say(f"{flaw.name}: {found[-1].in_words}{_verdict(found[-1])}")
    return found


def run_slow(say: Callable[[str], None]) -> list[Slowness]:
    """Measures right answers that take minutes."""
    found = []
    for case in slow.CASES:
        found.append(slow.measure(case))
        say(f"{case.name}: {found[-1].in_words}{_verdict(found[-1])}")
    return found


def run_cells(say: Callable[[str], None], chosen: Sequence[Cell], processes: int | None = None) -> list[Storm]:
    """Measures cells, the costliest first; returns them in the order of `chosen`."""
    workers = min(processes or os.cpu_count() or 1, len(chosen))
    if workers <= 1:
        return list(_counted(say, map(measure.measure, chosen), len(chosen)))
    with ProcessPoolExecutor(workers, initializer=begin_simulation) as pool:
        ready = as_completed([pool.submit(measure.measure, cell) for cell in sorted(chosen, key=_cost, reverse=True)])
        found = {storm.cell: storm for storm in _counted(say, (each.result() for each in ready), len(chosen))}
    return [found[cell] for cell in chosen]


def chosen_cells(
    lengths: Sequence[float], rates: Sequence[float], errors: Sequence[str], hints: Sequence[str]
) -> list[Cell]:
    """The cells of the matrix with one of these values each; an empty sequence stands for all values."""
    return [
        cell
        for cell in cells()
        if (not lengths or cell.length_s in lengths)
        and (not rates or cell.rate_per_s in rates)
        and (not errors or cell.error in errors)
        and (not hints or ("none" if cell.hint_s is None else str(cell.hint_s)) in hints)
        and cell.answer_s == ANSWER_S
        and cell.share == 1.0
    ]


def line(storm: Storm) -> str:
    """One cell as a line of text."""
    other = "" if storm.neighbour_share is None else f", other model {storm.neighbour_share:.1%}"
    p99 = "-" if storm.p99_s is None else f"{storm.p99_s:.1f} s"
    why = f" [{storm.lost_to.most_common(1)[0][0]}]" if storm.lost_to else ""
    return (
        f"{storm.cell.name}: served {storm.served_share:.1%} of {storm.calls} (p99 {p99}), "
        f"{storm.requests_per_call:.3g} requests a call in the storm, {storm.refused_share:.1%} answered 429 after it"
        f"{other}{_verdict(storm)}{why}"
    )


def _verdict(measured: Storm | Substitution | Slowness) -> str:
    return "  DOES NOT HOLD" if measured.broken else ""


def _cost(cell: Cell) -> float:
    return cell.rounds * cell.rate_per_s * (cell.length_s + cell.loads[0].ends_at) * (1 + cell.has_neighbour)


def _counted(say: Callable[[str], None], storms: Iterable[Storm], count: int) -> Iterator[Storm]:
    for place, storm in enumerate(storms, 1):
        say(f"{place}/{count} {line(storm)}")
        yield storm
