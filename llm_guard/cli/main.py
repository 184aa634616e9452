"""The command line: serve, init, check, doctor, chaos, schema, completion, login, explain, classify, mock,
demo, bench.

Exit codes: 0 for success, 1 if the command could not run or failed, 2 for an invalid config or invalid arguments.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import structlog

from llm_guard.admin.http.operator_token import Generated
from llm_guard.app import create_app
from llm_guard.cli import classify_report
from llm_guard.cli import demo as scenes
from llm_guard.cli.bench.command import bench
from llm_guard.cli.chaos.command import chaos
from llm_guard.cli.check_command import check
from llm_guard.cli.completion_command import completion
from llm_guard.cli.config_option import config_option, load
from llm_guard.cli.direct import without_proxies
from llm_guard.cli.doctor.command import doctor
from llm_guard.cli.explain_command import explain as explain_call
from llm_guard.cli.init_command import init
from llm_guard.cli.login_command import first_link, login
from llm_guard.cli.schema_command import schema
from llm_guard.clock import SystemClock
from llm_guard.config import CommandLineOverrides, Config, ConfigError, worker_count
from llm_guard.event_loop import calm_collector, run
from llm_guard.log import LEVEL_NUMBERS, LevelName, LogFormat, configure_logging
from llm_guard.mock.provider import MockProvider
from llm_guard.version import full_version


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(full_version(), prog_name="llm-guard")
def main() -> None:
    """A resilience proxy for LLM calls: point your SDK's base_url at it."""


@main.command()
@config_option
@click.option("--host", help="Overrides server.host.")
@click.option("--port", type=click.IntRange(0, 65535), help="Overrides server.port; 0 takes a free port.")
@click.option("--log-format", type=click.Choice(["json", "console"]), help="Overrides ops.log.format.")
@click.option("--log-level", type=click.Choice(list(LEVEL_NUMBERS)), help="Overrides ops.log.level.")
def serve(
    path: Path, host: str | None, port: int | None, log_format: LogFormat | None, log_level: LevelName | None
) -> None:
    """Run the gateway."""
    config = load(path)
    changes = CommandLineOverrides({"host": host, "port": port}, {"format": log_format, "level": log_level})
    log = configure_logging(changes.applied(config).ops.log.format)
    try:
        run(_serve(config, path, changes))
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except OSError as error:
        where = f"{host or config.server.host}:{config.server.port if port is None else port}"
        click.echo(f"llm-guard cannot listen on {where}: {error}", err=True)
        sys.exit(1)
    finally:
        log.close()


async def _serve(config: Config, path: Path, changes: CommandLineOverrides) -> None:
    if (workers := worker_count(config.server.workers)) > 1:
        await _serve_with_workers(workers, config, path, changes)
        return
    app = create_app(config, path=path, adapt=changes.applied)
    await app.start()
    calm_collector()
    app.handle_signals()  # before the line that announces readiness
    click.echo(f"llm-guard {full_version()} listens on {' and '.join(app.addresses)}", err=True)
    _show_link(app.addresses[-1], app.operator_token.generated, path)
    await app.run()


async def _serve_with_workers(workers: int, config: Config, path: Path, changes: CommandLineOverrides) -> None:
    from llm_guard.workers.parent import ParentProcess  # noqa: PLC0415  # loaded only with several workers

    parent = ParentProcess(changes.applied(config), path, changes, workers)
    await parent.start()
    calm_collector()
    parent.handle_signals()
    addresses = " and ".join(parent.addresses)
    click.echo(f"llm-guard {full_version()} listens on {addresses} with {workers} workers", err=True)
    _show_link(parent.addresses[-1], parent.operator_token.generated, path)
    await parent.run()


def _show_link(address: str, token: Generated | None, path: Path) -> None:
    """Prints a link to the dashboard on a terminal, at the first start."""
    if sys.stderr.isatty() and (link := first_link(address, token)):
        click.echo(f"dashboard: {link} (once, within 10 minutes)\nnew link: {_called()} login -c {path}", err=True)


main.add_command(init)
main.add_command(check)
main.add_command(doctor)
main.add_command(chaos)
main.add_command(explain_call)
main.add_command(login)
main.add_command(schema)
main.add_command(completion)
main.add_command(bench)


