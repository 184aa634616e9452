"""Results of cost and classification as JSON and as pages, in `benchmarks/results/`."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

from benchmarks import classification
from benchmarks.cost import Cost

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, str | int | None]:
    """What the figures were measured on."""
    return {"python": platform.python_version(), "system": platform.machine(), "processors": os.cpu_count()}


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


def _machine_line() -> str:
    on = machine()
    return f"Measured on {on['processors']} shared processors ({on['system']}), Python {on['python']}."
