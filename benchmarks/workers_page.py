"""Writes the page of `benchmarks.workers`."""

from __future__ import annotations

import json
from statistics import median

from benchmarks import report, workers
from benchmarks.provenance import machine, measured_line


def write_workers(ran: workers.WorkersRun) -> None:
    """Writes workers.json and workers.md."""
    found = {"machine": machine(), "workers": ran.as_dict()}
    (report.RESULTS / "workers.json").write_text(json.dumps(found, indent=1) + "\n")
    low, high, ratio = min(ran.ratios), max(ran.ratios), f"{ran.ratio:.2f}"
    lines = [
        "# Workers",
        "",
        "A gateway with one process, one with two workers, and two gateways with one process each that share nothing,",
        f"in turns, {ran.rounds} rounds of {ran.calls} calls over {ran.connections} connections that are always busy.",
        "Clients, provider and gateways share the processors.",
        "",
        "| processor time of a call | measured | promised |",
        "|---|---:|---:|",
        f"| one process, median | {median(ran.one_us):.0f} us | |",
        f"| two workers and their parent, median | {median(ran.two_us):.0f} us | |",
        f"| two gateways, median | {median(ran.apart_us):.0f} us | |",
        f"| two workers, relative to one process, median | {ratio} | at most {workers.PROMISED} |",
        f"| the same, lowest and highest round | {low:.2f} to {high:.2f} | |",
        f"| two workers, relative to two gateways, median | {ran.ratio_to_apart:.2f} | |",
        "",
        *(f"- Failed: {error}" for error in ran.broken),
    ]
    (report.RESULTS / "workers.md").write_text("\n".join([*lines, "", measured_line(machine()), ""]))