@main.command()
@click.option("--jsonl", is_flag=True, help="Read one JSON error a line from standard input; write a line for each.")
@click.option("--status", type=click.IntRange(100, 999), help="HTTP status of the response. [default: no response]")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="A response header; repeatable.")
@click.option("--provider", default="", help="Name or base_url of the provider, if the error alone does not show it.")
@click.option("--body", help="The response body, or the HTTP client's error message. [default: standard input]")
def classify(jsonl: bool, status: int | None, headers: tuple[str, ...], provider: str, body: str | None) -> None:
    """Classify a provider's error: what it means, how the gateway reacts, and why.

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
@click.option("--port", type=click.IntRange(0, 65535), default=9009, show_default=True, help="0 takes a free port.")
@click.option("--seed", default=0, show_default=True, help="The same seed and requests get the same faults.")
@click.option("--tokens", type=click.IntRange(1), default=8, show_default=True, help="Tokens in each response.")
@click.option("--latency-ms", type=click.FloatRange(0), default=0.0, show_default=True, help="Before response headers.")
@click.option("--token-delay-ms", type=click.FloatRange(0), default=0.0, show_default=True, help="Before each token.")
def mock(host: str, port: int, seed: int, tokens: int, latency_ms: float, token_delay_ms: float) -> None:
    """Run a mock provider with faults on request.

    Faults are appended to the model's name with +, or listed in the header x-mock-fault:

    \b
      gpt-4o+status:503@10%          503 for 10 % of the requests
      gpt-4o+status:429:2            429 with a Retry-After of 2 s
      gpt-4o+latency:50ms~20ms       slow response headers
      gpt-4o+silence  +headers       no response at all; headers, then nothing
      gpt-4o+reset  +close           the connection ends without a response
      gpt-4o+cut:3  +stall:3         a stream is cut, or falls silent, after 3 tokens
      gpt-4o+error:0                 an error event in a 200, before the first token
      gpt-4o+truncated  +malformed:2 broken JSON
      gpt-4o+limit:40/s              a rate limit; +limit:40/s:bare sends no Retry-After
      gpt-4o+quota                   a spent quota
      gpt-4o+capacity:20             20 requests at once, the rest wait
      gpt-4o+noprefill               a request that ends in an assistant message is refused
      gpt-4o+overlap:3               a continuation repeats the last 3 words of the text
      gpt-4o+another@50%             generates another text

    While it runs, POST /mock/faults {"model": "gpt-4o", "faults": "status:503@40%"} sets a model's faults ("" clears
    them; "/health" as the model means the health page), and GET /mock/stats returns request counts
    and the times of the latest requests.
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
    # The kernel ignores SIGTERM for a process 1 without a handler, so that a container would have to be killed.
    is_told_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_told_to_stop.set)
    click.echo(f"mock provider listens on {await provider.start(host, port)}", err=True)
    try:
        await is_told_to_stop.wait()
    finally:
        await provider.stop()


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the gateway. [default: a free port]")
@click.option("--stay", is_flag=True, help="Keep serving after the last scenario, until Ctrl-C.")
def demo(host: str, port: int, stay: bool) -> None:
    """Compare calls to a faulty provider with and without the gateway. Needs no API key and no network."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        # The folder keeps the user's own audit trail clean.
        with without_proxies(), TemporaryDirectory(prefix="llm-guard-demo-") as store:
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
        results = await scenes.play(provider, app, _show_scene)
        click.echo(
            "\nclients succeed: calling the provider directly -> through llm_guard, nothing changed but base_url"
        )
        if stay:
            click.echo("\nThe faults have ended; calls go on until the gateway is healthy again ...", nl=False)
            click.echo(" it is." if await scenes.recover(provider, app) else " it is not: the dashboard says why.")
            app.ops.overview.notice = scenes.notice(results)
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
    browser = f"{link} (once, within 10 minutes)" if link else f"{address}/dashboard, with the token in {file}"
    return f"""
The gateway listens on {address}, with the mock provider behind it. Try it:

  curl {address}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "gpt-4o", "messages": [{{"role": "user", "content": "hello"}}]}}'

  curl {address}/metrics
  LLM_GUARD_OPS_TOKEN="$(cat {file})" {command} explain --url {address}

Dashboard: {browser}
Press Ctrl-C to stop."""


def _called() -> str:
    """Returns the command that runs this program, for a shell in the same directory: a clone has no `llm-guard`."""
    if Path(sys.argv[0]).name != "__main__.py":
        return shlex.quote(sys.argv[0])
    python = Path(sys.executable)
    shown = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    return f"{shlex.quote(str(shown))} -m llm_guard"
