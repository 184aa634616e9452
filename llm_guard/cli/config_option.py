"""The option for the config file, and its loading, for commands that need a valid one."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from llm_guard.config import Config, ConfigError
from llm_guard.config_files import load_with_files

config_option = click.option(
    "-c", "--config", "path", required=True, type=click.Path(path_type=Path), help="The config file (YAML)."
)


def load(path: Path) -> Config:
    """Loads a config and the files that it names. Prints all problems and exits with 2 if it is invalid."""
    try:
        return load_with_files(path)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
