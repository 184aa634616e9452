"""Picture of the soak: the gateway's memory and the open streams, second by second."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.soak import Soak, second_half

_INK, _FAINT, _GREEN, _BLUE = "#39424e", "#c9ced6", "#1f7a5c", "#4c8fd0"


def draw_soak(soak: Soak, path: Path) -> None:
    """Draws memory with the slope of its second half above, and the gateway's streams and descriptors below."""
    figure, (memory, held) = plt.subplots(2, 1, figsize=(10.5, 5.6), sharex=True, layout="constrained",
                                          height_ratios=(3, 2))  # fmt: skip
    at_s = [sample.at_s for sample in soak.samples]
    memory.plot(at_s, [sample.rss_bytes / 1e6 for sample in soak.samples], color=_GREEN, linewidth=1.6)
    _draw_slope(memory, soak)
    memory.set_ylim(0, max(sample.rss_bytes for sample in soak.samples) / 1e6 * 1.25)
    memory.set_ylabel("RSS, MB", fontsize=10.5, color=_INK)
    title = f"{soak.streams} streams at once, one in ten with a fault"
    memory.set_title(title, loc="left", fontsize=14, color=_INK)
    held.plot(at_s, [sample.open for sample in soak.samples], color=_INK, linewidth=1.3, label="streams of the clients")
    held.plot(at_s, [sample.fds for sample in soak.samples], color=_BLUE, linewidth=1.3, label="file descriptors")
    held.set_ylim(0)
    held.set_xlim(0)
    held.set_xlabel("seconds", fontsize=9.5)
    held.legend(frameon=False, fontsize=9.5, loc="lower right", ncols=2)
    for axes in (memory, held):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(_FAINT)
        axes.tick_params(color=_FAINT, labelsize=8.5)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_slope(axes: Axes, soak: Soak) -> None:
    late = second_half(soak.samples)
    middle = sorted(each.rss_bytes for each in late)[len(late) // 2] / 1e6
    from_s, to_s = late[0].at_s, late[-1].at_s
    rise = soak.slope_mb_per_hour / 3600 * (to_s - from_s)
    axes.axvspan(from_s, to_s, color=_FAINT, alpha=0.25, linewidth=0)
    axes.plot([from_s, to_s], [middle - rise / 2, middle + rise / 2], color=_INK, linewidth=1.2, linestyle=(0, (4, 3)))
    told = f"{soak.slope_mb_per_hour:+.1f} MB an hour"
    axes.text((from_s + to_s) / 2, middle * 1.1, told, ha="center", fontsize=10.5, color=_INK, fontweight="bold")
