"""The results of `llm-guard bench` as a page without scripts and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from llm_guard.mock.load import LoadRun
from llm_guard.mock.load_result import FinishedCall

_WIDTH, _HEIGHT, _LEFT, _BELOW = 960, 260, 56, 24
_MOST_DOTS = 4000
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { max-width: 66rem; margin: 2rem auto; padding: 0 1rem; }
h2 { overflow-wrap: anywhere; }
svg { width: 100%; height: auto; }
svg text { font-size: 12px; fill: currentColor; }
line { stroke: #8886; }
circle { fill: #2e9e5b; fill-opacity: .6; } circle.failed { fill: #d0453c; fill-opacity: .9; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884; vertical-align: top; }
"""


class Measured(NamedTuple):
    """One side of the page."""

    name: str
    """URL, or the file of an earlier run."""
    rows: Mapping[str, str]
    """What the table says about it."""
    run: LoadRun | None
    """None for an earlier run: its calls are not known."""


def page_of(sides: Sequence[Measured]) -> str:
    """Returns the page: a table, and a chart for each run, all with the same axes."""
    runs = [side.run for side in sides if side.run is not None]
    longest_s = max((call.latency_s for run in runs for call in run.ended), default=0.0) or 1.0
    last_s = max((call.due_at - run.started_at for run in runs for call in run.ended), default=0.0) or 1.0
    charts = "".join(
        f"<h2>{escape(side.name)}</h2>{_chart(side.run, longest_s, last_s)}" for side in sides if side.run is not None
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>llm-guard bench</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style><h1>Calls at a fixed rate</h1>"
        f"{_table(sides)}<p>A dot for each call: when it was due, and how long it took. Red: it failed.</p>{charts}"
        "</html>\n"
    )


def _table(sides: Sequence[Measured]) -> str:
    head = "".join(f"<th>{escape(side.name)}" for side in sides)
    names = dict.fromkeys(name for side in sides for name in side.rows)
    body = "".join(
        "".join([f"<tr><td>{escape(name)}", *(f"<td>{escape(side.rows.get(name, ''))}" for side in sides)])
        for name in names
    )
    return f"<table><tr><th>{head}{body}</table>"


def _chart(run: LoadRun, longest_s: float, last_s: float) -> str:
    stride = -(-len(run.ended) // _MOST_DOTS) or 1
    shown = [call for index, call in enumerate(run.ended) if index % stride == 0 or call.outcome != "ok"]
    dots = "".join(_dot(call, run.started_at, longest_s, last_s) for call in shown)
    marks = "".join(_mark(share, longest_s) for share in (0.0, 0.5, 1.0))
    ends = f"<text x={_LEFT} y={_HEIGHT + 18}>0 s</text><text x={_WIDTH - 50} y={_HEIGHT + 18}>{last_s:.1f} s</text>"
    box = f"0 0 {_WIDTH} {_HEIGHT + _BELOW}"
    return f"<svg viewBox='{box}' role=img aria-label='latency of each call'>{marks}{dots}{ends}</svg>"


def _mark(share: float, longest_s: float) -> str:
    y = _y(share)
    return (
        f"<line x1={_LEFT} x2={_WIDTH} y1={y:.1f} y2={y:.1f} />"
        f"<text x=0 y={y + 4:.1f}>{share * longest_s * 1000:.0f} ms</text>"
    )


def _dot(call: FinishedCall, started_at: float, longest_s: float, last_s: float) -> str:
    x = _LEFT + 4 + (call.due_at - started_at) / last_s * (_WIDTH - _LEFT - 8)
    kind = "ok" if call.outcome == "ok" else "failed"
    place = f"cx={x:.1f} cy={_y(call.latency_s / longest_s):.1f}"
    return f"<circle class={kind} {place} r=2.5><title>{escape(call.outcome)}</title></circle>"


def _y(share: float) -> float:
    return 10 + (1 - share) * (_HEIGHT - 20)
