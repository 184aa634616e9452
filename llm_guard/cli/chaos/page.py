"""The results of `llm-guard chaos` as a page without scripts and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from llm_guard.cli.chaos.scenes import ChaosResult

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2rem 0 .5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid #8884; vertical-align: top; }
td.number { text-align: right; white-space: nowrap; }
.bar { position: relative; width: 11rem; height: 1.3rem; background: #8883; }
.bar div { height: 100%; }
.bar span { position: absolute; left: .4rem; top: 0; font-size: .85rem; }
.bar i { position: absolute; top: -2px; bottom: -2px; width: 2px; background: currentColor; }
.good { background: #2e9e5b88; } .poor { background: #d9a01488; } .bad { background: #d0453c88; }
small { opacity: .75; }
"""


def page_of(name: str, results: Sequence[tuple[ChaosResult, Sequence[str]]], left_out: str) -> str:
    """Returns the page; `results` are in the order in which they were played, each with its advice."""
    by_upstream: dict[str, list[tuple[ChaosResult, Sequence[str]]]] = {}
    for result, advice in results:
        by_upstream.setdefault(result.upstream, []).append((result, advice))
    sections = "".join(_section(upstream, rows) for upstream, rows in by_upstream.items())
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>chaos: {escape(name)}</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
        f"<h1>What outages do to {escape(name)}</h1>"
        f"<p>Each trouble at each upstream, with local stand-ins. Bars: calls that the gateway serves; the "
        f"line: calls that clients get through without it. Left out: {escape(left_out)}.</p>{sections}</html>\n"
    )


def _section(upstream: str, rows: Sequence[tuple[ChaosResult, Sequence[str]]]) -> str:
    names = (
        "the upstream",
        "model",
        "served",
        "p50",
        "p99",
        "requests per call",
        "tokens wasted",
        "what clients saw, and what helps",
    )
    head = "".join(["<tr>", *(f"<th>{name}" for name in names)])
    body = "".join(_row(result, advice) for result, advice in rows)
    return f"<h2>{escape(upstream)}</h2><div class=wide><table>{head}{body}</table></div>"


def _row(result: ChaosResult, advice: Sequence[str]) -> str:
    bar = (
        f"<div class=bar><div class={result.grade} style='width:{result.served:.1%}'></div>"
        f"<i style='left:{result.direct:.1%}'></i><span>{result.served:.1%}, without {result.direct:.1%}</span></div>"
    )
    saw = [f"{escape(error)}: {count}" for error, count in result.errors.items()]
    notes = "<br>".join([*saw, *(f"<b>{escape(line)}</b>" for line in advice)])
    times = "".join(f"<td class=number>{seconds:.2f} s" for seconds in (result.p50_s, result.p99_s))
    return (
        f"<tr><td>{escape(result.trouble)}<td>{escape(result.model)}<td>{bar}<small>{_by(result.served_by)}</small>{times}"
        f"<td class=number>{result.requests_per_call:.2f}<td class=number>{result.wasted:.1%}<td>{notes}"
    )


def _by(served_by: Mapping[str, int]) -> str:
    return escape(", ".join(f"{label} {count}" for label, count in served_by.items()))
