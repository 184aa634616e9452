"""Pictures of the scenarios: success by client, an outage and a rate limit second by second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from benchmarks.scenarios.clients import GUARDED, SDK, STRAIGHT
from benchmarks.scenarios.measure import Measured, Row

_INK, _FAINT, _BAD = "#39424e", "#c9ced6", "#c8501e"
# Distinguishable by lightness too: grey, orange, dark green; blue for other gateways.
_COLOURS = {STRAIGHT: "#b0b7c3", SDK: "#e69f00", GUARDED: "#1f7a5c"}
_ANOTHER = "#4c8fd0"
_ALLOWED_PER_S = 40


def draw_success(rows: Sequence[Row], path: Path) -> None:
    """Draws bars: a group for each scenario, a bar for each client."""
    shown = [row for row in rows if row.measured]
    names = _clients(shown)
    if not shown:
        return
    step = 0.8 / len(names)
    figure, axes = plt.subplots(
        figsize=(10.5, 0.27 * (len(names) + 0.4) * len(shown) * 0.62 + 1.4), layout="constrained"
    )
    for place, name in enumerate(names):
        found = [(line, row.of(name)) for line, row in enumerate(shown)]
        bars = axes.barh(
            [line + (place - (len(names) - 1) / 2) * step for line, each in found if each is not None],
            [each.load.success_share * 100 for _, each in found if each is not None],
            step * 0.92, color=_colour(name), label=name,
        )  # fmt: skip
        if name == GUARDED:
            texts = [_figures(each) for _, each in found if each is not None]
            axes.bar_label(bars, texts, padding=5, fontsize=8.5, color=_INK)
    axes.set_yticks(range(len(shown)), [row.scenario.name for row in shown], fontsize=9.5)
    axes.set_ylim(len(shown) - 0.45, -0.55)
    axes.set_xlim(0, 158)
    axes.set_xticks(range(0, 101, 20), [f"{tick} %" for tick in range(0, 101, 20)], fontsize=9)
    axes.set_title("Calls that succeed\n", loc="left", fontsize=14, color=_INK)
    axes.legend(frameon=False, fontsize=10, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(names), borderpad=0)
    axes.text(158, -0.75, "of llm_guard: success · p99 · requests per call", ha="right", fontsize=8.5, color=_INK)
    _bare(axes, left=False)
    _save(figure, path)


def draw_outage(rows: Sequence[Row], path: Path) -> None:
    """Draws responses and requests a second, a strip for each client, with the outage's cost to the provider."""
    row = next((row for row in rows if row.scenario.key == "outage" and row.measured), None)
    if row is None or row.scenario.outage is None:
        return
    from_s, to_s = row.scenario.outage
    figure, grid = plt.subplots(
        len(row.measured), 1, figsize=(10.5, 2.1 * len(row.measured) + 1.2), sharex=True, sharey=True,
        layout="constrained", squeeze=False,
    )  # fmt: skip
    most = max(max(each.requests) for each in row.measured)
    for axes, each in zip(grid[:, 0], row.measured, strict=True):
        axes.axvspan(from_s, to_s, color=_BAD, alpha=0.13, linewidth=0)
        _draw_strip(axes, each, row.scenario.seconds)
        axes.set_ylim(0, most * 1.55)
        outage = each.outage
        if outage is None:
            continue
        told = f"{outage.requests_per_call:.2f} requests per call\nfails in {_duration(outage.median_failure_s)}"
        axes.text((from_s + to_s) / 2, most * 1.5, told, ha="center", va="top", fontsize=10.5, color=_INK,
                  fontweight="bold", linespacing=1.4)  # fmt: skip
        back = "never back" if outage.first_success_s is None else f"back after {_duration(outage.first_success_s)}"
        axes.text(to_s + 0.2, most * 1.5, back, va="top", fontsize=10.5, color=_INK)
    grid[0, 0].text((from_s + to_s) / 2, most * 1.6, "the provider is down", ha="center", fontsize=9.5, color=_BAD)
    grid[-1, 0].set_xlabel("seconds", fontsize=9.5)
    _legend(figure, "Eight seconds of outage, 50 calls a second")
    _save(figure, path)


