"""Writes the comparison's results: compare.json, compare.md and compare.png."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.compare import result
from benchmarks.compare.picture import draw
from benchmarks.compare.result import Compared, Promise, Spread, cpu_s_per_chunk
from benchmarks.compare.ways import DIRECT
from benchmarks.provenance import Machine, measured_line

_INTRO = """\
# What a call costs, and who else costs what

Everybody in one run and in turns, round by round, who begins changing each time; each proxy has a processor to itself,
the load and the provider share another. Medians over rounds, in brackets the lowest and the highest. A request has
1.5 kB, an answer 0.7 kB of JSON; connections are kept. llm_guard runs with everything on: retries and their budget,
breakers, limits, pacing, queues, timeouts, hedging, fallbacks, metrics, and a log line for each call. An empty place
was not measured.

![calls a second, added latency, CPU per chunk and memory](compare.png)
"""
_EXPLAINED = """\
- *Added*: less the same without a proxy, in the same round.
- *At 1,000 calls a second*: calls come when they come (Poisson, the same instants for everybody) over 16 connections; a
  latency begins when a call was due, so that one who is late is not flattered.
- *CPU* is that of the proxy's process, by the scheduler's account; *memory* its resident set, once it has served its
  first calls, and with so many streams open that hardly speak.

Others join by their address, Envoy by `--envoy`: `benchmarks/peers/README.md`."""


def write(compared: Compared, folder: Path, machine: Machine) -> None:
    """Writes all three files into `folder`."""
    folder.mkdir(exist_ok=True)
    content = {"machine": dict(machine), "compare": compared.as_dict()}
    (folder / "compare.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "compare.md").write_text(page(compared, machine))
    draw(compared, folder / "compare.png")


def page(compared: Compared, machine: Machine) -> str:
    """Content of compare.md."""
    lines = [_INTRO, *_promises(compared), "", *_table(compared), "", _EXPLAINED, ""]
    if compared.errors:
        lines += ["What failed, and is no figure therefore:", "", *(f"- {error}" for error in compared.errors), ""]
    told = [f"{name} {number}" for name, number in compared.versions.items()]
    lines.append(f"Compared: {'; '.join(told)}.")
    return "\n".join([*lines, "", measured_line(machine)]) + "\n"


def _promises(compared: Compared) -> list[str]:
    lines = [f"| promised of {compared.judged} | | measured | |", "|---|---:|---:|---|"]
    return lines + [_promise_line(promise) for promise in compared.promises]


def _promise_line(promise: Promise) -> str:
    limit = f"{'at least' if promise.is_least else 'at most' if promise.is_within else 'less than'} {promise.limit:g}"
    found = "" if promise.found is None else f"**{promise.found:.3g}**"
    return f"| {promise.text} | {limit} | {found} | {promise.verdict} |"


def _table(compared: Compared) -> list[str]:
    lines = [f"| | {' | '.join(compared.ways)} |", f"|---|{'---:|' * len(compared.ways)}"]

    def add(title: str, cell: Callable[[str], str]) -> None:
        lines.append(f"| {title} | {' | '.join(cell(way) for way in compared.ways)} |")

    def plain(figure: str, unit: str, scale: float, digits: int) -> Callable[[str], str]:
        return lambda way: _cell(compared.spread(figure, way), unit, scale, digits)

    def added(figure: str) -> Callable[[str], str]:
        return lambda way: (
            _cell(compared.spread(figure, way), " ms", 1e3, 3)
            if way == DIRECT
            else _cell(compared.added(figure, way), " ms", 1e3, 3, "+")
        )

    add("calls a second, 64 connections", plain(result.CALLS_PER_S, "", 1, 0))
    add("CPU per call", plain(result.CPU_S_PER_CALL, " µs", 1e6, 1))
    add("added at one connection, p50", added(result.ALONE_P50_S))
    add("p99", added(result.ALONE_P99_S))
    add("added at 1,000 calls a second, p50", added(result.BUSY_P50_S))
    add("p99", added(result.BUSY_P99_S))
    for streams, pace_s in compared.sizes:
        title = f"CPU per chunk, {streams} streams, one every {pace_s * 1e3:.0f} ms"
        add(title, plain(cpu_s_per_chunk(streams), " µs", 1e6, 1))
    add("memory at rest", plain(result.REST_BYTES, " MB", 1e-6, 0))
    add(f"memory per idle stream, at {compared.idle_streams}", plain(result.BYTES_PER_STREAM, " kB", 1e-3, 1))
    return lines


def _cell(spread: Spread | None, unit: str, scale: float, digits: int, sign: str = "") -> str:
    if spread is None:
        return ""
    median, low, high = (f"{value * scale:{sign}.{digits}f}" for value in (spread.median, spread.low, spread.high))
    return f"{median}{unit}" if low == high else f"{median}{unit} ({low}, {high})"
