"""Writes the page of `benchmarks.fleet_pace`."""

from __future__ import annotations

import json

from benchmarks import fleet_pace, report
from benchmarks.provenance import machine, measured_line


def write_fleet_pace(ran: fleet_pace.PaceRun) -> None:
    """Writes fleet-pace.json and fleet-pace.md."""
    found = {"machine": machine(), "pace": ran.as_dict()}
    (report.RESULTS / "fleet-pace.json").write_text(json.dumps(found, indent=1) + "\n")
    lines = [
        "# The pace that gateways have together",
        "",
        "Gateways, each a process of its own, one redis-server, and a provider that takes",
        f"{fleet_pace.LIMIT:g} requests a second and answers 429 to the rest. Calls come at random, at any gateway.",
        "The last two figures are those of half a minute in which the store is frozen.",
        "",
        (
            "| gateways | calls a second | answers, of the limit | requests for each answer | calls without an answer "
            "| answers without the store, of the limit | 429s a second |"
        ),
        "|---:|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {row.gateways} | {row.offered:g} | {row.goodput:.2f} | {row.per_answer:.2f} | {row.failed:.0%} | "
            f"{row.without_store:.2f} | {row.refused:.1f} |"
            for row in ran.rows
        ),
        (
            f"| promised | | at least {fleet_pace.LEAST_GOODPUT} | at most {fleet_pace.MOST_PER_ANSWER} | | "
            f"at least {fleet_pace.LEAST_WITHOUT_STORE} | at most {fleet_pace.MOST_REFUSED:g} |"
        ),
        "",
        *(f"- Failed: {error}" for error in ran.broken),
    ]
    (report.RESULTS / "fleet-pace.md").write_text("\n".join([*lines, "", measured_line(machine()), ""]))
