"""The commands by name: each is there, whether its module is imported already or not."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from llm_guard.cli.main import main


def test_every_listed_command_is_found_by_its_name() -> None:
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name


@pytest.mark.parametrize("name", ["mock", "serve"])
def test_commands_of_the_group_and_of_other_modules_are_listed(name: str) -> None:
    assert f"\n  {name} " in CliRunner().invoke(main, ["--help"]).output


def test_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(main, ["serv"])
    assert result.exit_code == 2
    assert "No such command 'serv'" in result.output
