from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from llm_guard.storage.state_dir import make_private, open_private, state_folder


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


def test_no_other_user_can_read_a_created_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_private(folder)
    make_private(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777, 0o2750])
def test_existing_folder_has_its_mode_unchanged(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with capture_logs() as log:
        make_private(tmp_path)
    assert (stat.S_IMODE(tmp_path.stat().st_mode), log) == (mode, [])


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702, 0o2770])
def test_folder_that_others_may_write_to_is_reported_and_left_alone(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with capture_logs() as log:
        make_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode
    (line,) = log
    assert (line["log_level"], line["folder"], line["mode"]) == ("warning", str(tmp_path), f"{mode:o}")
    assert line["remedy"] == f"chmod go-w {tmp_path}"


def test_remedy_can_be_pasted_for_any_folder_name(tmp_path: Path) -> None:
    folder = tmp_path / "a b; $(c)"
    folder.mkdir()
    folder.chmod(0o777)
    with capture_logs() as log:
        make_private(folder)
    assert log[0]["remedy"] == f"chmod go-w '{folder}'"


@pytest.mark.parametrize("mode", [0o644, 0o666, 0o600])
def test_file_that_others_may_open_is_narrowed(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "kept"
    path.write_text("what was there")
    path.chmod(mode)
    os.close(open_private(path))
    assert stat.S_IMODE(path.stat().st_mode) == mode & 0o600
    assert path.read_text() == "what was there"


def test_file_that_cannot_be_narrowed_is_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _mode: int) -> None:
        raise PermissionError

    path = tmp_path / "kept"
    path.touch(0o644)
    monkeypatch.setattr(os, "fchmod", refuse)
    os.close(open_private(path))


def test_file_is_made_once_and_is_no_link(tmp_path: Path) -> None:
    path, link = tmp_path / "kept", tmp_path / "link"
    os.close(open_private(path, os.O_EXCL))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        open_private(path, os.O_EXCL)
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        open_private(link)
