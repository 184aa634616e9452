from __future__ import annotations

import stat
from pathlib import Path

import pytest

from llm_guard.store.folder import make_private, state_folder


def test_folder_is_the_configs_then_the_desktops_then_the_homes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_folder("/var/lib/guard", {"XDG_STATE_HOME": "/state"}) == Path("/var/lib/guard")
    assert state_folder("~/guard", {}) == tmp_path / "guard"
    assert state_folder(None, {"XDG_STATE_HOME": "/state"}) == Path("/state/llm-guard")
    for env in ({}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "relative"}):
        assert state_folder(None, env) == tmp_path / ".local/state/llm-guard"


def test_without_a_home_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(OSError, match=r"set ops\.store"):
        state_folder(None, {})


def test_nobody_else_can_look_into_a_folder_that_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_private(folder)
    make_private(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
