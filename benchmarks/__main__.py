"""`python -m benchmarks [scenarios|cost|relay|soak|storm|classification [FILE]]`: measures, and writes
`benchmarks/results/`.

Exits 1 when a promise does not hold. `soak`, which takes minutes, is not part of `all`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmarks import classification, cost, relay, report, soak
from benchmarks.rig import keep_off_the_gateways_processor
from benchmarks.scenarios import report as scenario_report
from benchmarks.scenarios import run as scenarios
from benchmarks.scenarios.catalogue import SCENARIOS
from benchmarks.storm import report as storm

_PARTS = ("scenarios", "cost", "relay", "soak", "storm", "classification")


@click.command()
@click.argument("which", type=click.Choice(["all", *_PARTS]), default="all")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=scenarios.LONGEST_S,
    show_default=True,
    help="Of the longest steady scenario, the others in proportion; courses of events keep their length.",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([each.key for each in SCENARIOS]),
    metavar="NAME",
    help="This scenario alone, and nothing is written; may be given more than once.",
)
@click.option("--other", metavar="NAME=BASE_URL", help="A gateway that runs already, to be measured beside.")
@click.option(
    "--provider-port",
    type=click.IntRange(1, 65535),
    default=9009,
    show_default=True,
    help="Where that gateway expects its provider.",
)
@click.option("--minutes", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Of the soak.")
@click.option("--streams", type=click.IntRange(1), default=1000, show_default=True, help="Of the soak, at once.")
def main(
    which: str,
    file: Path | None,
    seconds: float,
    only: tuple[str, ...],
    other: str | None,
    provider_port: int,
    minutes: float,
    streams: int,
) -> None:
    """Measure, and write benchmarks/results/. FILE: labelled errors for `classification`, which then only prints."""
    _check(which, file, only, other)
    keep_off_the_gateways_processor()
    broken: list[str] = []
    if which in ("all", "scenarios"):
        rows = scenarios.run(only, seconds, _other(other, provider_port))
        if not only:
            scenario_report.write(rows, report.RESULTS, report.machine())
        broken += [f"{row.scenario.name}: {promise}" for row in rows for promise in row.broken]
    if which in ("all", "cost"):
        measured = cost.run(click.echo)
        report.write_cost(measured)
        broken += measured.broken
    if which in ("all", "relay"):
        relayed = relay.run(click.echo)
        report.write_relay(relayed)
        broken += relayed.broken
    if which == "soak":
        soaked = soak.run(click.echo, minutes, streams)
        report.write_soak(soaked)
        click.echo(f"RSS {soaked.slope_mb_per_hour:+.1f} MB an hour in the second half")
        broken += soaked.broken
    if which in ("all", "storm"):
        broken += storm.run_all(click.echo)
    if which in ("all", "classification"):
        scores, classifying = classification.run(click.echo, (file,) if file else classification.COLLECTIONS)
        if file is None:
            report.write_classification(scores, classifying)
        broken += [promise for score in scores for promise in score.broken] + classifying.broken
    for promise in broken:
        click.secho(f"does not hold: {promise}", fg="red")
    if not only and file is None:
        click.echo(f"results in {report.RESULTS.name}/")
    sys.exit(1 if broken else 0)


def _check(which: str, file: Path | None, only: tuple[str, ...], other: str | None) -> None:
    if file is not None and which != "classification":
        raise click.BadParameter("goes with classification alone", param_hint="FILE")
    if (only or other) and which != "scenarios":
        raise click.BadParameter("go with scenarios alone", param_hint="--only, --other")


def _other(text: str | None, provider_port: int) -> scenarios.Other | None:
    if text is None:
        return None
    name, equals, url = text.partition("=")
    if not equals or not url.startswith("http"):
        raise click.BadParameter("must be NAME=BASE_URL", param_hint="--other")
    return scenarios.Other(name, url, provider_port)


main()
