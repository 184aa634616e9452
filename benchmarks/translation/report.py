"""The results as `translation.md` and `translation.json`, and `translation-cost.md` and `translation-cost.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.provenance import Machine, computed_line, measured_line
from benchmarks.translation.corpus import CLASSES
from benchmarks.translation.cost import Cost
from benchmarks.translation.measure import PROMISED_OF_A_CLASS, PROMISED_SHARE, Score
from benchmarks.translation.ways import LIBRARIES

_INTRO = f"""\
# Hard cases of translation

Each case is a defect that users of gateways and libraries report: what a client asks, what the provider answers, and
what must be true of the translated request and of the client's response. `benchmarks/translation/cases` has them, with
the thread that reports each. llm_guard serves them as a whole gateway over sockets; libraries are called as an
application calls them, in environments of their own. All have the same provider, which enforces both APIs' rules: it
refuses fields, ids, orders and values that the APIs refuse. What a library has no place for is not asked of it: a
header, and streams that another model continues. An exception is right where a request has to be refused, and only
there.

Promised of llm_guard: {PROMISED_SHARE:.0%} of all, {PROMISED_OF_A_CLASS:.0%} of each class, no answer with a 5xx.
"""
_COST_INTRO = """\
# What a translated call costs

One gateway, not compiled, on one processor; each call goes in turns to a provider of the client's dialect and to one
of the other. Figures are what the translation takes more: medians of {rounds} rounds, with the lowest and the highest.
The first four are CPU time. The last is how much longer a request beside a large call waits than beside the same call
without translation."""


def write(scores: Sequence[Score], folder: Path, machine: Machine) -> None:
    """Writes both files of the corpus."""
    content = {"machine": machine, "libraries": LIBRARIES, "ways": [asdict(score) for score in scores]}
    Path(folder, "translation.json").write_text(json.dumps(content, indent=1) + "\n")
    Path(folder, "translation.md").write_text("\n".join(page(scores, machine)))


def write_cost(costs: Sequence[Cost], folder: Path, machine: Machine) -> None:
    """Writes both files of the cost."""
    content = {"machine": machine, "costs": [cost.as_dict() for cost in costs]}
    Path(folder, "translation-cost.json").write_text(json.dumps(content, indent=1) + "\n")
    Path(folder, "translation-cost.md").write_text("\n".join(cost_page(costs, machine)))


def page(scores: Sequence[Score], machine: Machine) -> list[str]:
    """The lines of translation.md."""
    names = " | ".join(score.way for score in scores)
    lines = [_INTRO, f"| | cases | {names} |", "|---|---:|" + "---:|" * len(scores)]
    for number, name in CLASSES.items():
        cells = " | ".join(_share(score, number) for score in scores)
        lines.append(f"| {number}. {name} | {_offered(scores[0], number)} | {cells} |")
    totals = " | ".join(f"**{_share(score)}**" for score in scores)
    lines.append(f"| all | {_offered(scores[0])} | {totals} |")
    left_out = ", ".join(f"{score.way} {score.not_offered}" for score in scores if score.not_offered) or "none"
    versions = ", ".join(" and ".join(LIBRARIES[score.way]) for score in scores if score.way in LIBRARIES)
    if versions:
        lines += ["", f"Libraries: {versions}. Cases of endpoints that they lack: {left_out}."]
    lines += _missed(scores[0])
    return [*lines, "", computed_line(machine), ""]


def _missed(score: Score) -> list[str]:
    missed = [f"- {each.number}, `{each.name}`" for each in score.judged if not each.passed]
    return ["", f"## What {score.way} misses", "", *missed] if missed else []


def _offered(score: Score, number: int | None = None) -> int:
    return sum(number in (None, each.number) for each in score.judged)


def _share(score: Score, number: int | None = None) -> str:
    found = [each.passed for each in score.judged if number in (None, each.number)]
    return f"{sum(found)} of {len(found)}" if found else "-"


def cost_page(costs: Sequence[Cost], machine: Machine) -> list[str]:
    """The lines of translation-cost.md."""
    lines = [_COST_INTRO.format(rounds=len(costs[0].more_s)), ""]
    lines += ["| | client of | without translation | more | promised at most |", "|---|---|---:|---:|---:|"]
    for cost in costs:
        promise, scale = cost.promise, cost.promise.scale
        low, high = min(cost.more_s) * scale, max(cost.more_s) * scale
        lines.append(
            f"| {promise.name} | {cost.client} | {cost.native_s * scale:.1f} {promise.unit} "
            f"| **{cost.figure:.1f} {promise.unit}** ({low:.1f}, {high:.1f}) | {promise.most:.0f} {promise.unit} |"
        )
    return [*lines, "", measured_line(machine), ""]
