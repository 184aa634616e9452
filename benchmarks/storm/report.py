"""Writes the storms' results: storm.json, storm.md and storm-*.png, in `benchmarks/results/`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.provenance import computed_line, machine
from benchmarks.scenario_coverage import COVERAGE, Coverage
from benchmarks.storm import (
    breakers,
    budgets,
    costs,
    frontier,
    header_pacing,
    jitter,
    metastable,
    pictures,
    rate_limit_storms,
    replicas,
    shared_paces,
    small_quotas,
    spread,
    throttle,
)
from benchmarks.storm import recovery as outages
from benchmarks.storm.frontier import Point
from benchmarks.storm.row import Row, Verdict
from benchmarks.storm.spread import Spread

RESULTS = Path(__file__).parent.parent / "results"
_SEED = 7
_MARKS: dict[Verdict, str] = {
    "holds": "✓ holds", "broken": "✗ **does not hold**", "differs": "differs on purpose", "reference": "as others do",
}  # fmt: skip
_HEAD = (
    "The gateway's own policies against thousands of clients, simulated: a minute to run, the same figures on every "
    "machine (`python -m benchmarks storm`). *Expected* is the figure of the literature or of the product named; rows "
    "*as others do* show that the simulation agrees with it, rows *differs on purpose* say why."
)


@dataclass(frozen=True, slots=True)
class _Section:
    title: str
    scenarios: tuple[str, ...]
    picture: str
    caption: str
    text: str


_SECTIONS = (
    _Section(
        "Does the service come back?",
        ("A45", "A46", "A47", "A48"),
        "storm-goodput.png",
        "good answers a second around an outage, with and without protection",
        "Calls come at random (Poisson) to a provider that serves 300 a second in order of arrival; a client waits 1 "
        "s; the provider does nothing for 10 s. *Back* is the second after the outage from which on 95 % of calls are "
        "answered well, to the end of the run. Three figures: at 140, 200 and 280 calls a second. The last rows are "
        "the worst of outages of 2, 5, 8, 16, 60 and 600 s at 0.5, 5, 50 and 200 calls a second, with the default "
        "settings and neither retries nor another deployment; a request that hangs is given up after 10 s.",
    ),
    _Section(
        "Do retries come as a herd?",
        ("A24", "A25", "A26", "A27"),
        "storm-herd.png",
        "when 1,000 clients that failed at once come back",
        "1,000 clients fail at the same instant; counted is what comes back in the busiest 100 ms. The base wait is 1 "
        "s where none is named.",
    ),
    _Section(
        "What do retries cost, and what do they cure?",
        ("A17", "A18", "A20", "A21", "brownout", "outage"),
        "storm-budgets.png",
        "success and load by how many attempts fail, for each retry budget",
        "Attempts fail independently of each other; four attempts, 100 calls a second. Requests per call, and calls "
        "that succeed.",
    ),
    _Section(
        "Does a breaker open when it should, and only then?",
        ("A05", "A11", "A12", "A13", "A39", "A40", "replicas", "429 storm", "small quota", "header pacing"),
        "storm-false-opens.png",
        "openings by chance against the share of calls that fail",
        "In the picture 100,000 calls fail independently of each other: nothing is down, and a breaker that opens is "
        "wrong.",
    ),
    _Section(
        "Slow tails and odd replicas",
        ("A36", "A37", "A38", "A44"),
        "storm-spread.png",
        "the 99th percentile with and without hedging, and where balancing sends calls",
        "Hedging sends a second request once the first has taken longer than 95 % do; balancing by latency asks two of "
        "the replicas, and takes the one that answers sooner.",
    ),
)


def run_all(say: Callable[[str], None], seed: int = _SEED) -> list[str]:
    """Runs every storm, writes the results, and returns the promises that do not hold."""
    say("storm 1/5: jitter")
    herds, contentions = jitter.herds(seed), jitter.contentions(seed)
    say("storm 2/5: breakers")
    trips = breakers.false_opens(seed)
    say("storm 3/5: retry budgets")
    points = frontier.run(seed)
    say("storm 4/5: hedging and balancing")
    found = spread.run(seed)
    say("storm 5/5: recovery after an outage")
    courses = metastable.run(say, seed)
    recoveries = outages.run(outages.matrix())
    rows = [
        *metastable.rows(courses),
        metastable.whenever(seed),
        *outages.rows(recoveries),
        *jitter.formula_rows(), *jitter.herd_rows(herds), *jitter.contention_rows(contentions),
        *breakers.rows(trips), *replicas.rows(), *shared_paces.rows(), *throttle.rows(), *rate_limit_storms.rows(),
        *small_quotas.rows(), *header_pacing.rows(),
        *budgets.rows(points), *spread.rows(found),
    ]  # fmt: skip
    pictures.draw_goodput(courses, RESULTS / "storm-goodput.png")
    pictures.draw_herds(herds, RESULTS / "storm-herd.png")
    pictures.draw_false_opens(trips, RESULTS / "storm-false-opens.png")
    costs.draw_frontier(points, RESULTS / "storm-budgets.png")
    costs.draw_spread(found, RESULTS / "storm-spread.png")
    _write_json(seed, rows, courses, points, found)
    (RESULTS / "storm.md").write_text(f"{page(rows)}\n{computed_line(machine())}\n")
    return [row.broken for row in rows if row.broken is not None]


def page(rows: list[Row]) -> str:
    """Content of storm.md. Raises ValueError for a row that no section shows."""
    shown = {scenario for section in _SECTIONS for scenario in section.scenarios}
    if missing := {row.scenario for row in rows} - shown:
        raise ValueError(f"no section of storm.md names {', '.join(sorted(missing))}")
    lines = ["# Storms on a virtual clock", "", _HEAD]
    for section in _SECTIONS:
        lines += ["", f"## {section.title}", "", section.text, "", f"![{section.caption}]({section.picture})", ""]
        lines += ["| | | expected | measured | |", "|---|---|---|---|---|"]
        lines += [_line(row) for row in rows if row.scenario in section.scenarios]
    lines += ["", "## All fifty scenarios", "", "Where each is tested or measured, or why it is not.", ""]
    lines += ["| | scenario | | where |", "|---|---|---|---|"]
    lines += [_coverage_line(each) for each in COVERAGE]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    verdict = _MARKS[row.verdict] + (f": {row.why}" if row.why else "")
    return f"| {row.scenario} | {row.what} | {row.expected} | {row.measured} | {verdict} |"


def _coverage_line(each: Coverage) -> str:
    places = ", ".join(f"`{where.rsplit('/', 1)[-1]}`" for where in each.where)
    return f"| {each.scenario} | {each.title} | {each.kind} | {'; '.join(filter(None, (places, each.note)))} |"


def _write_json(
    seed: int, rows: list[Row], courses: list[metastable.Course], points: list[Point], found: Spread
) -> None:
    content = {
        "seed": seed,
        "rows": [row.as_dict() for row in rows],
        "courses": [course.as_dict() for course in courses],
        "budgets": [asdict(point) for point in points],
        "spread": found.as_dict(),
    }
    (RESULTS / "storm.json").write_text(json.dumps(content) + "\n")
