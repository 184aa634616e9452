"""A gateway's own snapshot file in the state directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from llm_guard.storage.snapshot_file import SnapshotFile, TakenOver, file_name


def file_in(folder: Path) -> SnapshotFile:
    return SnapshotFile(lambda: folder, "gateway.json")


def test_written_state_is_read_and_leaves_no_other_file(tmp_path: Path) -> None:
    file = file_in(tmp_path / "state")
    assert file.read() is None
    assert not (tmp_path / "state").exists()
    file.write(b"first, and longer")
    file.write(b"second")
    assert file_in(tmp_path / "state").read() == b"second"
    assert os.listdir(tmp_path / "state") == ["gateway.json"]
    assert stat.S_IMODE((tmp_path / "state" / "gateway.json").stat().st_mode) == 0o600


def test_write_that_fails_in_the_middle_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_in(tmp_path)
    file.write(b"first")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="space"):
            file.write(b"second")
    assert file.read() == b"first"
    file.write(b"third")
    assert file.read() == b"third"


def test_gateway_of_the_same_name_takes_over_and_the_earlier_one_stops(tmp_path: Path) -> None:
    one, other = file_in(tmp_path), file_in(tmp_path)
    one.write(b"one")
    other.write(b"other")
    with pytest.raises(TakenOver):
        one.write(b"one again")
    assert other.read() == b"other"
    other.write(b"other again")


def test_removed_file_is_written_again(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.write(b"one")
    (tmp_path / "gateway.json").unlink()
    file.write(b"two")
    assert file.read() == b"two"


def test_link_and_pipe_in_its_place_are_neither_followed_nor_waited_for(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"secret")
    (tmp_path / "gateway.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        file_in(tmp_path).read()
    (tmp_path / "gateway.json").unlink()
    os.mkfifo(tmp_path / "gateway.json")
    assert file_in(tmp_path).read() == b""


def test_name_distinguishes_machines_addresses_and_ports_and_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {file_name("::", 80), file_name("0.0.0.0", 80), file_name("::", 81), file_name("../x/y", 80)}
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    names |= {file_name("::", 80, 1), file_name("::", 80, 2), file_name("::", 801, 1)}
    names.add(file_name("::", 80))
    assert len(names) == 8
    assert not any("/" in name for name in names)
