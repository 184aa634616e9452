"""The storm matrix as a heat map: a panel for each error and Retry-After, a square for each length and rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from benchmarks.storm.pictures import BAD, INK, OURS, save
from benchmarks.storm_matrix.cells import ANSWER_S, ERRORS, HINTS_S, LENGTHS_S, RATES_PER_S
from benchmarks.storm_matrix.measure import PROMISED_SERVED, Storm

_WHITE = "#ffffff"
_COLOURS = LinearSegmentedColormap.from_list(
    "served", [(0.0, BAD), (PROMISED_SERVED - 0.01, "#f6dfc8"), (PROMISED_SERVED, "#d6ebe2"), (1.0, OURS)]
)
_DARK = 0.25


def draw(storms: Sequence[Storm], path: Path) -> None:
    """Share of the calls that are served after each storm."""
    figure, grid = plt.subplots(
        len(ERRORS), len(HINTS_S), figsize=(12, 11), sharex=True, sharey=True, layout="constrained"
    )
    at = {
        (storm.cell.error, storm.cell.hint_s, storm.cell.length_s, storm.cell.rate_per_s): storm
        for storm in storms
        if storm.cell.answer_s == ANSWER_S and storm.cell.share == 1.0
    }
    for line, error in zip(grid, ERRORS, strict=True):
        for axes, hint_s in zip(line, HINTS_S, strict=True):
            shares = [[at[error, hint_s, length, rate].served_share for rate in RATES_PER_S] for length in LENGTHS_S]
            _draw_panel(axes, shares)
        line[0].set_ylabel(f"{error}\n\nstorm of", fontsize=10, color=INK)
    for axes, hint_s in zip(grid[0], HINTS_S, strict=True):
        axes.set_title("no Retry-After" if hint_s is None else f"Retry-After: {hint_s}", fontsize=10, color=INK)
    for axes in grid[-1]:
        axes.set_xlabel("calls a second", fontsize=9)
    figure.suptitle(
        "Percent of calls served after a storm, from 10 s after its end and that of its last hint (at most 60 s)\n",
        x=0.01, ha="left", fontsize=13, color=INK,
    )  # fmt: skip
    save(figure, path)


def _draw_panel(axes: Axes, shares: list[list[float]]) -> None:
    axes.imshow(shares, cmap=_COLOURS, vmin=0.0, vmax=1.0, aspect="auto")
    for row, line in enumerate(shares):
        for column, share in enumerate(line):
            is_dark = share < _DARK or share > 1 - (1 - PROMISED_SERVED) / 2
            text = f"{int(share * 1000) / 10:g}"
            axes.text(column, row, text, ha="center", va="center", fontsize=9, color=_WHITE if is_dark else INK)
    axes.set_xticks(range(len(RATES_PER_S)), [f"{rate:g}" for rate in RATES_PER_S])
    axes.set_yticks(range(len(LENGTHS_S)), [f"{length:g} s" for length in LENGTHS_S])
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)
    for side in axes.spines.values():
        side.set_visible(False)