def draw_limits(rows: Sequence[Row], path: Path) -> None:
    """Draws responses and requests a second under a rate limit, a strip for each client."""
    shown = [row for row in rows if row.scenario.key.startswith("limit") and row.measured]
    if not shown:
        return
    names = _clients(shown)
    figure, grid = plt.subplots(
        len(names), len(shown), figsize=(10.5, 2.0 * len(names) + 1.2), sharex=True, sharey=True,
        layout="constrained", squeeze=False,
    )  # fmt: skip
    seconds = max(len(each.requests) for row in shown for each in row.measured)
    most = max(max(each.requests) for row in shown for each in row.measured)
    for column, row in enumerate(shown):
        for axes, each in zip(grid[:, column], row.measured, strict=True):
            axes.axvspan(0, row.scenario.seconds, color=_FAINT, alpha=0.25, linewidth=0)
            _draw_strip(axes, each, seconds)
            axes.axhline(_ALLOWED_PER_S, color=_INK, linewidth=0.8, linestyle=(0, (1, 2)))
            axes.set_ylim(0, most * 1.35)
            told = f"{each.load.success_share:.0%} answered, {each.requests_per_call:.2f} requests per call"
            axes.text(seconds - 0.3, most * 1.3, told, ha="right", va="top", fontsize=10.5, fontweight="bold",
                      color=_INK)  # fmt: skip
            axes.set_ylabel(each.client if column == 0 else "")
        grid[0, column].set_title("tells when to come back" if row.scenario.key == "limit" else "does not tell",
                                  fontsize=10.5, color=_INK)  # fmt: skip
        grid[-1, column].set_xlabel("seconds; calls come in the shaded twenty", fontsize=9.5)
    _legend(figure, "A provider that serves 40 calls a second is offered 60")
    _save(figure, path)


def _draw_strip(axes: Axes, each: Measured, seconds: float) -> None:
    bins = range(len(each.successes) + 1)
    axes.stairs(each.successes, bins, fill=True, color=_colour(each.client), zorder=2)
    axes.stairs(each.requests, range(len(each.requests) + 1), color=_INK, linewidth=1.3, zorder=3)
    axes.set_xlim(0, seconds)
    axes.set_xticks(range(0, int(seconds) + 1, 5))
    axes.set_ylabel(each.client, rotation=90, fontsize=10.5, color=_INK)
    axes.tick_params(labelsize=8.5)
    _bare(axes)


def _legend(figure: Figure, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, color=_INK)
    handles = [
        Rectangle((0, 0), 1, 1, color=_COLOURS[GUARDED]),
        Line2D([0], [0], color=_INK, linewidth=1.3),
    ]
    figure.legend(handles, ["answered well, a second (filled)", "requests to the provider, a second (line)"],
                  loc="outside lower center", ncols=2, frameon=False, fontsize=9.5)  # fmt: skip


def _figures(each: Measured) -> str:
    load = each.load
    if load.ok:
        return f"{load.success_share:.2%} · {load.latency.p99:.2f} s · {each.requests_per_call:.2f}"
    return f"0 % · fails in {_duration(load.failed_latency.p50)} · {each.requests_per_call:.3f} requests per call"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.95 else f"{seconds * 1e3:.0f} ms"


def _clients(rows: Sequence[Row]) -> list[str]:
    """Names in the order of the row with most clients, so that a client missing in the first row is not last."""
    longest: tuple[Measured, ...] = max((row.measured for row in rows), key=len, default=())
    return [each.client for each in longest]


def _colour(client: str) -> str:
    return _COLOURS.get(client, _ANOTHER)


def _bare(axes: Axes, *, left: bool = True) -> None:
    for side in ("top", "right") if left else ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_FAINT)
    axes.tick_params(color=_FAINT, length=0 if not left else 3)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110)
    plt.close(figure)
