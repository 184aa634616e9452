"""`python -m benchmarks [survival|cost|classification [FILE]] [--seconds N]`: measures, writes `benchmarks/results/`,
exits 1 when a promise does not hold."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmarks import classification, cost, report, survival
from benchmarks.rig import keep_off_the_gateways_processor


@click.command()
@click.argument("which", type=click.Choice(["all", "survival", "cost", "classification"]), default="all")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@click.option("--seconds", default=30.0, show_default=True, help="Of each survival scenario.")
def main(which: str, file: Path | None, seconds: float) -> None:
    """Measure, and write benchmarks/results/. FILE: labelled errors for `classification`, which then only prints."""
    if file is not None and which != "classification":
        raise click.BadParameter("goes with classification alone", param_hint="FILE")
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
    if which in ("all", "classification"):
        scores, classifying = classification.run(click.echo, (file,) if file else classification.COLLECTIONS)
        if file is None:
            report.write_classification(scores, classifying)
        broken += [promise for score in scores for promise in score.broken] + classifying.broken
    for promise in broken:
        click.secho(f"does not hold: {promise}", fg="red")
    click.echo(f"results in {report.RESULTS.name}/")
    sys.exit(1 if broken else 0)


main()
