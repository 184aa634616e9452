"""`llm-guard bench`: sends calls at a fixed rate, and shows success rate and latencies.

Exit codes: 0, or 1 if no call succeeded or the run was interrupted; 2 for invalid arguments.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from llm_guard.cli.bench.page import Measured, page_of
from llm_guard.cli.bench.payloads import PayloadError, read_payloads
from llm_guard.cli.bench.picture import MISSING, can_draw, draw
from llm_guard.dialects import DEFAULT_DIALECT, DIALECTS, DialectName
from llm_guard.event_loop import run
from llm_guard.mock.load import LoadPlan, LoadRun, key_headers

_POSITIVE = click.FloatRange(0, min_open=True)
_LATE_S = 0.1


@click.command()
@click.option("--url", required=True, help="Base URL of a gateway or provider.")
@click.option("--model", "models", multiple=True, help="Model to request; repeatable.")
@click.option(
    "--payloads",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Request bodies, one JSON object a line, sent in turns; --model replaces their models, --stream their stream.",
)
@click.option("--rate", type=_POSITIVE, default=50.0, show_default=True, help="Calls per second.")
@click.option("--seconds", type=_POSITIVE, default=10.0, show_default=True)
@click.option("--ramp", type=click.FloatRange(0), default=0.0, help="Seconds in which the rate grows from 0.")
@click.option("--stream", is_flag=True, help="Request streamed responses.")
@click.option("--dialect", type=click.Choice(list(DIALECTS)), default=DEFAULT_DIALECT, show_default=True)
@click.option("--key", envvar="LLM_GUARD_BENCH_KEY", help="API key to send. [env: LLM_GUARD_BENCH_KEY]")
@click.option("--timeout", type=_POSITIVE, default=60.0, show_default=True, help="Seconds.")
@click.option(
    "--compare",
    metavar="URL|FILE",
    help="A second URL that gets the same calls at the same time, or a run saved with --json.",
)
@click.option("--html", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Also write a page.")
@click.option(
    "--png",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Also write a picture of each call's latency; needs the extra `plots`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; with --compare URL a list of both.")
def bench(
    url: str, models: tuple[str, ...], payloads: Path | None, rate: float, seconds: float, ramp: float, stream: bool,
    dialect: DialectName, key: str | None, timeout: float, compare: str | None, html: Path | None, png: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Send calls to a gateway or provider at a fixed rate, and print success rate and latencies.

    Ctrl-C ends it early, with what has been measured.
    """
    if not models and payloads is None:
        raise click.UsageError("give --model, or --payloads with a model in each line")
    _check_files(html, png)
    earlier = None if compare is None or "://" in compare else _earlier(compare)
    try:
        bodies = () if payloads is None else read_payloads(payloads, needs_model=not models)
    except PayloadError as error:
        raise click.BadParameter(str(error), param_hint="--payloads") from None
    urls = [url] if compare is None or earlier is not None else [url, compare]
    plans = [
        LoadPlan(
            one, models, rate, seconds=seconds, ramp_s=ramp, stream=stream, dialect=dialect, timeout_s=timeout,
            headers={} if key is None else key_headers(key, dialect), payloads=bodies,
        )
        for one in urls
    ]  # fmt: skip
    with click.progressbar(length=sum(plan.planned() for plan in plans), label="calls", file=sys.stderr) as bar:
        runs = [LoadRun(plan, lambda _ended, _planned: bar.update(1)) for plan in plans]
        is_whole = _send_all(runs)
    results = [one.result() for one in runs]
    sides = [
        Measured(one, _rows(result.as_dict()), done) for one, result, done in zip(urls, results, runs, strict=True)
    ]
    if compare is not None and earlier is not None:
        sides.append(Measured(compare, _rows(earlier), None))
    if as_json:
        found = [{"url": one, **result.as_dict()} for one, result in zip(urls, results, strict=True)]
        click.echo(json.dumps(found if len(found) > 1 else found[0], indent=2))
    else:
        _show(sides)
    _write_files(sides, html, png)
    late_s = max(result.sent_late_s for result in results)
    if late_s > _LATE_S:
        click.echo(
            f"calls were sent up to {late_s:.1f} s late, latencies are too long by as much: lower --rate", err=True
        )
    if not is_whole:
        click.echo("interrupted: calls that were on their way are not counted", err=True)
    sys.exit(0 if is_whole and results[0].ok else 1)


def _check_files(html: Path | None, png: Path | None) -> None:
    """Raises BadParameter if one of the files could not be written."""
    for option, file in (("--html", html), ("--png", png)):
        if file is not None and not file.parent.is_dir():
            raise click.BadParameter(f"there is no directory {file.parent}", param_hint=option)
    if png is not None and not can_draw():
        raise click.BadParameter(MISSING, param_hint="--png")


def _write_files(sides: Sequence[Measured], html: Path | None, png: Path | None) -> None:
    if html is not None:
        html.write_text(page_of(sides), encoding="utf-8")
        click.echo(f"page: {html}", err=True)
    if png is not None:
        draw(sides, png)
        click.echo(f"picture: {png}", err=True)


def _earlier(file: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
        _rows(found)
    except OSError as error:
        raise click.BadParameter(f"neither a URL nor a file: {error}", param_hint="--compare") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise click.BadParameter(
            f"{file} is not what bench --json printed for one run", param_hint="--compare"
        ) from None
    return found


def _send_all(runs: Sequence[LoadRun]) -> bool:
    """Returns False if the user interrupted it."""

    async def all_of_them() -> None:
        await asyncio.gather(*(one.send_all() for one in runs))

    try:
        run(all_of_them())
    except KeyboardInterrupt:
        return False
    return True


def _rows(result: Mapping[str, Any]) -> dict[str, str]:
    """Returns what is shown of a result, as `LoadResult.as_dict` gives it, by name."""
    rows = {
        "calls": f"{result['calls']} in {result['duration_s']:.1f} s",
        "succeeded": f"{result['success_share']:.2%}",
    }
    for name, times in (("latency", result["latency"]), ("first token", result["first_token"])):
        if times["count"]:
            rows |= {f"{name} {share}": f"{times[share]:.3f} s" for share in ("p50", "p90", "p99", "max")}
    if result["attempts_per_call"] is not None:
        rows["attempts per call"] = f"{result['attempts_per_call']:.2f}"
    if result["output_tokens"]:
        rows["output tokens"] = f"{result['output_tokens'] / result['calls']:.1f} per call"
    return rows | {name: str(count) for name, count in sorted(result["errors"].items())}


def _show(sides: Sequence[Measured]) -> None:
    widths = [max(len(side.name), *map(len, side.rows.values())) + 3 for side in sides]
    if len(sides) > 1:
        click.echo(
            f"{'':20}" + "".join(f"{side.name:{width}}" for side, width in zip(sides, widths, strict=True)).rstrip()
        )
    for name in dict.fromkeys(name for side in sides for name in side.rows):
        cells = (f"{side.rows.get(name, '-'):{width}}" for side, width in zip(sides, widths, strict=True))
        click.echo(f"{name:20}" + "".join(cells).rstrip())
