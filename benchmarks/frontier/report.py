"""All measurements of the frontier, its page and its picture: frontier.json, frontier.md and frontier.png."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.frontier import chance, peers, rows
from benchmarks.frontier.measure import fared, run
from benchmarks.frontier.providers import RandomFailures
from benchmarks.frontier.rows import Cell, Row
from benchmarks.provenance import Machine, computed_line
from benchmarks.rig import begin_simulation
from benchmarks.storm.pictures import BAD, INK, OURS, save

_NAME = "frontier"
_SHARES = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9)
_RATE, _SECONDS = 50.0, 60.0
_COLOURS = {"llm_guard": OURS, peers.NONE: "#b0b7c3", peers.SDK: "#5b7fb5", peers.ENVOY: BAD}

PARTS = {
    "random": "Requests that fail at random",
    "stand-in": "A second, healthy deployment of the same model",
    "fallback": "A fallback to another model",
    "overload": "A provider that serves so much, and fails the rest",
    "recovery": "The load falls below what the provider serves: from 3 s later on",
    "shard": "Requests that always fail, by their content",
    "outage": "Nothing is answered for a while",
    "herd": "A herd of clients that ask until they are answered",
    "change": "A brown-out that becomes an outage, and the other way round",
    "drawn": "Regimes that follow each other by lot, two a minute",
    "chance": "Openings of the breaker by chance",
    "adaptive limit": "A limit of calls at once that is learned (`capacity.concurrency: adaptive`)",
}
_HEAD = """# The brown-out frontier

What calls succeed and what they cost, where a provider fails in different ways: the whole gateway below HTTP, with
shipped defaults, on a virtual clock (`python -m benchmarks frontier`). Answers take 0.2 s and errors 50 ms; calls come
at random (Poisson), and are no SDK's: nobody retries but the gateway. The policies are not told which kind of failure
it is. Each promise stands beside what was measured where it does not hold."""


def measure(say: Callable[[str], None], part: str | None = None) -> list[Row]:
    """Measures all rows, or those of one part, on all processors of the machine."""
    numbers = [number for number, cell in enumerate(_cells()) if part in (None, cell.part)]
    found = []
    with ProcessPoolExecutor(os.cpu_count() or 1, initializer=begin_simulation) as pool:
        for place, row in enumerate(pool.map(_measure, numbers), 1):
            found.append(row)
            verdict = "".join(f"; does not hold: {each}" for each in row.broken)
            say(f"{place}/{len(numbers)} {row.name}: {row.found}{verdict}")
    return found


def write(found: Sequence[Row], folder: Path, machine: Machine) -> None:
    """Writes all three files into `folder`."""
    points = _points()
    content = {"machine": dict(machine), "rows": [asdict(row) for row in found], "points": points}
    (folder / f"{_NAME}.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / f"{_NAME}.md").write_text(page(found, points, machine))
    _draw(points, folder / f"{_NAME}.png")


def page(found: Sequence[Row], points: Mapping[str, Sequence[tuple[float, float]]], machine: Machine) -> str:
    """Content of frontier.md."""
    held = sum(not row.broken for row in found)
    lines = [
        _HEAD,
        "",
        f"**{held} of {len(found)}** rows hold.",
        "",
        "![share of calls served against requests](frontier.png)",
    ]
    lines += ["", *_compared(points)]
    for part, title in PARTS.items():
        lines += ["", f"## {title}", "", "| | measured | |", "|---|---|---|"]
        lines += [
            f"| {row.name} | {row.found} | {'✗ ' + '; '.join(row.broken) if row.broken else '✓ holds'} |"
            for row in found
            if row.part == part
        ]
    return "\n".join([*lines, "", computed_line(machine)]) + "\n"


def _compared(points: Mapping[str, Sequence[tuple[float, float]]]) -> list[str]:
    lines = [
        f"At {_RATE:g} calls/s, share served and requests per call:",
        "",
        "| fail at random | " + " | ".join(points) + " |",
    ]
    lines.append("|---|" + "---|" * len(points))
    for place, share in enumerate(_SHARES):
        cells = [f"{point[place][1]:.1%}, {point[place][0]:.2f}" for point in points.values()]
        lines.append(f"| {share:.0%} | " + " | ".join(cells) + " |")
    return lines


def _points() -> dict[str, list[tuple[float, float]]]:
    """For the gateway and each peer: (requests per call, share served) for each share of failures."""
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in _COLOURS}
    for share in _SHARES:
        regimes = [(0.0, RandomFailures(share))]
        seen = fared(run(regimes, _RATE, _SECONDS), 0.0, _SECONDS)
        points["llm_guard"].append((round(seen.requests_per_call, 4), round(seen.served, 4)))
        for peer in peers.PEERS:
            point = peers.measure(peer, regimes, _RATE, _SECONDS)
            points[peer].append((round(point.requests_per_call, 4), round(point.served, 4)))
    return points


def _draw(points: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8.5, 5.5), layout="constrained")
    for name, colour in _COLOURS.items():
        costs, served = zip(*points[name], strict=True)
        axes.plot(costs, [each * 100 for each in served], marker="o", color=colour, label=name, linewidth=1.6)
    for share, (cost, served_share) in zip(_SHARES, points["llm_guard"], strict=True):
        axes.annotate(
            f"{share:.0%} fail",
            (cost, served_share * 100),
            textcoords="offset points",
            xytext=(7, 4) if share > _SHARES[0] else (-14, -16),
            fontsize=9,
            color=INK,
        )
    axes.set_xlabel("requests per call")
    axes.set_ylabel("calls served, %")
    axes.set_ylim(0, 104)
    axes.set_xlim(0.9, 4.0)
    axes.legend(frameon=False, loc="lower right")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title("Random failures: what succeeds, and what it costs", loc="left", fontsize=13, color=INK)
    save(figure, path)


def _cells() -> list[Cell]:
    return [*rows.cells(), *chance.cells()]


def _measure(number: int) -> Row:
    return _cells()[number].measure()
