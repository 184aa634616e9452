"""Pictures of the storms: goodput, herds, false opens (`storm.costs`: budgets, hedges, balancing)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from benchmarks.storm import breakers, metastable
from benchmarks.storm.breakers import Trips
from benchmarks.storm.jitter import BUCKET_S, Herd
from benchmarks.storm.metastable import CAPACITY_PER_S, OUTAGE_S, QUIET_S, RATES_PER_S, Course

OTHERS, OURS, BAD, INK = "#b0b7c3", "#1f7a5c", "#c8501e", "#39424e"
_SHOWN_S = 60
_BEFORE_S = 10
_STORMS = (
    (metastable.NAIVE, "one retry,\nno protection"),
    (metastable.BUDGET, "retry budget\nonly, 20 %"),
    (metastable.BREAKER, "llm_guard's\nbreaker only"),
    (metastable.OURS, "llm_guard"),
    (metastable.TOLD, "one retry, but the\nprovider stops when\nthe client hangs up"),
)


def draw_goodput(found: Sequence[Course], path: Path) -> None:
    """Draws successful responses and requests a second around an outage."""
    at = {(course.scheme, course.rate_per_s): course for course in found}
    figure, grid = plt.subplots(
        len(_STORMS), len(RATES_PER_S), figsize=(11, 9.4), sharex=True, sharey="col", layout="constrained"
    )
    for line, (scheme, label) in zip(grid, _STORMS, strict=True):
        for axes, rate in zip(line, RATES_PER_S, strict=True):
            _draw_course(axes, at[scheme, rate])
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", labelpad=10, fontsize=10)
        if scheme == metastable.OURS:
            line[0].yaxis.label.set_color(OURS)
            line[0].yaxis.label.set_fontweight("bold")
    for axes, rate in zip(grid[0], RATES_PER_S, strict=True):
        axes.set_title(
            f"{rate} calls/s, {rate / CAPACITY_PER_S * 100:.0f} % of capacity", fontsize=10, color=INK, pad=8
        )
    for axes in grid[-1]:
        axes.set_xlabel("seconds from the outage", fontsize=9)
    figure.suptitle(
        "After ten seconds of outage: does the service come back?\n", x=0.01, ha="left", fontsize=14, color=INK
    )
    handles = [
        Rectangle((0, 0), 1, 1, color=OURS),
        Rectangle((0, 0), 1, 1, color=OTHERS),
        Line2D([0], [0], color=INK, linewidth=1.1),
        Line2D([0], [0], color=INK, linewidth=0.8, linestyle=(0, (1, 2))),
        Rectangle((0, 0), 1, 1, color=BAD, alpha=0.16),
    ]
    names = ["good answers a second, llm_guard", "others", "requests sent", "what the provider can serve", "outage"]
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    save(figure, path)


def _draw_course(axes: Axes, course: Course) -> None:
    seconds = range(-_BEFORE_S, _SHOWN_S)
    window = slice(QUIET_S - _BEFORE_S, QUIET_S + _SHOWN_S)
    is_ours = course.scheme == metastable.OURS
    axes.axvspan(0, OUTAGE_S, color=BAD, alpha=0.16, linewidth=0)
    axes.fill_between(
        seconds, course.goodput[window], step="post", color=OURS if is_ours else OTHERS, linewidth=0, zorder=2
    )
    axes.step(seconds, course.requests[window], where="post", color=INK, linewidth=1.1, zorder=3)
    axes.axhline(CAPACITY_PER_S, color=INK, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    top = max(2.75 * course.rate_per_s, 1.35 * CAPACITY_PER_S)
    axes.set_ylim(0, top)
    axes.set_xlim(-_BEFORE_S, _SHOWN_S)
    axes.set_xticks([0, 10, 20, 30, 40, 50, 60])
    axes.tick_params(labelsize=8, color=OTHERS)
    never = course.recovered_s is None
    verdict = "never comes back" if never else f"back after {metastable.recovery(course.recovered_s)}"
    if course.recovered_s == 0:
        verdict = "back at once"
    colour = BAD if course.recovered_s is None or course.recovered_s > _SHOWN_S else OURS if is_ours else INK
    axes.text(0.985, 0.95, verdict, transform=axes.transAxes, ha="right", va="top", fontsize=10.5,
              fontweight="bold", color=colour, bbox={"color": "white", "alpha": 0.8, "pad": 1.5}, zorder=5)  # fmt: skip
    bare(axes)


def draw_herds(found: Sequence[Herd], path: Path) -> None:
    """Draws when 1,000 clients retry, in 100 ms buckets: one strip for each kind of wait."""
    shown = [herd for herd in found if "Retry-After" not in herd.name]
    hinted = [herd for herd in found if "Retry-After" in herd.name]
    figure = plt.figure(figsize=(11, 6.4), layout="constrained")
    # subfigures() is typed as returning an array or a single figure.
    left, right = cast("tuple[SubFigure, SubFigure]", figure.subfigures(1, 2, width_ratios=(3, 2)))
    for side, herds, first_s, last_s in ((left, shown, 0.0, 3.2), (right, hinted, 9.5, 15.5)):
        strips = side.subplots(len(shown), 1)
        for axes in strips[len(herds) :]:
            axes.set_visible(False)
        for place, herd in enumerate(herds):
            _draw_herd(strips[place], herd, first_s, last_s)
            is_last = place + 1 == len(herds)
            strips[place].tick_params(labelbottom=is_last, bottom=is_last, labelsize=8)
            if is_last:
                strips[place].set_xlabel("seconds after the failure", fontsize=9)
    figure.suptitle("1,000 clients fail at once: how many retry in the busiest 100 ms?", x=0.01, ha="left",
                    fontsize=14, color=INK)  # fmt: skip
    save(figure, path)


def _draw_herd(axes: Axes, herd: Herd, first_s: float, last_s: float) -> None:
    buckets = round((last_s - first_s) / BUCKET_S)
    edges = [first_s + BUCKET_S * place for place in range(buckets + 1)]
    colour = OURS if herd.is_ours else OTHERS
    axes.hist([wait_s + 1e-9 for wait_s in herd.waits_s], edges, color=colour, rwidth=0.92)
    axes.set_ylim(0, 1100)
    axes.set_xlim(first_s, last_s)
    axes.set_yticks([])
    axes.text(0.99, 0.86, herd.name, transform=axes.transAxes, ha="right", va="top", fontsize=9.5,
              color=OURS if herd.is_ours else INK)  # fmt: skip
    axes.text(0.99, 0.50, f"{herd.worst:,}", transform=axes.transAxes, ha="right", va="top", fontsize=9.5,
              fontweight="bold", color=BAD if herd.worst >= 500 else INK)  # fmt: skip
    bare(axes, left=False)


def draw_false_opens(found: Sequence[Trips], path: Path) -> None:
    """Draws how often a breaker opens by chance, against the share of failing calls."""
    figure, axes = plt.subplots(figsize=(8, 4.4), layout="constrained")
    styles = {breakers.naive(n): (BAD, dash) for n, dash in zip(breakers.NAIVE_WINDOWS, ("-", "--", ":"), strict=True)}
    styles |= {breakers.ours(n): (OURS, dash) for n, dash in zip(breakers.CALLS_PER_S, (":", "--", "-"), strict=True)}
    for name, (colour, dash) in styles.items():
        points = [(each.failure_rate * 100, each.trips) for each in found if each.name == name]
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=dash, marker="so"[colour == BAD], markersize=4,
                  label=name, clip_on=False, zorder=3)  # fmt: skip
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, 10_000)
    axes.set_yticks([0, 1, 10, 100, 1000, 10_000], ["0", "1", "10", "100", "1,000", "10,000"])
    axes.set_xticks(range(5, 50, 5), [f"{rate} %" for rate in range(5, 50, 5)])
    axes.set_xlabel("calls that fail, independently of each other", fontsize=9)
    axes.set_title("A breaker that opens by chance: openings in 100,000 calls", loc="left", fontsize=12, color=INK)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    bare(axes)
    save(figure, path)


def bare(axes: Axes, *, left: bool = True) -> None:
    """Removes the frame except for the axes, which become grey."""
    for side in ("top", "right") if left else ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(OTHERS)


def save(figure: Figure, path: Path) -> None:
    """Saves as PNG."""
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
