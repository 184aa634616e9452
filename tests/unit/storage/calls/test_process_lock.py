"""The lock by which a restarted gateway detects that its earlier process has ended."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from llm_guard.storage.calls.process_lock import RunnerLock

HOLD = """
import pathlib, sys
from llm_guard.storage.calls.process_lock import RunnerLock
held = RunnerLock(lambda: pathlib.Path(sys.argv[1]), "gateway-a", "1")
held.hold()
print()
input()
"""


def lock(folder: Path, token: str, gateway: str = "gateway-a") -> RunnerLock:
    return RunnerLock(lambda: folder, gateway, token)


def die(held: RunnerLock) -> None:
    """Closes the lock's file, as the kernel does for a killed process."""
    assert held._held is not None
    os.close(held._held)
    held._held = None


def test_process_that_lives_has_not_ended(tmp_path: Path) -> None:
    held = lock(tmp_path, "1")
    held.hold()
    held.hold()
    assert lock(tmp_path, "2").ended() == []
    assert held.ended() == []


def test_process_that_was_killed_has_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"\n"
            assert lock(tmp_path, "2").ended() == []
        finally:
            child.kill()
    assert lock(tmp_path, "2").ended() == ["gateway-a-runner-1"]


def test_processes_of_other_gateways_are_ignored(tmp_path: Path) -> None:
    for gateway in ("gateway-b", "gateway-a-b"):
        other = lock(tmp_path, "1", gateway)
        other.hold()
        die(other)
    assert lock(tmp_path, "2").ended() == []


def test_process_that_stops_leaves_no_lock(tmp_path: Path) -> None:
    held = lock(tmp_path, "1")
    held.hold()
    held.release()
    held.release()
    assert list(tmp_path.iterdir()) == []


def test_process_whose_calls_are_taken_over_is_forgotten(tmp_path: Path) -> None:
    held, after = lock(tmp_path, "1"), lock(tmp_path, "2")
    held.hold()
    die(held)
    for runner in after.ended():
        after.forget(runner)
    assert after.ended() == []
    assert list(tmp_path.iterdir()) == []


def test_lock_is_for_this_user_alone(tmp_path: Path) -> None:
    lock(tmp_path, "1").hold()
    [path] = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "gateway-a-runner-1.lock").symlink_to(tmp_path / "elsewhere")
    assert lock(tmp_path, "2").ended() == []
    assert not (tmp_path / "elsewhere").exists()


def test_folder_that_cannot_be_used_hinders_nothing(tmp_path: Path) -> None:
    def broken() -> Path:
        raise OSError("no folder")

    for folder in (lambda: tmp_path / "missing", broken):
        held = RunnerLock(folder, "gateway-a", "1")
        held.hold()
        assert held.ended() == []
        held.forget("gateway-a-runner-0")
        held.release()


def test_file_system_without_locks_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr("llm_guard.storage.calls.process_lock.fcntl.flock", refuse)
    held = lock(tmp_path, "1")
    held.hold()
    assert held.ended() == []
    assert not (tmp_path / "gateway-a-runner-1.lock").exists()
