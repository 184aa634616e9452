"""The command line: serve, check, login, explain, classify, mock, demo, bench.

Exit codes: 0 for success, 1 if the command could not run or failed, 2 for an invalid config or invalid arguments.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import click
import structlog

from llm_guard.admin.http.operator_token import Generated
from llm_guard.app import calm_collector, create_app, run
from llm_guard.cli import classify_report
from llm_guard.cli import demo as scenes
from llm_guard.cli.explain_command import explain as explain_call
from llm_guard.cli.login_command import first_link, login
from llm_guard.cli.restart_summary import restart_schedule
from llm_guard.clock import SystemClock
from llm_guard.config import Config, ConfigError, warnings_of
from llm_guard.config_files import expiry_warnings, load_with_files
from llm_guard.log import LEVEL_NUMBERS, LevelName, LogFormat, configure_logging
from llm_guard.mock.load import LoadPlan, run_load
from llm_guard.mock.load_result import LoadResult
from llm_guard.mock.provider import MockProvider
from llm_guard.storage.state_dir import state_folder
from llm_guard.upstreams.probes.targets import probe_descriptions
from llm_guard.version import full_version


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(full_version(), prog_name="llm-guard")
def main() -> None:
    """A resilience proxy for LLM calls: point your SDK's base_url at it."""


_config_option = click.option(
    "-c", "--config", "path", required=True, type=click.Path(path_type=Path), help="The YAML file."
)


@main.command()
@_config_option
@click.option("--host", help="Instead of server.host.")
@click.option("--port", type=click.IntRange(0, 65535), help="Instead of server.port; 0 takes a free one.")
@click.option("--log-format", type=click.Choice(["json", "console"]), help="Instead of ops.log.format.")
@click.option("--log-level", type=click.Choice(list(LEVEL_NUMBERS)), help="Instead of ops.log.level.")
def serve(
    path: Path, host: str | None, port: int | None, log_format: LogFormat | None, log_level: LevelName | None
) -> None:
    """Run the gateway."""
    config = _load(path)
    changes = _Changes({"host": host, "port": port}, {"format": log_format, "level": log_level})
    log = configure_logging(changes.applied(config).ops.log.format)
    try:
        run(_serve(config, path, changes))
    except OSError as error:
        where = f"{host or config.server.host}:{config.server.port if port is None else port}"
        click.echo(f"llm-guard cannot listen on {where}: {error}", err=True)
        sys.exit(1)
    finally:
        log.close()


async def _serve(config: Config, path: Path, changes: _Changes) -> None:
    app = create_app(config, path=path, adapt=changes.applied)
    await app.start()
    calm_collector()
    app.handle_signals()  # before the line that announces readiness
    click.echo(f"llm-guard {full_version()} serves on {' and '.join(app.addresses)}", err=True)
    if sys.stderr.isatty() and (link := first_link(app.addresses[-1], app.operator_token.generated)):
        click.echo(f"the dashboard, within 10 minutes and once: {link}\nlater: {_called()} login -c {path}", err=True)
    await app.run()


@dataclass(frozen=True, slots=True)
class _Changes:
    """Overrides from the command line."""

    server: Mapping[str, object]
    log: Mapping[str, object]

    def applied(self, config: Config) -> Config:
        log = config.ops.log.model_copy(update=_given(self.log))
        server, ops = config.server.model_copy(update=_given(self.server)), config.ops.model_copy(update={"log": log})
        return config.model_copy(update={"server": server, "ops": ops})


