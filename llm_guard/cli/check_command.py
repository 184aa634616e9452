"""`llm-guard check`: validates a config, prints what it does, and warns of settings that are rarely intended.

Exit codes: 0 for a valid config, 2 for an invalid one, and for warnings with --strict.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from llm_guard.cli.config_option import config_option, load
from llm_guard.cli.restart_summary import restart_schedule
from llm_guard.cli.store_problems import store_problems
from llm_guard.cli.translation_notes import form_notes, translation_notes, translation_table
from llm_guard.clock import SystemClock
from llm_guard.config import Config, ConfigProblem, located, warnings_of, worker_count
from llm_guard.config_files import expiry_warnings
from llm_guard.storage.state_dir import state_folder
from llm_guard.upstreams.probes.targets import probe_descriptions


@click.command()
@config_option
@click.option("--strict", is_flag=True, help="Treat warnings as errors: exit with 2 if there is one.")
@click.option("--translation", is_flag=True, help="Also print what translated calls lose, field by field.")
@click.option("--online", is_flag=True, help="Also connect to the store of the fleet, two seconds at most.")
def check(path: Path, strict: bool, translation: bool, online: bool) -> None:
    """Validate a config file; print its models, probes, engine restarts and warnings."""
    config = load(path)
    _show_models(config)
    for line in (*probe_descriptions(config), *translation_notes(config), *form_notes(config)):
        click.echo(line)
    for line in translation_table() if translation else ():
        click.echo(line)
    for upstream, settings in config.upstreams.items():
        if settings.stream_end == "lenient":
            click.echo(f"upstreams.{upstream}.stream_end: lenient: streams without a finish_reason count as complete")
    if (setting := config.server.workers) != 1:
        click.echo(
            f"server.workers: {worker_count(setting)} processes; each has its own learned rates, cooldowns, retry "
            "budgets and coalescing, and its own server.max_buffered, max_spool and max_connections"
        )
    for name, engine in config.engines.items():
        click.echo("\n".join(restart_schedule(name, engine)))
    found = [*map(str, _warnings(config, path)), *(_look_at_store(config) if online else ())]
    for warning in found:
        click.echo(f"{'error' if strict else 'warning'}: {warning}", err=True)
    if found and strict:
        click.echo(f"{path}: valid, but refused by --strict (warnings: {len(found)})", err=True)
        sys.exit(2)
    click.echo(f"{path}: valid (models: {len(config.models)}, upstreams: {len(config.upstreams)})")


def _look_at_store(config: Config) -> list[str]:
    """Prints what is found of the fleet's store, and returns what is wrong with it."""
    from llm_guard.assembly import describe_store  # noqa: PLC0415  # loads the whole gateway
    from llm_guard.storage.shared.exchange_store import StoreUnavailable  # noqa: PLC0415  # only needed with --online

    if (fleet := config.fleet) is None:
        click.echo("fleet: none, this gateway is alone")
        return []
    try:
        store = asyncio.run(describe_store(fleet))
    except StoreUnavailable as error:
        return [f"fleet.store: does not answer ({error}): each gateway works alone"]
    click.echo(
        f"fleet {fleet.name}: Redis {store.version} answers in {store.took_s * 1e3:.1f} ms, maxmemory-policy "
        f"{store.eviction}; gateways there now: {store.replicas}"
    )
    keeps_calls = config.store.calls.kind == "redis"
    return [
        f"fleet.store: {problem}: {remedy}" for problem, remedy, _ in store_problems(store, keeps_calls=keeps_calls)
    ]


def _show_models(config: Config) -> None:
    rows = [("model", "deployments", "fallbacks", "attempt timeout", "total timeout", "max attempts")]
    for name, model in config.models.items():
        asks = ", ".join(f"{deployment.upstream}/{deployment.model or name}" for deployment in model.deployments)
        attempt_s = model.timeout.attempt_s(is_client_timeout_known=False)
        limits = f"{attempt_s:g}s", f"{model.timeout.total:g}s", str(model.retry.max_attempts)
        rows.append((name, asks, ", ".join(model.fallbacks) or "-", *limits))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _warnings(config: Config, path: Path) -> list[ConfigProblem]:
    expiries = expiry_warnings(config, SystemClock().wall())
    return located([*warnings_of(config, path, _state_folder(config)), *expiries], path)


def _state_folder(config: Config) -> Path | None:
    try:
        return state_folder(config.ops.store, os.environ)
    except OSError:
        return None
