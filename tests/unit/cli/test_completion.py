"""`llm-guard completion`: the scripts, their places, and what a shell gets."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from llm_guard.cli.completion_command import place
from llm_guard.cli.main import main
from tests.tools import need

FILES = {
    "bash": ".local/share/bash-completion/completions/llm-guard",
    "zsh": ".zfunc/_llm-guard",
    "fish": ".config/fish/completions/llm-guard.fish",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize("shell", FILES)
def test_script_is_printed_or_installed(shell: str, home: Path) -> None:
    printed = CliRunner().invoke(main, ["completion", shell])
    assert printed.exit_code == 0, printed.output
    assert f"_LLM_GUARD_COMPLETE={shell}_complete" in printed.stdout
    installed = CliRunner().invoke(main, ["completion", shell, "--install"])
    assert installed.exit_code == 0, installed.output
    assert (home / FILES[shell]).read_text() == printed.stdout
    assert str(home / FILES[shell]) in installed.output
    assert ("fpath=" in installed.output) == (shell == "zsh")


@pytest.mark.parametrize("shell", FILES)
def test_shell_can_read_its_script(shell: str, tmp_path: Path) -> None:
    program = need(shell)
    script = tmp_path / "script"
    script.write_text(CliRunner().invoke(main, ["completion", shell]).stdout)
    subprocess.run([program, "-n", str(script)], check=True)


def test_folders_of_the_environment_are_used(home: Path) -> None:
    env = {"XDG_DATA_HOME": "/data", "XDG_CONFIG_HOME": "/config"}
    assert place("bash", env, home) == Path("/data/bash-completion/completions/llm-guard")
    assert place("fish", env, home) == Path("/config/fish/completions/llm-guard.fish")


def test_folder_that_cannot_be_written_is_reported(home: Path) -> None:
    (home / ".zfunc").write_text("")
    refused = CliRunner().invoke(main, ["completion", "zsh", "--install"])
    assert refused.exit_code == 1
    assert f"{home}/.zfunc/_llm-guard cannot be written: File exists" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "incomplete", "expected"),
    [([], "comp", ["completion"]), (["completion"], "", ["bash", "zsh", "fish"]), (["check"], "--st", ["--strict"])],
)
def test_completions_are_those_of_the_commands(arguments: list[str], incomplete: str, expected: list[str]) -> None:
    found = ShellComplete(main, {}, "llm-guard", "_LLM_GUARD_COMPLETE").get_completions(arguments, incomplete)
    assert [item.value for item in found] == expected