def _given(options: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


main.add_command(explain_call)
main.add_command(login)


@main.command()
@_config_option
def check(path: Path) -> None:
    """Validate a config file; print its routes, and how its engines are brought back."""
    config = _load(path)
    rows = [("model", "asks", "then", "attempt", "total", "attempts")]
    for name, model in config.models.items():
        asks = ", ".join(f"{each.upstream}/{each.model or name}" for each in model.deployments)
        attempt_s = model.timeout.attempt_s(is_client_timeout_known=False)
        limits = f"{attempt_s:g}s", f"{model.timeout.total:g}s", str(model.retry.max_attempts)
        rows.append((name, asks, ", ".join(model.fallbacks) or "-", *limits))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for line in probe_descriptions(config):
        click.echo(line)
    for upstream, settings in config.upstreams.items():
        if settings.stream_end == "lenient":
            click.echo(f"upstreams.{upstream}.stream_end: lenient: a stream without a finish_reason passes as whole")
    for name, engine in config.engines.items():
        click.echo("\n".join(restart_schedule(name, engine)))
    expiries = expiry_warnings(config, SystemClock().wall())
    for warning in (*warnings_of(config, path, _state_folder(config)), *expiries):
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{path}: well, {len(config.models)} models on {len(config.upstreams)} upstreams")


def _state_folder(config: Config) -> Path | None:
    try:
        return state_folder(config.ops.store, os.environ)
    except OSError:
        return None


@main.command()
@click.option("--jsonl", is_flag=True, help="Read many errors, a JSON object a line, and answer with one a line.")
@click.option("--status", type=click.IntRange(100, 999), help="HTTP status of the answer; left out: there was none.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="May be given more than once.")
@click.option("--provider", default="", help="Its name or its base_url, where the error alone does not tell.")
@click.option("--body", help="What was answered, or what the HTTP client said; standard input by default.")
def classify(jsonl: bool, status: int | None, headers: tuple[str, ...], provider: str, body: str | None) -> None:
    """Explain a provider's error: what it means, what the gateway does about it, and why.

    \b
      curl -s ... | llm-guard classify --status 429 --provider openai
      llm-guard classify --jsonl < errors.jsonl
    """
    wall = SystemClock().wall()
    if jsonl:
        for line in classify_report.report_lines((line.decode("utf-8", "replace") for line in sys.stdin.buffer), wall):
            click.echo(line)
        return
    pairs = [header.partition(":") for header in headers]
    if any(not colon or not name.strip() for name, colon, _ in pairs):
        raise click.BadParameter("must be NAME:VALUE", param_hint="--header")
    record = {
        "provider": provider,
        "status": status,
        "headers": {name.strip(): value.strip() for name, _, value in pairs},
        "body": body if body is not None else sys.stdin.buffer.read().decode("utf-8", "replace"),
    }
    click.echo(classify_report.explanation(classify_report.evidence_of(record), wall))


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=9009, show_default=True, help="0 takes a free one.")
@click.option("--seed", default=0, show_default=True, help="The same seed and requests meet the same faults.")
@click.option("--tokens", type=click.IntRange(1), default=8, show_default=True, help="In each answer.")
@click.option("--latency-ms", type=click.FloatRange(0), default=0.0, show_default=True, help="Before every head.")
@click.option("--token-delay-ms", type=click.FloatRange(0), default=0.0, show_default=True, help="Before every token.")
def mock(host: str, port: int, seed: int, tokens: int, latency_ms: float, token_delay_ms: float) -> None:
    """Run a provider that misbehaves on request.

    Faults follow the model's name after a +, or stand in the header x-mock-fault:

    \b
      gpt-4o+status:503@10%          one call in ten is answered 503
      gpt-4o+status:429:2            429 with a Retry-After of 2 s
      gpt-4o+latency:50ms~20ms       a slow head
      gpt-4o+silence  +headers       no answer at all; headers, then nothing
      gpt-4o+reset  +close           the connection ends without an answer
      gpt-4o+cut:3  +stall:3         a stream is cut, or falls silent, after 3 tokens
      gpt-4o+error:0                 an error event in a 200, before the first token
      gpt-4o+truncated  +malformed:2 broken JSON
      gpt-4o+limit:40/s              a rate limit; +limit:40/s:bare does not tell when to come back
      gpt-4o+quota                   a spent quota
      gpt-4o+capacity:20             20 at once, the rest wait their turn
      gpt-4o+noprefill               a request that ends in an assistant message is refused
      gpt-4o+overlap:3               a continuation repeats the last 3 words of the answer
      gpt-4o+another@50%             says another text

    While it runs, POST /mock/faults {"model": "gpt-4o", "faults": "status:503@40%"} switches a model's faults ("" lifts
    them; "/health" stands for the health page), and GET /mock/stats counts the requests.
    """
    provider = MockProvider(seed, tokens, token_delay_ms / 1000, latency_ms / 1000)
    try:
        run(_mock(provider, host, port))
    except OSError as error:
        click.echo(f"llm-guard mock cannot listen on {host}:{port}: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        pass


async def _mock(provider: MockProvider, host: str, port: int) -> None:
    click.echo(f"a misbehaving provider listens on {await provider.start(host, port)}", err=True)
    try:
        await asyncio.Event().wait()
    finally:
        await provider.stop()


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The gateway's; a free one by default.")
@click.option("--stay", is_flag=True, help="Go on serving when the scenes are over, until Ctrl-C.")
def demo(host: str, port: int, stay: bool) -> None:
    """See the point: a misbehaving provider, with and without the gateway. No key, no network."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        with TemporaryDirectory(prefix="llm-guard-demo-") as store:  # keeps the user's own audit trail clean
            run(_demo(host, port, stay, store))
    except OSError as error:
        click.echo(f"the demo cannot listen on {host}:{port}: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        pass


async def _demo(host: str, port: int, stay: bool, store: str) -> None:
    provider, app = await scenes.start(host, port, store)
    try:
        click.echo(f"{'what the provider does':48}{'clients succeed':>18}{'p99':>8}   behind the gateway")
        await scenes.play(provider, app, _show_scene)
        click.echo(
            "\nclients succeed: calling the provider directly -> through llm_guard, nothing changed but base_url"
        )
        if stay:
            app.handle_signals()
            click.echo(_invitation(app.addresses[0], _called(), app.operator_token.generated))
            await app.run()
    finally:
        if not stay:
            await app.stop()
        await provider.stop()


def _show_scene(seen: scenes.SceneResult) -> None:
    direct, guarded = seen.direct.success_share, seen.guarded.success_share
    p99_s = (seen.guarded.latency if seen.guarded.ok else seen.guarded.failed_latency).p99
    per_call = seen.upstream_requests / seen.guarded.calls
    share = click.style(f"{guarded:6.0%}", fg="green" if guarded > direct else None, bold=True)
    click.echo(
        f"{seen.trouble:48}{direct:8.0%} -> {share}{p99_s * 1000:6.0f} ms   "
        f"{seen.upstream_requests} requests for {seen.guarded.calls} calls ({per_call:.2f} each)"
    )


def _invitation(address: str, command: str, token: Generated | None) -> str:
    file = token.file if token is not None else None
    link = first_link(address, token) if sys.stdout.isatty() else None
    browser = f"within 10 minutes and once: {link}" if link else f"{address}/dashboard, with the token in {file}"
    return f"""
The gateway serves on {address}, with the provider behind it. Try it:

  curl {address}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "gpt-4o", "messages": [{{"role": "user", "content": "hello"}}]}}'

  curl {address}/metrics
  LLM_GUARD_OPS_TOKEN="$(cat {file})" {command} explain --url {address}

