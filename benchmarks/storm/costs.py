"""Pictures of the costs and benefits of retries and hedges, and of the distribution of calls by balancing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.storm.frontier import Point
from benchmarks.storm.pictures import BAD, INK, OTHERS, OURS, bare, save
from benchmarks.storm.spread import Spread

_STYLES = {
    "no budget": (BAD, "-", "o"),
    "fixed 20 %": ("#4477aa", "--", "D"),
    "AWS quota": ("#aa7744", "-.", "^"),
    "gRPC throttle": ("#7c8594", ":", "v"),
    "adaptive": (OURS, "-", "s"),
}
_OURS = "adaptive"
_HOWS = {"weighted": (OTHERS, "by weight"), "least_loaded": ("#4477aa", "least loaded"), "latency": (OURS, "latency")}


def draw_frontier(points: Sequence[Point], path: Path) -> None:
    """Draws success and load against the share of failing attempts for each budget, and one against the other."""
    figure, (success, load, frontier) = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
    for scheme, (colour, dash, marker) in _STYLES.items():
        found = sorted((point for point in points if point.scheme == scheme), key=lambda each: each.failure_rate)
        rates = [each.failure_rate * 100 for each in found]
        label = "llm_guard, adaptive" if scheme == _OURS else scheme
        width, order = (2.6, 4) if scheme == _OURS else (1.3, 3)
        answered, requests = [each.success * 100 for each in found], [each.requests_per_call for each in found]
        for axes, along, values in (
            (success, rates, answered),
            (load, rates, requests),
            (frontier, requests, answered),
        ):
            axes.plot(along, values, color=colour, linestyle=dash, marker=marker, markersize=4, linewidth=width,
                      zorder=order, label=label)  # fmt: skip
    success.set_title("Calls that succeed", loc="left", fontsize=11, color=INK)
    for axes in (success, frontier):
        axes.set_yticks(range(0, 101, 20), [f"{tick} %" for tick in range(0, 101, 20)])
    load.set_title("Requests that the provider gets for each call", loc="left", fontsize=11, color=INK)
    load.set_ylim(0.9, 4.1)
    load.set_yticks([1, 2, 3, 4], ["1", "2", "3", "4"])
    for axes in (success, load):
        axes.set_xticks(range(0, 101, 20), [f"{tick} %" for tick in range(0, 101, 20)])
        axes.set_xlabel("attempts that fail", fontsize=9)
        axes.grid(axis="y", color=OTHERS, alpha=0.3, linewidth=0.6)
        bare(axes)
    _draw_against_load(frontier, [point for point in points if point.scheme == _OURS])
    load.legend(frameon=False, fontsize=9, loc="upper left")
    figure.suptitle("Retry budgets: cure a brownout, do not multiply an outage", x=0.01, ha="left", fontsize=14,
                    color=INK)  # fmt: skip
    save(figure, path)


def _draw_against_load(axes: Axes, ours: Sequence[Point]) -> None:
    axes.set_title("Success against load", loc="left", fontsize=11, color=INK)
    axes.set_xlim(0.9, 4.1)
    axes.set_xticks([1, 2, 3, 4], ["1", "2", "3", "4"])
    axes.set_xlabel("requests for each call; at our marks: attempts that fail", fontsize=9)
    axes.grid(axis="y", color=OTHERS, alpha=0.3, linewidth=0.6)
    for each in ours:
        if round(each.failure_rate * 100) in (40, 50, 60, 70):
            axes.annotate(f"{each.failure_rate:.0%}", (each.requests_per_call, each.success * 100), (6, -3),
                          textcoords="offset points", fontsize=8, color=OURS)  # fmt: skip
    bare(axes)


def draw_spread(found: Spread, path: Path) -> None:
    """Draws slow tails with and without hedging, and an odd replica's share of the calls."""
    figure, (tails, shares) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    _draw_tails(tails, found)
    _draw_shares(shares, found)
    save(figure, path)


def _draw_tails(axes: Axes, found: Spread) -> None:
    places = range(len(found.hedged))
    axes.barh([p - 0.19 for p in places], [each.alone_p99_s for each in found.hedged], 0.36, color=OTHERS,
              label="without hedging")  # fmt: skip
    bars = axes.barh([p + 0.19 for p in places], [each.p99_s for each in found.hedged], 0.36, color=OURS,
                     label="with hedging")  # fmt: skip
    texts = [f"{each.p99_s:.2g} s  ·  +{each.extra_load:.1%} requests".replace("%", " %") for each in found.hedged]
    axes.bar_label(bars, texts, padding=4, fontsize=8)
    axes.set_yticks(list(places), [each.name for each in found.hedged], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * max(each.alone_p99_s for each in found.hedged))
    axes.set_title("99th percentile of a call, seconds", loc="left", fontsize=11, color=INK)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    bare(axes, left=False)


def _draw_shares(axes: Axes, found: Spread) -> None:
    names = list(dict.fromkeys(each.name for each in found.balanced))
    for place, (how, (colour, label)) in enumerate(_HOWS.items()):
        shares = {each.name: each.share * 100 for each in found.balanced if each.how == how}
        bars = axes.barh([p + 0.27 * (place - 1) for p in range(len(names))], [shares[name] for name in names], 0.25,
                         color=colour, label=label)  # fmt: skip
        axes.bar_label(bars, [f"{shares[name]:.1f} %" for name in names], padding=4, fontsize=8)
    axes.axvline(10, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_title("One replica of ten is odd: its share of the calls", loc="left", fontsize=11, color=INK)
    axes.set_xlabel("per cent; the dotted line is a fair share", fontsize=9)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    bare(axes, left=False)
