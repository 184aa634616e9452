"""The SQLite file that gateways share: versions, transactions, and the files that remain beside it.

`test_audit_log` tests corruption and concurrent creation of such a file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm_guard.storage.errors import DiskFullError, StoreError
from llm_guard.storage.sqlite_file import DatabaseSpec, SqliteFile

FIRST = "CREATE TABLE words (word TEXT NOT NULL);"
SECOND = "ALTER TABLE words ADD COLUMN size INTEGER NOT NULL DEFAULT 0;\nUPDATE words SET size = length(word);"
FORM = DatabaseSpec("words.db", "the words", (FIRST,))
NEWER = DatabaseSpec("words.db", "the words", (FIRST, SECOND))
Opening = Callable[..., SqliteFile]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opening]:
    made: list[SqliteFile] = []

    def open_it(form: DatabaseSpec = FORM) -> SqliteFile:
        made.append(SqliteFile(lambda: tmp_path, form))
        return made[-1]

    yield open_it
    for file in made:
        file.close()


def write(database: SqliteFile, word: str) -> None:
    with database.writing() as connection:
        connection.execute("INSERT INTO words (word) VALUES (?)", (word,))


def read(database: SqliteFile, query: str = "SELECT word FROM words ORDER BY rowid") -> list[object]:
    with database.reading() as connection:
        return [] if connection is None else [row[0] for row in connection.execute(query)]


# schema versions


def test_older_file_is_migrated_without_loss(opened: Opening) -> None:
    write(opened(FORM), "owl")
    newer = opened(NEWER)
    assert read(newer, "SELECT size FROM words") == [3]
    assert read(newer, "PRAGMA user_version") == [2]
    write(newer, "emu")
    assert read(opened(NEWER)) == ["owl", "emu"]


def test_step_that_fails_leaves_the_version_that_was(opened: Opening) -> None:
    write(opened(FORM), "owl")
    wrong = opened(DatabaseSpec("words.db", "the words", (FIRST, SECOND + "\nSELECT nonsense;")))
    with pytest.raises(StoreError, match="nonsense"):
        read(wrong)
    again = opened(FORM)
    assert read(again, "PRAGMA user_version") == [1]
    assert read(again, "SELECT count(*) FROM pragma_table_info('words')") == [1]


def test_gateway_that_is_older_than_the_file_has_become_writes_no_more(opened: Opening) -> None:
    older = opened(FORM)
    write(older, "owl")
    read(opened(NEWER))
    with pytest.raises(StoreError, match="newer llm-guard"):
        write(older, "emu")
    assert read(opened(NEWER)) == ["owl"]


# transactions


def test_failed_transaction_is_rolled_back(opened: Opening) -> None:
    database = opened()
    write(database, "owl")
    with pytest.raises(ZeroDivisionError), database.writing() as connection:
        connection.execute("INSERT INTO words VALUES ('emu')").fetchall()[1 // 0]
    assert read(database) == ["owl"]
    write(database, "auk")
    assert read(database) == ["owl", "auk"]


def test_all_that_is_read_at_once_is_of_one_instant(opened: Opening) -> None:
    one, other = opened(), opened()
    write(one, "owl")
    with one.reading() as connection:
        assert connection is not None
        before = connection.execute("SELECT count(*) FROM words").fetchone()
        write(other, "emu")
        assert connection.execute("SELECT count(*) FROM words").fetchone() == before
    assert read(one) == ["owl", "emu"]


@pytest.mark.parametrize("value", ["\ud800", 1 << 80, {}])
def test_value_that_cannot_be_written_is_reported(opened: Opening, value: object) -> None:
    database = opened()
    with pytest.raises(StoreError, match=r"^words\.db: "), database.writing() as connection:
        connection.execute("INSERT INTO words VALUES (?)", (value,))
    write(database, "owl")
    assert read(database) == ["owl"]


def test_intact_file_is_checked_once_and_again_after_damage(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    connect = sqlite3.connect

    def listening(*arguments: object, **named: object) -> sqlite3.Connection:
        connection = connect(*arguments, **named)  # type: ignore[call-overload]
        connection.set_trace_callback(said.append)
        assert isinstance(connection, sqlite3.Connection)
        return connection

    monkeypatch.setattr("llm_guard.storage.sqlite_file.sqlite3.connect", listening)
    database = opened()

    def looked() -> int:
        return sum("quick_check" in each for each in said)

    write(database, "owl")
    with pytest.raises(StoreError):
        read(database, "SELECT nonsense")
    write(database, "emu")
    assert (said.count("PRAGMA journal_mode = WAL"), looked()) == (2, 1)
    broken = sqlite3.DatabaseError("database disk image is malformed")
    broken.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    with pytest.raises(StoreError), database.writing():
        raise broken
    write(database, "auk")
    assert looked() == 2


def test_large_file_is_checked_when_sqlite_has_met_damage(
    opened: Opening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_guard.storage.sqlite_file._LARGE_BYTES", 0)
    first = opened()
    with first.writing() as connection:
        connection.executemany("INSERT INTO words VALUES (?)", [("x" * 1000,) for _ in range(100)])
    first.close()
    file = tmp_path / "words.db"
    content = bytearray(file.read_bytes())
    content[16384:20480] = b"\xff" * 4096
    file.write_bytes(content)
    database = opened()
    write(database, "owl")
    with pytest.raises(StoreError, match="malformed"):
        read(database)
    write(database, "emu")
    assert read(database) == ["emu"]
    assert (tmp_path / "words.db.broken-1").exists()


def test_durability_is_that_of_the_spec(opened: Opening) -> None:
    assert read_synchronous(opened(FORM)) == 2
    assert read_synchronous(opened(DatabaseSpec("words.db", "the words", (FIRST,), is_durable=False))) == 1


def read_synchronous(database: SqliteFile) -> object:
    write(database, "owl")
    return read(database, "PRAGMA synchronous")[0]


# files beside the database


def test_write_ahead_log_stays_during_a_read_and_is_emptied_after(opened: Opening, tmp_path: Path) -> None:
    one, other = opened(), opened()
    write(one, "the quick brown fox")
    with other.reading() as connection:
        assert connection is not None
        connection.execute("SELECT * FROM words").fetchall()
        with one.writing() as writing:
            writing.execute("DELETE FROM words")
        one.give_back()
        assert (tmp_path / "words.db-wal").stat().st_size > 0
    one.give_back()
    assert (tmp_path / "words.db-wal").stat().st_size == 0
    assert b"quick" not in (tmp_path / "words.db").read_bytes()


def test_release_without_a_reserve_does_nothing(opened: Opening, tmp_path: Path) -> None:
    opened().give_back()
    assert list(tmp_path.iterdir()) == []


# disk reserve


def test_reserve_is_released_once_and_restored(opened: Opening, tmp_path: Path) -> None:
    database = opened(DatabaseSpec("words.db", "the words", (FIRST,), reserve_bytes=5000))
    assert not database.has_released_reserve()
    write(database, "owl")
    reserve = tmp_path / "words.reserve"
    assert reserve.stat().st_size == 5000
    assert reserve.stat().st_blocks * 512 >= 5000  # the space is allocated, not sparse
    assert database.has_released_reserve()
    assert not reserve.exists()
    assert not database.has_released_reserve()
    database.give_back()
    assert reserve.stat().st_size == 5000


def test_reserve_that_there_is_no_room_for_is_left_out(
    opened: Opening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    database = opened(DatabaseSpec("words.db", "the words", (FIRST,), reserve_bytes=5000))
    write(database, "owl")
    assert read(database) == ["owl"]
    assert not (tmp_path / "words.reserve").exists()


def test_full_disk_is_an_error_of_its_own(opened: Opening) -> None:
    database = opened()
    write(database, "owl")
    assert database._connection is not None
    database._connection.execute("PRAGMA max_page_count = 3")
    with pytest.raises(DiskFullError, match=r"words\.db: the disk is full: free some space"):
        write(database, "x" * 100_000)
    assert read(database) == ["owl"]