In a browser, {browser}
Ctrl-C ends it."""


def _called() -> str:
    """Returns the command that runs this program, for a shell in the same directory: a clone has no `llm-guard`."""
    if Path(sys.argv[0]).name != "__main__.py":
        return shlex.quote(sys.argv[0])
    python = Path(sys.executable)
    shown = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    return f"{shlex.quote(str(shown))} -m llm_guard"


@main.command()
@click.option("--url", required=True, help="Base URL of a gateway or provider.")
@click.option("--model", "models", multiple=True, required=True, help="May be given more than once.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), default=50.0, show_default=True, help="Calls a second."
)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True)
@click.option("--stream", is_flag=True, help="Ask for streams.")
@click.option("--dialect", type=click.Choice(["openai", "anthropic"]), default="openai", show_default=True)
@click.option("--key", envvar="LLM_GUARD_BENCH_KEY", help="API key to send; or LLM_GUARD_BENCH_KEY.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, help="Seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def bench(
    url: str,
    models: tuple[str, ...],
    rate: float,
    seconds: float,
    stream: bool,
    dialect: Literal["openai", "anthropic"],
    key: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Load a gateway or a provider at a fixed rate, whatever it answers, and print what came of it."""
    headers = {} if key is None else {"authorization": f"Bearer {key}", "x-api-key": key}
    plan = LoadPlan(
        url, models, rate, seconds=seconds, stream=stream, dialect=dialect, headers=headers, timeout_s=timeout
    )
    with click.progressbar(length=plan.planned(), label="calls", file=sys.stderr) as bar:
        results: list[LoadResult] = []
        run(_bench(plan, bar.update, results))
    _show_load(results[0], as_json)
    sys.exit(0 if results[0].ok else 1)


async def _bench(plan: LoadPlan, advance: Callable[[int], None], results: list[LoadResult]) -> None:
    results.append(await run_load(plan, lambda _ended, _planned: advance(1)))


def _show_load(result: LoadResult, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result.as_dict(), indent=2))
        return
    click.echo(f"calls         {result.calls} in {result.duration_s:.1f} s, {result.success_share:.2%} succeeded")
    for name, times in (("latency", result.latency), ("first token", result.first_token)):
        if times.count:
            shares = ((share, getattr(times, share)) for share in ("p50", "p90", "p99", "max"))
            click.echo(f"{name:14}" + "   ".join(f"{share} {seconds:.3f} s" for share, seconds in shares))
    for outcome, count in sorted(result.errors.items()):
        click.echo(f"{outcome:14}{count}")


def _load(path: Path) -> Config:
    try:
        return load_with_files(path)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
