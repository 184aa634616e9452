"""`llm-guard completion`: prints or installs the completion of commands and options for a shell.

Exit codes: 0 success, 1 the file cannot be written, 2 wrong arguments.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click
from click.shell_completion import get_completion_class

_COMMAND = "llm-guard"
_VARIABLE = "_LLM_GUARD_COMPLETE"
"""The variable that click derives from the command's name."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--install", is_flag=True, help="Write the script to the shell's folder for completions of this user.")
@click.pass_context
def completion(context: click.Context, shell: str, install: bool) -> None:
    """Print the script that completes commands and options in a shell.

    \b
      source <(llm-guard completion bash)    in this shell only
      llm-guard completion bash --install    for every new shell
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.BadParameter("has no completion in this version of click", param_hint="SHELL")
    script = kind(context.find_root().command, {}, _COMMAND, _VARIABLE).source()
    if not install:
        click.echo(script)
        return
    path = place(shell, os.environ, Path.home())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script + "\n", encoding="utf-8")
    except OSError as error:
        click.echo(f"{path} cannot be written: {error.strerror}", err=True)
        sys.exit(1)
    click.echo(f"{path} is written. New shells complete {_COMMAND}.")
    if shell == "zsh":
        click.echo(f"Add this line to ~/.zshrc, before compinit: fpath=({path.parent} $fpath)")


def place(shell: str, env: Mapping[str, str], home: Path) -> Path:
    """Returns the file in which a shell looks for this command's completion. zsh has no folder of its own for users."""
    match shell:
        case "bash":
            data = Path(env.get("XDG_DATA_HOME") or home / ".local" / "share")
            return data / "bash-completion" / "completions" / _COMMAND
        case "fish":
            config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
            return config / "fish" / "completions" / f"{_COMMAND}.fish"
        case _:
            return home / ".zfunc" / f"_{_COMMAND}"
