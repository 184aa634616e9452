"""The command line: serve, init, check, doctor, chaos, schema, completion, login, explain, classify, mock,
demo, bench.

Exit codes: 0 for success, 1 if the command could not run or failed, 2 for an invalid config or invalid arguments.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from llm_guard.admin.http.operator_token import Generated
from llm_guard.app import create_app
from llm_guard.cli import classify_report
from llm_guard.cli.command_group import CommandGroup
from llm_guard.cli.config_option import config_option, load
from llm_guard.cli.login_command import first_link
from llm_guard.cli.program_name import called
from llm_guard.clock import SystemClock
from llm_guard.config import CommandLineOverrides, Config, ConfigError, worker_count
from llm_guard.event_loop import calm_collector, run
from llm_guard.log import LEVEL_NUMBERS, LevelName, LogFormat, configure_logging
from llm_guard.version import full_version


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
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
        click.echo(f"dashboard: {link} (once, within 10 minutes)\nnew link: {called()} login -c {path}", err=True)


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
