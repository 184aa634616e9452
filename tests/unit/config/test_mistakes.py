"""Each mistake of the table gets exactly its message."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from llm_guard.cli.main import main
from tests.unit.config.mistakes import ERRORS, VALID, WARNINGS, Mistake

each_mistake = pytest.mark.parametrize("mistake", [*ERRORS, *WARNINGS], ids=lambda mistake: mistake.name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("A_KEY", "sk-a")
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    return tmp_path


def check(text: str, *options: str) -> tuple[int, list[str]]:
    """Runs the command on a file of this text. Returns its exit code and the lines of its standard error."""
    path = Path("f.yaml")
    path.write_text(text)
    path.chmod(0o600)
    done = CliRunner().invoke(main, ["check", "-c", str(path), *options])
    return done.exit_code, done.stderr.splitlines()


def test_table_is_large() -> None:
    assert len(ERRORS) + len(WARNINGS) >= 40
    names = [mistake.name for mistake in (*ERRORS, *WARNINGS)]
    assert len(set(names)) == len(names)


@each_mistake
def test_mistake_gets_its_message(mistake: Mistake, folder: Path) -> None:
    code, lines = check(mistake.text, "--strict")
    expected = f"f.yaml:{mistake.message.replace('{folder}', str(folder))}"
    assert (code, lines[0].removeprefix("error: ")) == (2, expected)
    assert len(lines) == (2 if mistake in WARNINGS else 1)


@pytest.mark.parametrize("mistake", WARNINGS, ids=lambda mistake: mistake.name)
def test_usual_check_only_warns(mistake: Mistake, folder: Path) -> None:
    code, lines = check(mistake.text)
    assert code == 0
    assert lines[0].startswith(f"warning: f.yaml:{mistake.message[:1]}: ")


def test_table_begins_with_a_config_without_mistakes(folder: Path) -> None:
    assert check(VALID, "--strict") == (0, [])
