"""Results as JSON, as a page and as a picture, in `benchmarks/results/`."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import matplotlib as mpl

from benchmarks import classification
from benchmarks.cost import Cost
from benchmarks.survival import Promise, Row

mpl.use("Agg")
from matplotlib import pyplot as plt

RESULTS = Path(__file__).parent / "results"
_DIRECT, _GUARDED = "#b0b7c3", "#1f7a5c"


def machine() -> dict[str, str | int | None]:
    """What the figures were measured on."""
    return {"python": platform.python_version(), "system": platform.machine(), "processors": os.cpu_count()}


def write_survival(rows: list[Row]) -> None:
    """survival.json, survival.md, survival.png."""
    _write_json("survival", {"machine": machine(), "rows": [row.as_dict() for row in rows]})
    lines = [
        "# What clients get from a misbehaving provider",
        "",
        "100 calls a second for 30 s each; default retries (3 attempts, budget 20 %), one deployment but where a",
        "fallback is named. *Promised* is what the row has to hold; `make bench` measures it again.",
        "",
        "![success, directly and through the gateway](survival.png)",
        "",
        "| trouble | directly | through llm_guard | p50 | p99 | requests per call | failing takes | promised | |",
        "|---|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    lines += [_survival_line(row) for row in rows]
    lines += ["", _machine_line()]
    (RESULTS / "survival.md").write_text("\n".join(lines) + "\n")
    _draw_survival(rows)


def write_cost(cost: Cost) -> None:
    """cost.json and cost.md."""
    _write_json("cost", {"machine": machine(), "cost": cost.as_dict()})
    idle_kb = (cost.rss_during_bytes - cost.rss_before_bytes) / cost.streams / 1000
    page = f"""# What the gateway costs when nothing is wrong

Gateway on a processor of its own; the load and the provider share another. Both ways in turns, in one run.

| | provider alone | through llm_guard | |
|---|---:|---:|---|
| latency at one connection, p50 | {cost.direct_p50_s * 1e3:.2f} ms | {cost.guarded_p50_s * 1e3:.2f} ms | \
**+{cost.added_p50_s * 1e3:.2f} ms** (p99 +{cost.added_p99_s * 1e3:.2f} ms) |
| calls a second, 64 connections | {cost.direct_per_s:.0f} | {cost.guarded_per_s:.0f} | \
{cost.cpu_s_per_call * 1e6:.0f} µs of CPU per call |
| {cost.streams} streams at once | | {cost.streams_ok} whole, first token p99 {cost.streams_first_token_p99_s:.2f} s | \
{idle_kb:.0f} kB per stream, {cost.cpu_s_per_chunk * 1e6:.0f} µs of CPU per chunk |

