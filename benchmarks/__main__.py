"""`python -m benchmarks [PART]`: measures everything, or one part (see `--help`), and writes `benchmarks/results/`.

Exits 1 if a promise does not hold. `ages` measures nothing: it lists the pages that are out of date. `soak`, `since`,
`storm-matrix`, `frontier`, `fuzz`, `sdk-suites`, `translation` and `translation-cost`, which take minutes, are not part
of `all`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from benchmarks import (
    classification,
    fleet,
    fleet_limits,
    fleet_pace,
    fleet_store,
    fuzz,
    joins,
    lasting,
    ops,
    ops_size,
    relay,
    report,
    since,
    soak,
    uploads,
    workers,
    wrong_answers,
)
from benchmarks.compare import measure as comparison
from benchmarks.compare import page as comparison_page
from benchmarks.compare.ways import find_envoy, parse_peers
from benchmarks.fleet_pace_page import write_fleet_pace
from benchmarks.frontier import report as frontier_report
from benchmarks.processes import Way
from benchmarks.provenance import age, machine
from benchmarks.rig import keep_off_the_gateways_processor
from benchmarks.scenarios import report as scenario_report
from benchmarks.scenarios import run as scenarios
from benchmarks.scenarios.catalogue import SCENARIOS
from benchmarks.sdk_suites import report as sdk_suites_report
from benchmarks.sdk_suites import run as sdk_suites
from benchmarks.sdk_suites.sources import SDKS, SourceError
from benchmarks.storm import report as storms
from benchmarks.storm_matrix import cells
from benchmarks.storm_matrix import report as storm_matrix_report
from benchmarks.storm_matrix import run as storm_matrix
from benchmarks.storm_matrix.fallbacks import Substitution
from benchmarks.storm_matrix.measure import Storm
from benchmarks.storm_matrix.slow import Slowness
from benchmarks.translation import cost as translation_cost
from benchmarks.translation import measure as translation
from benchmarks.translation import report as translation_report
from benchmarks.translation.ways import LIBRARIES, LibraryError
from benchmarks.workers_page import write_workers
from compiling.build import ROOT, TARGET, BuildError, build
from tests.fuzz.targets import TARGETS

_seconds = click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=scenarios.LONGEST_S,
    show_default=True,
    help="Of the longest steady scenario, the others in proportion; courses of events keep their length.",
)
_provider_port = click.option(
    "--provider-port",
    type=click.IntRange(1, 65535),
    default=9009,
    show_default=True,
    help="Where a gateway that runs already expects its provider.",
)


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def main(context: click.Context) -> None:
    """Measure, and write benchmarks/results/: all of it, or one part."""
    keep_off_the_gateways_processor()
    if context.invoked_subcommand is None:
        context.invoke(everything)


@main.command("all")
@_seconds
def everything(seconds: float = scenarios.LONGEST_S) -> None:
    """Every part but the soak, the storm matrix and the fuzzing, one after the other."""
    measured = [*_scenarios(seconds), *_compare(), *_relay(), *_ops(), *_lasting(), *_uploads()]
    _end([*measured, *storms.run_all(click.echo), *_joins(), *_classification(), *_wrong_answers()])


@main.command("scenarios")
@_seconds
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([scenario.key for scenario in SCENARIOS]),
    metavar="NAME",
    help="This scenario alone, and nothing is written; may be given more than once.",
)
@click.option("--other", metavar="NAME=BASE_URL", help="A gateway that runs already, to be measured beside.")
@_provider_port
def play_scenarios(seconds: float, only: tuple[str, ...], other: str | None, provider_port: int) -> None:
    """A misbehaving provider, with and without the gateway."""
    named = None if other is None else _other(other, provider_port)
    _end(_scenarios(seconds, only, named), is_written=not only)


@main.command()
@click.option("--peer", "peers", multiple=True, metavar="NAME=URL", help="A proxy that runs already.")
@click.option("--peer-pid", "pids", multiple=True, metavar="NAME=PID", help="Its process, for its CPU and memory.")
@click.option(
    "--envoy",
    is_flag=False,
    flag_value="envoy",
    metavar="[PATH]",
    help="Start Envoy too: the one on the PATH, or this one. benchmarks/peers/README.md says how to get it.",
)
@click.option("--compiled", is_flag=True, help="Compile the gateway, and measure that too: it takes a C compiler.")
@_provider_port
def compare(
    peers: tuple[str, ...], pids: tuple[str, ...], envoy: str | None, compiled: bool, provider_port: int
) -> None:  # fmt: skip
    """The gateway's cost, beside no proxy, a plain one, Envoy and any other."""
    try:
        program = None if envoy is None else find_envoy(envoy)
        ways = parse_peers(peers, pids)
        package = build(ROOT, TARGET, is_profiled=True) if compiled else None
    except (BuildError, FileNotFoundError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    _end(_compare(ways, program, provider_port if peers else 0, package))


@main.command("relay")
def relay_streams() -> None:
    """The cost of a streamed chunk, beside a plain relay."""
    _end(_relay())


@main.command("ops")
@click.option("--rounds", type=click.IntRange(1), default=ops.ROUNDS, show_default=True)
def operate(rounds: int) -> None:
    """The cost of the admin side, in use, beside as much of it off as possible; and its pages with 200 deployments."""
    _end(_ops(rounds))


@main.command("fleet")
def run_fleet() -> None:
    """Ten gateways and a redis-server: an outage that they notice together; the store's cost, and what calls notice
    while it fails. Twelve minutes."""
    ran, stored = fleet.run(click.echo), fleet_store.run(click.echo)
    report.write_fleet(ran, stored)
    _end([*ran.broken, *stored.broken])


@main.command("fleet-limits")
def run_fleet_limits() -> None:
    """Limits that ten gateways have together, with a store and after its loss. A minute and a half."""
    ran = fleet_limits.run(click.echo)
    report.write_fleet_limits(ran)
    _end(ran.broken)


@main.command("fleet-pace")
def run_fleet_pace() -> None:
    """The pace that gateways have together before a provider's rate limit. Eleven minutes."""
    ran = fleet_pace.run(click.echo)
    write_fleet_pace(ran)
    _end(ran.broken)


@main.command("workers")
def run_workers() -> None:
    """The cost of a call with two worker processes, beside one process. A minute or two."""
    ran = workers.run(click.echo)
    write_workers(ran)
    _end(ran.broken)


@main.command("lasting")
@click.option("--rounds", type=click.IntRange(1), default=lasting.ROUNDS, show_default=True)
def lasting_alone(rounds: int) -> None:
    """The cost of cache, dead letters and fallback answers for calls that do not use them: five minutes."""
    _end(_lasting(rounds))


@main.command("since")
@click.argument("checkout", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--commit", required=True, help="What the page calls the checkout.")
@click.option("--rounds", type=click.IntRange(1), default=since.ROUNDS, show_default=True)
def since_earlier(checkout: Path, commit: str, rounds: int) -> None:
    """The cost of a call, beside the version in CHECKOUT (`git worktree add CHECKOUT COMMIT`): five minutes."""
    measured = since.run(click.echo, since.Plan(checkout.resolve(), commit, rounds))
    report.write_since(measured)
    _end(measured.broken)


@main.command("ages")
def page_ages() -> None:
    """The commit at which each page was measured; exits 1 if the path of a call has changed since one of them."""
    ages = [age(page) for page in sorted(report.RESULTS.glob("*.md"))]
    for each in ages:
        click.secho(str(each), fg=None if each.is_current else "yellow")
    sys.exit(0 if all(each.is_current for each in ages) else 1)


@main.command("frontier")
@click.option("--part", type=click.Choice(list(frontier_report.PARTS)), help="This part alone, and nothing is written.")
def cross_the_frontier(part: str | None) -> None:
    """Success and cost of calls where a provider fails at random, by overload, by content or altogether: minutes."""
    rows = frontier_report.measure(click.echo, part)
    if part is None:
        frontier_report.write(rows, report.RESULTS, machine())
    _end([f"{row.name}: {'; '.join(row.broken)}" for row in rows if row.broken], is_written=part is None)


@main.command("soak")
@click.option("--minutes", type=click.FloatRange(0.1), default=5.0, show_default=True)
@click.option("--streams", type=click.IntRange(1), default=1000, show_default=True, help="At once.")
def soak_streams(minutes: float, streams: int) -> None:
    """A thousand streams with faults for minutes: memory, and what is left behind."""
    soaked = soak.run(click.echo, minutes, streams)
    report.write_soak(soaked)
    click.echo(f"RSS {soaked.slope_mb_per_hour:+.1f} MB an hour in the second half")
    _end(soaked.broken)


@main.command("fuzz")
@click.option("--minutes", type=click.FloatRange(0.01), default=15.0, show_default=True, help="Shared by the targets.")
@click.option("--only", multiple=True, type=click.Choice(list(TARGETS)), metavar="NAME", help="This target alone.")
@click.option("--seed", type=int, help="Of the dice; another one each time without it.")
def fuzz_targets(minutes: float, only: tuple[str, ...], seed: int | None) -> None:
    """Nearly right input against every parser: minutes of it, where the test command has seconds."""
    _end(fuzz.run(click.echo, minutes, only, seed), is_written=False)


@main.command("sdk-suites")
@click.option("--sdk", "sdks", multiple=True, type=click.Choice(SDKS), help="This SDK alone.")
@click.option("-k", "chosen", default="", metavar="EXPRESSION", help="Which tests, as pytest's -k; nothing is written.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keeps sources and environments for the next run.",
)
def run_sdk_suites(sdks: tuple[str, ...], chosen: str, folder: Path | None) -> None:
    """The official SDKs' own tests, straight at a mock and behind the gateway: ten minutes. pip needs its registry."""
    try:
        results = sdk_suites.run(click.echo, sdks or SDKS, chosen, folder)
    except (SourceError, sdk_suites.SuiteError) as error:
        raise click.ClickException(str(error)) from None
    for result in results:
        for difference in result.differences:
            click.echo(f"{difference.test}: {difference.behind.result}: {difference.behind.message[:200]}")
    is_written = not (sdks or chosen)
    if is_written:
        sdk_suites_report.write(results, report.RESULTS, machine())
    _end([promise for result in results for promise in result.broken], is_written=is_written)


@main.command("translation")
@click.option("--library", "libraries", multiple=True, type=click.Choice(list(LIBRARIES)), help="This library alone.")
@click.option("--gateway-alone", is_flag=True, help="No library; nothing is written, and what fails is explained.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keeps the libraries' environments for the next run.",
)
def translate(libraries: tuple[str, ...], gateway_alone: bool, folder: Path | None) -> None:
    """Hard cases of translation, with two libraries beside: five minutes. pip needs its registry."""
    chosen = () if gateway_alone else libraries or tuple(LIBRARIES)
    try:
        scores = translation.run(click.echo, chosen, folder)
    except LibraryError as error:
        raise click.ClickException(str(error)) from None
    for each in scores[0].judged:
        if not each.passed:
            click.echo(f"{each.number}, {each.name}: {'; '.join(each.problems)[:300]}")
    is_written = not (libraries or gateway_alone)
    if is_written:
        translation_report.write(scores, report.RESULTS, machine())
    _end(scores[0].broken, is_written=is_written)


@main.command("translation-cost")
@click.option("--rounds", type=click.IntRange(1), default=translation_cost.ROUNDS, show_default=True)
def translate_at_cost(rounds: int) -> None:
    """The CPU that translation adds to a call: four minutes."""
    costs = translation_cost.run(click.echo, rounds)
    translation_report.write_cost(costs, report.RESULTS, machine())
    _end([promise for cost in costs for promise in cost.broken])


@main.command("storm")
def storm() -> None:
    """The policies against thousands of clients, simulated."""
    _end(storms.run_all(click.echo))


@main.command("storm-matrix")
@click.option("--length", "lengths", multiple=True, type=float, help="Storm length in seconds.")
@click.option("--rate", "rates", multiple=True, type=float, help="Calls a second.")
@click.option(
    "--error", "errors", multiple=True, type=click.Choice(cells.ERRORS), help="Error that the provider answers."
)
@click.option("--hint", "hints", multiple=True, help="Retry-After of the errors, or none.")
@click.option("--part", type=click.Choice(("storms", "fallbacks", "slow")), help="This part alone.")
@click.option("--processes", type=click.IntRange(1), help="Default: one per processor.")
def storm_by_cell(
    lengths: tuple[float, ...],
    rates: tuple[float, ...],
    errors: tuple[str, ...],
    hints: tuple[str, ...],
    part: str | None,
    processes: int | None,
) -> None:
    """Storms of every length, rate and kind against the whole gateway, on a virtual clock: a quarter of an hour.

    With options only the cells that match all of them are measured, and nothing is written. An option may be repeated.
    """
    if not (lengths or rates or errors or hints or part):
        matrix = storm_matrix.run(click.echo, processes)
        storm_matrix_report.write(matrix, report.RESULTS, machine())
        _end(matrix.broken)
    chosen = storm_matrix.chosen_cells(lengths, rates, errors, hints) if part in (None, "storms") else []
    measured: list[Storm | Substitution | Slowness] = [
        *(storm_matrix.run_cells(click.echo, chosen, processes) if chosen else []),
        *(storm_matrix.run_fallbacks(click.echo) if part == "fallbacks" else []),
        *(storm_matrix.run_slow(click.echo) if part == "slow" else []),
    ]
    if not measured:
        raise click.UsageError("no cell has these values")
    _end([promise for each in measured for promise in each.broken], is_written=False)


@main.command("joins")
def join_texts() -> None:
    """Streams that an instruction continues: joined right, ended by an honest error, or wrong. Two minutes."""
    _end(_joins())


@main.command("uploads")
def upload() -> None:
    """How soon a provider has an upload, and what the gateway takes for it. Half a minute."""
    _end(_uploads())


@main.command("wrong-answers")
def wrong() -> None:
    """Answers that are none, by endpoint and form: what the client gets, and what the breaker learns."""
    _end(_wrong_answers())


@main.command("classification")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
def classify(file: Path | None) -> None:
    """How often an error is read right. FILE: labelled errors, for which figures are only printed."""
    _end(_classification(file), is_written=file is None)


def _other(text: str, provider_port: int) -> scenarios.Other:
    name, equals, url = text.partition("=")
    if not equals or not url.startswith("http"):
        raise click.BadParameter("must be NAME=BASE_URL", param_hint="--other")
    return scenarios.Other(name, url, provider_port)


def _scenarios(seconds: float, only: Sequence[str] = (), other: scenarios.Other | None = None) -> Iterable[str]:
    rows = scenarios.run(only, seconds, other)
    if not only:
        scenario_report.write(rows, report.RESULTS, machine())
    return [f"{row.scenario.name}: {promise}" for row in rows for promise in row.broken]


def _compare(
    peers: Sequence[Way] = (), envoy: Path | None = None, provider_port: int = 0, compiled: Path | None = None
) -> Iterable[str]:
    gc.freeze()  # keeps the garbage collector from traversing imported modules in the middle of a call
    compared = comparison.run(click.echo, peers, envoy, provider_port, compiled=compiled)
    comparison_page.write(compared, report.RESULTS, machine())
    for promise in compared.promises:
        click.echo(f"{promise.text}: {'-' if promise.found is None else f'{promise.found:.3g}'}, {promise.verdict}")
    return compared.broken


def _relay() -> Iterable[str]:
    relayed = relay.run(click.echo)
    report.write_relay(relayed)
    return relayed.broken


def _ops(rounds: int = ops.ROUNDS) -> Iterable[str]:
    operated, sized = ops.run(click.echo, ops.Plan(rounds)), ops_size.run(click.echo)
    report.write_ops(operated, sized)
    return [*operated.broken, *sized.broken]


def _lasting(rounds: int = lasting.ROUNDS) -> Iterable[str]:
    lasted = lasting.run(click.echo, lasting.Plan(rounds))
    report.write_lasting(lasted)
    return lasted.broken


def _joins() -> Iterable[str]:
    joined = joins.run(click.echo)
    report.write_joins(joined)
    return joined.broken


def _uploads() -> Iterable[str]:
    done = uploads.run(click.echo)
    report.write_uploads(done)
    return [promise for each in done for promise in each.broken]


def _wrong_answers() -> Iterable[str]:
    judged = wrong_answers.run(click.echo)
    report.write_wrong_answers(judged)
    return judged.broken


def _classification(file: Path | None = None) -> Iterable[str]:
    if file is not None:
        return classification.run_file(click.echo, file).broken
    measured = classification.run(click.echo)
    report.write_classification(measured)
    return measured.broken


def _end(broken: Iterable[str], *, is_written: bool = True) -> None:
    for promise in broken:
        click.secho(f"does not hold: {promise}", fg="red")
    if is_written:
        click.echo(f"results in {report.RESULTS.name}/")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
