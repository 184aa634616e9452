"""Writes the storm matrix' results: storm-matrix.json, storm-matrix.md and storm-matrix.png."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.provenance import Machine, computed_line
from benchmarks.storm_matrix import fallbacks, picture, slow
from benchmarks.storm_matrix.cells import ANSWER_S, ERRORS, GRACE_S, HINT_CAP_S, HINTS_S, WINDOW_S
from benchmarks.storm_matrix.fallbacks import Substitution
from benchmarks.storm_matrix.measure import PROMISED_NEIGHBOUR, PROMISED_REFUSED, PROMISED_SERVED, Storm
from benchmarks.storm_matrix.run import Matrix
from benchmarks.storm_matrix.slow import Slowness

_NAME = "storm-matrix"
_HEAD = f"""# The storm matrix

The whole gateway below HTTP, with shipped defaults, on a virtual clock: a provider answers nothing but one error for
a while, and is well from then on. Calls come at random (Poisson), and do not depend on what became of those before.
Counted are the calls of {WINDOW_S:g} s that arrive from {GRACE_S:g} s after the provider is well and its last
Retry-After, at most {HINT_CAP_S:g} s of it, has run out. The provider then takes half as much again as is offered, and
answers 429 beyond that. The same figures on every machine (`python -m benchmarks {_NAME}`).

Promised, for every storm: at least {PROMISED_SERVED:.0%} of these calls are served, at most {PROMISED_REFUSED:.0%} of
the requests after it are answered 429, and where one model's quota is spent, {PROMISED_NEIGHBOUR:.0%} of the calls to
another model of the same key are served meanwhile and afterwards."""
_FALLBACKS = f"""## A fallback to another model

A model that fails {fallbacks.FAILING_SHARE:.0%} of its requests, independently of each other, with another model behind
it; answers take {fallbacks.ANSWER_S:g} s. Promised: at least {fallbacks.PROMISED_SERVED:.0%} served, at most
{fallbacks.PROMISED_BY_FALLBACK:.0%} by the other model, p99 of at most {fallbacks.PROMISED_P99_S:g} s."""
_SLOW = f"""## Right answers that take minutes

{slow.COUNT} slow calls in each case, with no timeout configured. Promised: none is lost, and none is sent twice."""


def write(matrix: Matrix, folder: Path, machine: Machine) -> None:
    """Writes all three files into `folder`."""
    content = {"machine": dict(machine), **matrix.as_dict()}
    (folder / f"{_NAME}.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / f"{_NAME}.md").write_text(page(matrix, machine))
    picture.draw(matrix.storms, folder / f"{_NAME}.png")


def page(matrix: Matrix, machine: Machine) -> str:
    """Content of storm-matrix.md."""
    storms = matrix.storms
    plain = [storm for storm in storms if storm.cell.answer_s == ANSWER_S and storm.cell.share == 1.0]
    others = [storm for storm in storms if storm.cell.answer_s != ANSWER_S or storm.cell.share != 1.0]
    lines = [_HEAD, "", _worst(storms), ""]
    lines += ["![share of calls served after each storm](storm-matrix.png)", ""]
    lines += ["Of all lengths and rates together, the worst cell:", "", *_by_error(plain)]
    lines += ["", "## Slow answers, and storms that hit a part of the requests", "", *_cells(others)]
    lines += ["", "## Every cell", "", *_cells(plain), "", _FALLBACKS, "", *_substitutions(matrix.substitutions)]
    lines += ["", _SLOW, "", *_slowness(matrix.slowness)]
    return "\n".join([*lines, "", computed_line(machine)]) + "\n"


def _worst(storms: Sequence[Storm]) -> str:
    worst = min(storms, key=lambda storm: storm.served_share)
    short = sum(storm.served_share < PROMISED_SERVED for storm in storms)
    return (
        f"Worst cell: **{worst.served_share:.1%}** served ({worst.cell.name}). Below {PROMISED_SERVED:.0%}: {short} of "
        f"{len(storms)} cells; with any promise broken: {sum(bool(storm.broken) for storm in storms)}."
    )


def _by_error(storms: Sequence[Storm]) -> list[str]:
    lines = ["| error | Retry-After | served | requests per call in the storm | 429s after it | other model served |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    for error in ERRORS:
        for hint_s in HINTS_S:
            cells = [storm for storm in storms if (storm.cell.error, storm.cell.hint_s) == (error, hint_s)]
            if not cells:
                continue
            neighbours = [cell.neighbour_share for cell in cells if cell.neighbour_share is not None]
            other = f"{min(neighbours):.1%}" if neighbours else ""
            lines.append(
                f"| {error} | {_hint(hint_s)} | {min(cell.served_share for cell in cells):.1%} "
                f"| {max(cell.requests_per_call for cell in cells):.3g} "
                f"| {max(cell.refused_share for cell in cells):.1%} | {other} |"
            )
    return lines


def _cells(storms: Sequence[Storm]) -> list[str]:
    lines = ["| storm | calls | served | p99 | requests per call in the storm | 429s after it | other model served | |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---|")
    for storm in storms:
        p99 = "" if storm.p99_s is None else f"{storm.p99_s:.1f} s"
        other = "" if storm.neighbour_share is None else f"{storm.neighbour_share:.1%}"
        lines.append(
            f"| {storm.cell.name} | {storm.calls:,} | {storm.served_share:.1%} | {p99} | {storm.requests_per_call:.3g} "
            f"| {storm.refused_share:.1%} | {other} | {_mark(storm)} |"
        )
    return lines


def _substitutions(found: Sequence[Substitution]) -> list[str]:
    lines = [
        "| failing | calls | served | by the fallback | p99 | requests per call | |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {each.flaw.name} | {each.calls:,} | {each.served:.2%} | {each.by_fallback:.1%} | {each.p99_s:.2f} s "
        f"| {each.requests_per_call:.2f} | {_mark(each)} |"
        for each in found
    ]
    return lines


def _slowness(found: Sequence[Slowness]) -> list[str]:
    lines = ["| | slow lost | slow sent twice | quick lost | quick sent twice | |", "|---|---:|---:|---:|---:|---|"]
    lines += [
        f"| {each.case.name} | {each.slow_lost} of {each.slow} | {each.slow_repeated} | {each.quick_lost} "
        f"| {each.quick_repeated} | {_mark(each)} |"
        for each in found
    ]
    return lines


def _mark(measured: Storm | Substitution | Slowness) -> str:
    return "✗ **does not hold**" if measured.broken else "✓ holds"


def _hint(hint_s: int | None) -> str:
    return "none" if hint_s is None else f"{hint_s} s"
