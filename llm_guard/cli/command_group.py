"""The commands by name. Imports the module of a command when the command is used or listed: the gateway starts without
those of the others, a tenth of what it imports."""

from __future__ import annotations

from importlib import import_module

import click

_MODULES = {
    "bench": "llm_guard.cli.bench.command",
    "chaos": "llm_guard.cli.chaos.command",
    "check": "llm_guard.cli.check_command",
    "completion": "llm_guard.cli.completion_command",
    "demo": "llm_guard.cli.demo_command",
    "doctor": "llm_guard.cli.doctor.command",
    "explain": "llm_guard.cli.explain_command",
    "init": "llm_guard.cli.init_command",
    "login": "llm_guard.cli.login_command",
    "mock": "llm_guard.cli.mock_command",
    "schema": "llm_guard.cli.schema_command",
}
"""Module of each command that is not the group's own; the command's object has the command's name."""


class CommandGroup(click.Group):
    """A group with its own commands and those of `_MODULES`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(_MODULES[cmd_name]), cmd_name)
        return command
