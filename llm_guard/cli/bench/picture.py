"""The results of `llm-guard bench` as a PNG picture: a dot for each call. Needs matplotlib (extra `plots`)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from llm_guard.cli.bench.page import Measured
from llm_guard.mock.load import LoadRun
from llm_guard.mock.load_result import FinishedCall

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GOOD, _FAILED = "#2e9e5b", "#d0453c"
_WIDTH_IN, _HEIGHT_IN, _DPI = 10.0, 3.2, 110
MISSING = "needs matplotlib, which is not installed: pip install 'llm-guard-proxy[plots]'; --html needs nothing"


def can_draw() -> bool:
    """Returns whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(sides: Sequence[Measured], path: Path) -> None:
    """Writes the picture, with a chart for each run, all with the same axes. Raises OSError."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # optional, and takes a second to import

    runs = [(side.name, side.run) for side in sides if side.run is not None]
    size = (_WIDTH_IN, _HEIGHT_IN * len(runs))
    figure = Figure(figsize=size, layout="constrained")
    charts = figure.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False)
    for (name, run), axes in zip(runs, charts[:, 0], strict=True):
        _draw_run(name, run, axes)
    charts[-1, 0].set_xlabel("seconds from the start at which the call was due")
    figure.savefig(path, format="png", dpi=_DPI)


def _draw_run(name: str, run: LoadRun, axes: Axes) -> None:
    axes.set_title(name, loc="left", parse_math=False)
    axes.set_ylabel("latency, seconds")
    axes.grid(visible=True, alpha=0.3)
    for label, color, calls in (
        ("succeeded", _GOOD, [call for call in run.ended if call.outcome == "ok"]),
        ("failed", _FAILED, [call for call in run.ended if call.outcome != "ok"]),
    ):
        _draw_calls(calls, run.started_at, axes, color, f"{label}: {len(calls)}")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", fontsize="small")


def _draw_calls(calls: Sequence[FinishedCall], started_at: float, axes: Axes, color: str, label: str) -> None:
    due_s = [call.due_at - started_at for call in calls]
    axes.scatter(due_s, [call.latency_s for call in calls], s=8, color=color, alpha=0.6, linewidths=0, label=label)