{_machine_line()}
"""
    (RESULTS / "cost.md").write_text(page)


def write_classification(scores: list[classification.Score], cost: classification.Cost) -> None:
    """classification.md."""
    RESULTS.mkdir(exist_ok=True)
    names = list(classification.PROMISED)
    head = "| " + " | ".join(["", "cases", *(name.replace("_", " ") for name in names)]) + " |"
    rule = "|---|" + "---:|" * (len(names) + 1)
    lines = ["# How often the classifier is right", "", "## Held out", "", head, rule]
    for each in classification.HELD_OUT:
        shares = " | ".join(f"{each.shares[name]:.1%}" for name in names)
        lines.append(f"| {each.name} | {each.cases} | {shares} |")
    lines += [""] + [f"- **{each.name}**: {each.how}" for each in classification.HELD_OUT]
    lines += ["", "## Visible", "", "These have been learned from: they show that nothing broke, not how good it is."]
    lines += ["", head, rule]
    for score in scores:
        shares = " | ".join(f"{score.share(name):.1%}" for name in names)
        lines.append(f"| {score.name} | {score.cases} | {shares} |")
    lines.append("| promised | | " + " | ".join(f"{share:.0%}" for share in classification.PROMISED.values()) + " |")
    for score in scores:
        lines += _providers_of(score, names, head, rule) + _confusion_of(score)
    lines += _classifying_cost(cost)
    (RESULTS / "classification.md").write_text("\n".join(lines) + "\n")


def _providers_of(score: classification.Score, names: list[str], head: str, rule: str) -> list[str]:
    lines = ["", f"### {score.name}, by provider", "", head, rule]
    for provider, right in sorted(score.by_provider.items()):
        shares = " | ".join(f"{right[name] / right['cases']:.0%}" for name in names)
        lines.append(f"| {provider} | {right['cases']} | {shares} |")
    return lines


def _confusion_of(score: classification.Score) -> list[str]:
    lines = ["", f"### {score.name}, what was taken for what", "", "| it is | cases | right | taken for |"]
    lines.append("|---|---:|---:|---|")
    for category, found in sorted(score.confusion.items()):
        others = ", ".join(f"{other} {count}" for other, count in found.most_common() if other != category)
        lines.append(f"| {category} | {found.total()} | {found[category]} | {others or '-'} |")
    return lines


def _classifying_cost(cost: classification.Cost) -> list[str]:
    lines = ["", "## Cost", ""]
    lines.append(f"A typical body: {cost.median_s * 1e6:.0f} µs (p95 {cost.p95_s * 1e6:.0f} µs), promised < 50 µs.")
    lines += ["", "200 kB of hostile text, promised < 10 ms:", "", "| text | ms |", "|---|---:|"]
    lines += [f"| {name} | {seconds * 1e3:.2f} |" for name, seconds in cost.hostile.items()]
    return [*lines, "", _machine_line()]


def _write_json(name: str, content: object) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def _survival_line(row: Row) -> str:
    guarded = row.guarded
    failing = f"{guarded.failed_latency.p50 * 1e3:.1f} ms" if guarded.failed_latency.count else "-"
    p50, p99 = (f"{value:.3f} s" if guarded.ok else "-" for value in (guarded.latency.p50, guarded.latency.p99))
    return (
        f"| {row.name} | {row.direct.success_share:.1%} | **{guarded.success_share:.2%}** | {p50} | {p99} "
        f"| {row.requests_per_call:.3f} | {failing} | {_promised(row.promise)} "
        f"| {'; '.join(row.broken) or 'holds'} |"
    )


def _promised(promise: Promise) -> str:
    parts = []
    if promise.success is not None:
        parts.append(f"≥ {promise.success:.1%}")
    if promise.requests_per_call is not None:
        parts.append(f"≤ {promise.requests_per_call:g} requests")
    if promise.p99_s is not None:
        parts.append(f"p99 ≤ {promise.p99_s:g} s")
    if promise.median_failure_s is not None:
        parts.append(f"fails in {promise.median_failure_s * 1e3:g} ms")
    return ", ".join(parts)


def _machine_line() -> str:
    on = machine()
    return f"Measured on {on['processors']} shared processors ({on['system']}), Python {on['python']}."


def _draw_survival(rows: list[Row]) -> None:
    figure, axes = plt.subplots(figsize=(9, 0.62 * len(rows) + 1.2), layout="constrained")
    places = range(len(rows))
    axes.barh(
        [p - 0.19 for p in places], [r.direct.success_share * 100 for r in rows], 0.36, color=_DIRECT, label="directly"
    )
    bars = axes.barh(
        [p + 0.19 for p in places],
        [r.guarded.success_share * 100 for r in rows],
        0.36,
        color=_GUARDED,
        label="through llm_guard",
    )
    axes.bar_label(
        bars,
        [f"{r.guarded.success_share:.2%}  ·  {r.requests_per_call:.2f} requests per call" for r in rows],
        padding=4,
        fontsize=8,
    )
    axes.set_yticks(list(places), [row.name for row in rows], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 145)
    axes.set_xticks(range(0, 101, 20), [f"{tick} %" for tick in range(0, 101, 20)])
    axes.set_title("Calls that succeed", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.savefig(RESULTS / "survival.png", dpi=110)
    plt.close(figure)
