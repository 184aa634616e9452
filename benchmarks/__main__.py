"""`python -m benchmarks [survival|cost] [--seconds N]`: measures, writes `benchmarks/results/`, exits 1 when a promise
does not hold."""

from __future__ import annotations

import sys

import click

from benchmarks import cost, report, survival
from benchmarks.rig import keep_off_the_gateways_processor


@click.command()
@click.argument("which", type=click.Choice(["all", "survival", "cost"]), default="all")
@click.option("--seconds", default=30.0, show_default=True, help="Of each survival scenario.")
def main(which: str, seconds: float) -> None:
    """Measure, and write benchmarks/results/."""
    keep_off_the_gateways_processor()
    broken: list[str] = []
    if which in ("all", "survival"):
        rows = survival.run(click.echo, seconds)
        report.write_survival(rows)
        broken += [f"{row.name}: {promise}" for row in rows for promise in row.broken]
    if which in ("all", "cost"):
        measured = cost.run(click.echo)
        report.write_cost(measured)
        if measured.added_p50_s >= 0.001:
            broken.append(f"added latency {measured.added_p50_s * 1e3:.2f} ms against 1 ms")
        if measured.streams_ok < measured.streams:
            broken.append(f"{measured.streams - measured.streams_ok} of {measured.streams} streams broke")
    for promise in broken:
        click.secho(f"does not hold: {promise}", fg="red")
    click.echo(f"results in {report.RESULTS.name}/")
    sys.exit(1 if broken else 0)


main()
