"""The audit trail's file: writing, corruption, and sharing."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from llm_guard.storage.audit_log import FILE, AuditFile, Entry
from llm_guard.storage.errors import StoreError


def entry(reason: str = "an outage", **facts: Any) -> Entry:
    usual = {
        "at": "2026-11-21T15:00:00.000Z",
        "actor": "ann",
        "action": "breakers.reset",
        "target": "a/x",
        "detail": {},
    }
    return Entry(**{**usual, "instance": "host:1", **facts}, reason=reason)


FileIn = Callable[[Path], AuditFile]


@pytest.fixture
def file_in() -> Iterator[FileIn]:
    """Creates files, and closes them all at the end."""
    made: list[AuditFile] = []

    def make(folder: Path) -> AuditFile:
        made.append(AuditFile(lambda: folder))
        return made[-1]

    yield make
    for file in made:
        file.close()


def reasons(file: AuditFile, limit: int = 100, before: int | None = None) -> list[str]:
    return [entry.reason for entry in file.latest(limit, before)]


def test_written_changes_outlive_the_process(file_in: FileIn, tmp_path: Path) -> None:
    first = file_in(tmp_path)
    said = entry(detail={"for": "10m", "changes": [{"key": "é\n", "after": None}]})
    first.append([said])
    first.close()
    assert file_in(tmp_path).latest(10, None) == [msgspec.structs.replace(said, id=1)]


def test_newest_is_first_page_by_page(file_in: FileIn, tmp_path: Path) -> None:
    file = file_in(tmp_path)
    for number in range(5):
        file.append([entry(str(number))])
    page = file.latest(2, None)
    assert [each.reason for each in page] == ["4", "3"]
    assert reasons(file, 2, page[-1].id) == ["2", "1"]
    assert reasons(file, 2, 1) == []


def test_no_other_user_can_read_it(file_in: FileIn, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    file = file_in(folder)
    file.append([entry()])
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}
    assert modes.keys() >= {FILE, f"{FILE}-wal"}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_existing_file_becomes_unreadable_for_other_users(file_in: FileIn, tmp_path: Path) -> None:
    first = file_in(tmp_path)
    first.append([entry()])
    first.close()
    for each in tmp_path.iterdir():
        each.chmod(0o644)
    file_in(tmp_path).append([entry()])
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("statement", ["DELETE FROM changes", "UPDATE changes SET reason = 'another'"])
def test_nothing_is_taken_out_of_it_or_changed(file_in: FileIn, tmp_path: Path, statement: str) -> None:
    file = file_in(tmp_path)
    file.append([entry()])
    other = sqlite3.connect(tmp_path / FILE)
    with pytest.raises(sqlite3.IntegrityError, match="only grows"):
        other.execute(statement)
    other.close()
    assert reasons(file) == ["an outage"]


def test_written_changes_are_on_the_disk(file_in: FileIn, tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.append([entry()])
    connection = file._database._connection
    assert connection is not None
    asked = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert asked == ["wal", 2]


def test_reading_makes_nothing(file_in: FileIn, tmp_path: Path) -> None:
    assert file_in(tmp_path / "state").latest(10, None) == []
    assert list(tmp_path.iterdir()) == []


def test_all_are_written_or_none(file_in: FileIn, tmp_path: Path) -> None:
    file = file_in(tmp_path)
    with pytest.raises(StoreError):
        file.append([entry("good"), entry("\ud800")])
    assert reasons(file) == []
    file.append([entry("good")])
    assert reasons(file) == ["good"]


# problems with the file


def test_folder_that_cannot_be_had_is_named(file_in: FileIn, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"directory|File exists"):
        file_in(tmp_path / "file" / "state").append([entry()])


def test_full_disk_is_reported_and_the_next_change_tries_again(file_in: FileIn, tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.append([entry("before")])
    assert file._database._connection is not None
    file._database._connection.execute("PRAGMA max_page_count = 5")
    with pytest.raises(StoreError, match="full"):
        file.append([entry("x" * 100_000)])
    file.append([entry("y" * 100_000)])
    assert [reason[0] for reason in reasons(file)] == ["y", "b"]


def test_broken_file_is_moved_aside_and_a_new_one_begun_loudly(file_in: FileIn, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / FILE).write_bytes(b"no database" * 100)
        file = file_in(tmp_path)
        with capture_logs() as log:
            file.append([entry(str(number))])
        file.close()
        aside = tmp_path / f"{FILE}.broken-{number}"
        assert aside.read_bytes().startswith(b"no database")
        assert [(line["log_level"], line["moved_to"]) for line in log] == [("error", str(aside))]
        assert reasons(file_in(tmp_path)) == [str(number)]


def test_file_with_damage_inside_is_moved_aside(file_in: FileIn, tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.append([entry("x" * 50) for _ in range(500)])
    file.close()
    content = bytearray((tmp_path / FILE).read_bytes())
    content[8192:12288] = b"\xff" * 4096
    (tmp_path / FILE).write_bytes(content)
    again = file_in(tmp_path)
    again.append([entry("after")])
    assert reasons(again) == ["after"]
    assert (tmp_path / f"{FILE}.broken-1").exists()


def test_reading_a_broken_file_reports_it_and_moves_nothing(file_in: FileIn, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match="not a database"):
        file_in(tmp_path).latest(10, None)
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


def test_file_of_a_newer_version_is_left_alone(file_in: FileIn, tmp_path: Path) -> None:
    newer = sqlite3.connect(tmp_path / FILE)
    newer.execute("PRAGMA user_version = 2")
    newer.close()
    with pytest.raises(StoreError, match="newer"):
        file_in(tmp_path).append([entry()])
    assert not (tmp_path / f"{FILE}.broken-1").exists()


def test_link_in_its_place_is_not_followed(file_in: FileIn, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        file_in(tmp_path / "state").append([entry()])
    assert not (tmp_path / "elsewhere").exists()


# several gateways


def test_two_gateways_share_it(file_in: FileIn, tmp_path: Path) -> None:
    one, other = file_in(tmp_path), file_in(tmp_path)
    for number in range(4):
        (one, other)[number % 2].append([entry(str(number))])
    assert reasons(one) == reasons(other) == ["3", "2", "1", "0"]


def test_many_that_begin_at_once_lose_nothing(file_in: FileIn, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    failed: list[Exception] = []

    def write(name: str) -> None:
        file = file_in(tmp_path)
        try:
            for number in range(5):
                file.append([entry(f"{name}{number}")])
        except StoreError as error:
            failed.append(error)
        finally:
            file.close()

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(reasons(file_in(tmp_path))) == 20
    assert [each.name for each in tmp_path.glob("*.broken-*") if "-wal" not in each.name] == [f"{FILE}.broken-1"]


def test_broken_file_is_checked_by_one_gateway_at_a_time(file_in: FileIn, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    other = os.open(tmp_path / "audit.lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    file = file_in(tmp_path)
    thread = threading.Thread(target=file.append, args=([entry()],))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    assert (tmp_path / FILE).read_bytes().startswith(b"no database")
    os.close(other)
    thread.join()
    assert reasons(file) == ["an outage"]


def test_gateway_that_was_stopped_with_the_lock_holds_no_other_up_for_ever(
    file_in: FileIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_guard.storage.sqlite_file._BUSY_S", 0.01)
    other = os.open(tmp_path / "audit.lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    file = file_in(tmp_path)
    with pytest.raises(StoreError, match="does not release"):
        file.append([entry()])
    os.close(other)
    file.append([entry("now")])
    assert reasons(file) == ["now"]


def test_too_long_a_wait_for_another_gateway_is_reported(
    file_in: FileIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_guard.storage.sqlite_file._BUSY_S", 0.01)
    one = file_in(tmp_path)
    one.append([entry()])
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        one.append([entry("late")])
    other.execute("ROLLBACK")
    other.close()
    one.append([entry("now")])
    assert reasons(one) == ["now", "an outage"]


@pytest.mark.parametrize("how", ["moved", "deleted"])
def test_removed_file_is_created_again(file_in: FileIn, tmp_path: Path, how: str) -> None:
    file = file_in(tmp_path)
    file.append([entry("before")])
    if how == "moved":
        os.rename(tmp_path / FILE, tmp_path / "elsewhere.db")
    else:
        (tmp_path / FILE).unlink()
    assert reasons(file) == []
    file.append([entry("after")])
    assert reasons(file) == ["after"]


def test_invalid_detail_is_shown_as_it_is(file_in: FileIn, tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.append([entry()])
    other = sqlite3.connect(tmp_path / FILE)
    other.execute("INSERT INTO changes SELECT 2, at, actor, action, target, reason, 'no JSON', instance FROM changes")
    other.commit()
    other.close()
    assert file.latest(1, None)[0].detail == {"unreadable": "no JSON"}
