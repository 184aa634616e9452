"""The version that a gateway reports."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec

import pytest
from click.testing import CliRunner

from llm_guard import version
from llm_guard.cli import main as cli


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        ("/p/llm_guard/proxy/handler.py", version.__version__),
        (f"/p/llm_guard/proxy/handler{EXTENSION_SUFFIXES[0]}", f"{version.__version__}+compiled"),
        (None, version.__version__),
    ],
)
def test_version_states_how_the_call_path_was_built(
    monkeypatch: pytest.MonkeyPatch, origin: str | None, told: str
) -> None:
    monkeypatch.setattr(version, "find_spec", lambda name: ModuleSpec(name, None, origin=origin))
    assert version.full_version() == told


def test_command_prints_it() -> None:
    assert CliRunner().invoke(cli.main, ["--version"]).output == f"llm-guard, version {version.full_version()}\n"
