"""`llm-guard demo`: plays the scenes of `cli.demo` and prints their results.

Exit codes: 0 for success, 1 if the gateway or the mock provider cannot listen, 2 for invalid arguments.
"""

from __future__ import annotations

import logging
import sys
from tempfile import TemporaryDirectory

import click
import structlog

from llm_guard.admin.http.operator_token import Generated
from llm_guard.cli import demo as scenes
from llm_guard.cli.direct import without_proxies
from llm_guard.cli.login_command import first_link
from llm_guard.cli.program_name import called
from llm_guard.event_loop import run


@click.command()
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
            click.echo(_invitation(app.addresses[0], called(), app.operator_token.generated))
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
