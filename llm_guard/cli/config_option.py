"""The option for the config file, its default, and its loading, for commands that need a valid one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from llm_guard.config import Config, ConfigError
from llm_guard.config_files import load_with_files

VARIABLE = "LLM_GUARD_CONFIG"
USUAL = Path("llm_guard.yaml")
_WHERE = f"[default: {VARIABLE}, or {USUAL} in this folder]"


def default_path() -> Path | None:
    """Returns the file that LLM_GUARD_CONFIG names, else llm_guard.yaml in the working directory if there is one."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    return USUAL if USUAL.exists() else None


def _needed(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> Path:
    found = path or default_path()
    if found is None:
        remedy = f"give -c FILE, set {VARIABLE}, or write one with `llm-guard init`"
        raise click.UsageError(f"there is no {USUAL} in this folder: {remedy}")
    return found


config_option = click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path),
    callback=_needed,
    help=f"The config file (YAML). {_WHERE}",
)
optional_config_option = click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help=f"The gateway's config file, for its address and token. {_WHERE}",
)


def load(path: Path) -> Config:
    """Loads a config and the files that it names. Prints all problems and exits with 2 if it is invalid."""
    try:
        return load_with_files(path)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
