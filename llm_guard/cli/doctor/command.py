"""`llm-guard doctor`: asks each upstream, the fleet's store and the receivers whether they would work with a config.

Exit codes: 0 if nothing has failed, 1 if something has, or with --strict if there is a warning; 2 for an invalid
config.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import click

from llm_guard.cli.config_option import config_option, load
from llm_guard.cli.doctor.calls import MOST_CALLS
from llm_guard.cli.doctor.findings import CheckResult, Report, Verdict
from llm_guard.cli.doctor.services import addresses, check_address, check_store
from llm_guard.cli.doctor.upstreams import UpstreamDoctor
from llm_guard.cli.doctor.wanted import WantedModels, wanted_by_upstream
from llm_guard.clock import SystemClock
from llm_guard.config import Config, KeyPath
from llm_guard.config_files import ConfigFiles
from llm_guard.event_loop import run
from llm_guard.proxy.http_client.connection_pool import ConnectionPool
from llm_guard.routing.route_table import compile_routes
from llm_guard.tls import system_context
from llm_guard.upstreams.credentials.registry import UpstreamCredentials

_SHOWN: Mapping[Verdict, tuple[str, str]] = {
    "ok": ("ok", "green"), "warning": ("warning", "yellow"), "failed": ("FAILED", "red"),
    "skipped": ("skipped", "cyan"),
}  # fmt: skip
_AT_ONCE = 8


@click.command()
@config_option
@click.option("--calls", is_flag=True, help="Also send three small calls for each model, one streamed: they cost.")
@click.option("--key", envvar="LLM_GUARD_DOCTOR_KEY", help="Key for upstreams that pass on their callers'.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True, help="Seconds.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def doctor(path: Path, calls: bool, key: str | None, timeout: float, strict: bool, as_json: bool) -> None:
    """Ask everything that a config names whether it would work: name, connection, certificate, key, models, store,
    receivers. Without --calls nothing is sent that costs."""
    config = load(path)
    wanted = wanted_by_upstream(config)
    count = MOST_CALLS * sum(len(one.models) for one in wanted.values())
    cost = f"sends at most {count} calls" if calls else f"sends nothing that costs (--calls: at most {count} calls)"
    click.echo(f"{path}: {len(config.upstreams)} upstreams; {cost}", err=True)
    show = (lambda _report: None) if as_json else _show
    reports: list[Report] = []
    run(_examine(config, path, wanted, calls, key, timeout, show, reports))
    results = [result for report in reports for result in report.results]
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results], indent=2))
    sys.exit(_verdict_on(results, strict))


async def _examine(
    config: Config,
    path: Path,
    wanted: Mapping[str, WantedModels],
    allows_calls: bool,
    key: str | None,
    timeout_s: float,
    show: Callable[[Report], None],
    reports: list[Report],
) -> None:
    """Runs all checks, a few at once, and shows each report in the order of the config."""
    clock, turns = SystemClock(), asyncio.Semaphore(_AT_ONCE)

    async def in_turn(check: Awaitable[Report | None]) -> Report | None:
        async with turns:
            return await check

    async with _connections(config, path, clock) as (connections, contexts, files, credentials):
        table = compile_routes(config, clock.now(), key_files=files.keys.pools)
        credentials.adopt(table.upstreams)
        checks: list[Awaitable[Report | None]] = [
            UpstreamDoctor(
                upstream,
                wanted[name],
                connections,
                contexts.get(name, system_context()),
                clock,
                timeout_s,
                key,
                credentials.problem_of,
            ).run(allows_calls=allows_calls)
            for name, upstream in table.upstreams.items()
        ]
        checks.append(check_store(config))
        checks += [check_address(place, url, timeout_s) for place, url in addresses(config)]
        for running in [asyncio.ensure_future(in_turn(check)) for check in checks]:
            if (report := await running) is not None:
                reports.append(report)
                show(report)


@asynccontextmanager
async def _connections(
    config: Config, path: Path, clock: SystemClock
) -> AsyncIterator[tuple[ConnectionPool, Mapping[str, ssl.SSLContext], ConfigFiles, UpstreamCredentials]]:
    """Yields connections as the gateway would make them, the TLS contexts of upstreams that have their own, the files
    that the config names, and the credentials of clouds."""
    connections, contexts = ConnectionPool(), dict[str, ssl.SSLContext]()
    credentials = UpstreamCredentials(connections, clock, lambda: 0.0, is_logged=False)

    def use(place: KeyPath, context: ssl.SSLContext | None) -> None:
        if place[0] == "upstreams" and context is not None:
            contexts[str(place[1])] = context
            connections.trust(str(place[1]), context)

    files = ConfigFiles(clock, use)
    files.prepare(config, path)
    files.adopt(config)
    try:
        yield connections, contexts, files, credentials
    finally:
        await credentials.stop()
        await files.stop()
        await connections.close()


def _show(report: Report) -> None:
    click.echo(click.style(report.place, bold=True))
    for result in report.results:
        word, color = _SHOWN[result.verdict]
        name = f"{result.check} {result.model}".rstrip()
        line = f"  {click.style(f'{word:8}', fg=color)} {name}: {result.detail}"
        click.echo(f"{line}\n{'':11}{result.remedy}" if result.remedy else line)


def _verdict_on(results: Iterable[CheckResult], strict: bool) -> int:
    """Prints the sum to standard error, and returns the exit code."""
    counts = {verdict: sum(result.verdict == verdict for result in results) for verdict in _SHOWN}
    click.echo(", ".join(f"{verdict}: {count}" for verdict, count in counts.items()), err=True)
    return int(counts["failed"] > 0 or (strict and counts["warning"] > 0))
