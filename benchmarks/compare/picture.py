"""The comparison as a picture: a panel for each figure, a bar with its value for each target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.compare import result
from benchmarks.compare.result import Compared, Spread, cpu_s_per_chunk
from benchmarks.compare.ways import COMPILED, DIRECT, ENVOY, GUARDED, PLAIN

_INK, _FAINT, _GREY = "#39424e", "#c9ced6", "#7b8594"
# The same colours as in the scenarios' pictures: the gateway is dark green.
_COLOURS = {GUARDED: "#1f7a5c", COMPILED: "#0f5a41", PLAIN: "#e69f00", ENVOY: "#4c8fd0"}
_ANOTHER = "#8f7fc4"
_BAR = 0.62
_ROOM = 1.5
"""Width of a panel relative to its longest bar: the values are written beside the bars."""
_LETTER = 0.03
"""Width of a letter relative to the panel's."""


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    under: str
    scale: float
    """Factor from the base unit to the panel's."""
    digits: int
    read: Callable[[str], Spread | None]
    read_p99: Callable[[str], Spread | None] | None = None
    promised: float | None = None
    """Promised value in the base unit: a mark on the gateway's row."""
    is_least: bool = False

    def tell(self, value: float) -> str:
        """The value in the panel's unit."""
        return f"{value * self.scale:,.{self.digits}f}"


def draw(compared: Compared, path: Path) -> None:
    """Draws two rows of panels, with the proxies in the same order in each."""
    proxies = [way for way in compared.ways if way != DIRECT]
    height = 2.4 + 0.9 * len(proxies)
    figure, grid = plt.subplots(2, 3, figsize=(13, height), layout="constrained", sharey=True)
    for axes, panel in zip(grid.flat, _panels(compared), strict=True):
        _draw_panel(axes, panel, proxies)
    figure.get_layout_engine().set(hspace=0.1, wspace=0.04)  # type: ignore[union-attr, call-arg]
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panels(compared: Compared) -> Sequence[_Panel]:
    def added(figure: str) -> Callable[[str], Spread | None]:
        return lambda way: compared.added(figure, way)

    def plain(figure: str) -> Callable[[str], Spread | None]:
        return lambda way: compared.spread(figure, way)

    straight = compared.spread(result.CALLS_PER_S, DIRECT)
    without = f"; {straight.median:,.0f} without a proxy" if straight else ""
    return [
        _Panel(
            "Calls a second", f"64 connections, one processor{without}", 1, 0, plain(result.CALLS_PER_S),
            promised=_least_calls(compared), is_least=True,
        ),
        _Panel(
            "Added latency, ms", "one connection, p50", 1e3, 2, added(result.ALONE_P50_S), added(result.ALONE_P99_S),
            0.0002,
        ),
        _Panel(
            "Added latency under load, ms", "1,000 calls a second, p50", 1e3, 2, added(result.BUSY_P50_S),
            added(result.BUSY_P99_S),
        ),
        *(_chunks(compared, *size) for size in (compared.sizes[0], compared.sizes[-1])),
        _Panel(
            "Memory per idle stream, kB", f"{compared.idle_streams:,} streams at once", 1e-3, 1,
            plain(result.BYTES_PER_STREAM), promised=40_000,
        ),
    ]  # fmt: skip


def _chunks(compared: Compared, streams: int, pace_s: float) -> _Panel:
    figure = cpu_s_per_chunk(streams)
    return _Panel(
        "CPU per streamed chunk, µs", f"{streams:,} streams, {streams / pace_s:,.0f} chunks a second", 1e6, 1,
        lambda way: compared.spread(figure, way), promised=_share(compared, figure, ENVOY, 1.2),
    )  # fmt: skip


def _least_calls(compared: Compared) -> float | None:
    """The greater one of the two promises."""
    limits = (_share(compared, result.CALLS_PER_S, ENVOY, 0.6), _share(compared, result.CALLS_PER_S, PLAIN, 2.0))
    return max((limit for limit in limits if limit is not None), default=None)


def _share(compared: Compared, figure: str, other: str, share: float) -> float | None:
    found = compared.spread(figure, other)
    return None if found is None else found.median * share


def _draw_panel(axes: Axes, panel: _Panel, proxies: Sequence[str]) -> None:
    found = [(way, panel.read(way)) for way in proxies]
    longest = max([each.median for _, each in found if each is not None] + [panel.promised or 0.0])
    width = longest * panel.scale * _ROOM or 1.0
    for row, (way, spread) in enumerate(found):
        _draw_way(axes, panel, row, way, spread, width)
    axes.set_xlim(0, width)
    axes.set_ylim(len(proxies) - 0.4, -0.6)
    axes.set_yticks(range(len(proxies)), proxies, fontsize=10.5, color=_INK)
    for name in axes.get_yticklabels():
        name.set_fontweight("bold" if name.get_text() in (GUARDED, COMPILED) else "normal")
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color(_FAINT)
    axes.set_title(f"{panel.title}\n\n", loc="left", fontsize=12.5, color=_INK)
    under = [panel.under]
    if panel.promised is not None:
        under.append(f"mark: promised, at {'least' if panel.is_least else 'most'} {panel.tell(panel.promised)}")
    for line, text in enumerate(under):
        axes.annotate(text, (0, 1), (0, 19 - 14 * line), xycoords="axes fraction", textcoords="offset points",
                      fontsize=9, color=_GREY)  # fmt: skip


def _draw_way(axes: Axes, panel: _Panel, row: int, way: str, found: Spread | None, width: float) -> None:
    is_ours = way in (GUARDED, COMPILED)
    end = 0.0 if found is None else found.median * panel.scale
    axes.barh(row, end, _BAR, color=_COLOURS.get(way, _ANOTHER), zorder=2)
    p99 = panel.read_p99(way) if panel.read_p99 else None
    told = "not measured" if found is None else panel.tell(found.median)
    told += f"  (p99 {panel.tell(p99.median)})" if p99 else ""
    if is_ours and panel.promised is not None:
        mark = panel.promised * panel.scale
        axes.plot([mark, mark], [row - 0.45, row + 0.45], color=_INK, linewidth=1.8, solid_capstyle="butt", zorder=4)
        if 0 <= mark - end < width * _LETTER * (len(told) + 1):
            end = mark  # the mark would cross the text
    axes.annotate(told, (end, row), (5, 0), textcoords="offset points", va="center", fontsize=10,
                  color=_GREY if found is None else _INK, fontweight="bold" if is_ours else "normal")  # fmt: skip
