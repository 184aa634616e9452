"""A SQLite file that several gateways can share: creation, schema versions, and recovery from corruption.

Opens, locks, moves aside and writes the file; its content belongs to the stores. Blocking; used by one thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from llm_guard.storage.disk_reserve import DiskReserve
from llm_guard.storage.errors import DiskFullError, StoreError
from llm_guard.storage.shared_file import alone, create, identity, move_aside
from llm_guard.storage.state_dir import make_private

_log = structlog.get_logger("llm_guard.storage.sqlite_file")

_BUSY_S = 5.0
"""How long one gateway waits for another that writes."""
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_ROOM_BYTES = 64 * 1024
_LARGE_BYTES = 32 * 1024**2
_FREED_PAGES = 1_000
"""Maximum number of pages that are returned to the disk at once: other gateways wait meanwhile, and each page takes
room in the WAL first.
"""


@dataclass(frozen=True, slots=True)
class DatabaseSpec:
    """Name, schema and durability of a database file."""

    name: str
    """File name `x.db`; its lock file is `x.lock`."""
    said: str
    """Name for messages: `the audit trail`."""
    steps: tuple[str, ...]
    """SQL that migrates each version to the next, the first one from an empty file. Append only."""
    is_durable: bool = True
    """If True, each commit waits for the disk, and survives a power cut. kill -9 is survived in any case."""
    reserve_bytes: int = 0
    """Size of the file that reserves disk space, so that entries can be deleted when the disk is full."""

    @property
    def version(self) -> int:
        return len(self.steps)


class SqliteFile:
    """Opens the file on first use. After a StoreError the next use opens it again."""

    def __init__(self, folder: Callable[[], Path], form: DatabaseSpec) -> None:
        """`folder` may raise OSError."""
        self._folder = folder
        self._form = form
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._sound: tuple[int, int] | None = None
        """Identity of the file that last passed the integrity check."""
        self._is_suspect = False
        """True if SQLite has reported the file as corrupt."""

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: on the disk when the block ends, or rolled back. Creates a missing file and moves a
        corrupt one aside. Raises StoreError, also for values that SQLite does not accept."""
        with self._telling():
            connection = self._open()
            with _transaction(connection):
                # A newer gateway may have migrated the file since it was opened.
                _check_version(connection, self._form)
                yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """A read transaction: a consistent snapshot, or None if there is no file. Creates nothing and moves nothing.
        Raises StoreError."""
        with self._telling():
            if not self._path().exists():
                yield None
                return
            connection = self._current() or self._connect()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def is_there(self) -> bool:
        """True if the file exists. Raises StoreError."""
        with self._telling():
            return self._path().exists()

    def give_back(self) -> None:
        """Returns some of the free pages to the disk and truncates the WAL, so that deleted content remains in neither.
        Best effort: an active reader keeps the WAL as it is."""
        with contextlib.suppress(StoreError), self._telling():
            if self._connection is None:
                return
            _empty_log(self._connection)
            # `execute` would free only the first page: it stops at the first step of a statement that returns no
            # columns.
            self._connection.executescript(f"PRAGMA incremental_vacuum({_FREED_PAGES})")
            _empty_log(self._connection)
            self._fill_reserve()

    def has_released_reserve(self) -> bool:
        """Deletes the reserve file and returns True if a failed deletion may be tried once more; `give_back` creates
        the file again. Raises StoreError."""
        with self._telling():
            return self._reserve().has_given()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _path(self) -> Path:
        return self._folder() / self._form.name

    def _reserve(self) -> DiskReserve:
        return DiskReserve(self._path().with_suffix(".reserve"), self._form.reserve_bytes)

    def _fill_reserve(self) -> None:
        if self._form.reserve_bytes:
            self._reserve().fill()

    def _current(self) -> sqlite3.Connection | None:
        """Returns the open connection if its file is still the one in the folder: another gateway may have moved it
        aside."""
        return self._connection if identity(self._path()) == self._identity else None

    def _open(self) -> sqlite3.Connection:
        if (current := self._current()) is not None:
            return current
        self.close()
        folder = self._folder()
        make_private(folder)
        path = self._path()
        with alone(path.with_suffix(".lock"), _BUSY_S):
            connection = self._made(path)
        self._fill_reserve()
        return connection

    def _made(self, path: Path) -> sqlite3.Connection:
        create(path)
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            if _code(error) not in _BROKEN:
                raise
            aside = move_aside(path)
            _log.error(
                f"{self._form.said} is corrupt: moved aside, a new one is created", moved_to=aside, error=_said(error)
            )
        create(path, os.O_EXCL)
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        self.close()
        path = self._path()
        connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            self._identity = identity(path)
            version = _check_version(connection, self._form)
            self._look_through(connection, path)
            _prepare(connection, self._form, version)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _look_through(self, connection: sqlite3.Connection, path: Path) -> None:
        """Raises sqlite3.DatabaseError if the file is corrupt. A large file is only checked after an error: on a slow
        disk the check takes seconds, and SQLite reports corruption itself when it reads it."""
        is_small = path.stat().st_size <= _LARGE_BYTES
        if not self._is_suspect and (self._identity == self._sound or not is_small):
            return
        if (found := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            broken = sqlite3.DatabaseError(found)
            broken.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise broken
        self._sound, self._is_suspect = self._identity, False

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, ValueError, TypeError, OverflowError) as error:
            # A connection in a bad state must not be used again.
            self.close()
            if _code(error) in _BROKEN:
                self._is_suspect = True
            if self._is_full(error):
                raise DiskFullError(
                    f"{self._form.name}: the disk is full: free some space, or delete stored entries"
                ) from error
            raise StoreError(f"{self._form.name}: {_said(error)}") from error

    def _is_full(self, error: Exception) -> bool:
        if isinstance(error, OSError):
            return error.errno in _FULL
        if _code(error) != sqlite3.SQLITE_IOERR:
            return _code(error) == sqlite3.SQLITE_FULL
        # SQLite also reports SQLITE_IOERR if it cannot create its auxiliary files on a full disk.
        with contextlib.suppress(OSError):
            found = os.statvfs(self._folder())
            return found.f_bavail * found.f_frsize < _NO_ROOM_BYTES
        return False


def _prepare(connection: sqlite3.Connection, form: DatabaseSpec, version: int) -> None:
    if version == 0:
        # Takes effect only while the database is empty.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if form.is_durable else 'NORMAL'}")
    # Deleted prompts must be gone from the file.
    connection.execute("PRAGMA secure_delete = ON")
    if version < form.version:
        with _transaction(connection):
            _bring_up(connection, form)


def _check_version(connection: sqlite3.Connection, form: DatabaseSpec) -> int:
    """Raises sqlite3.OperationalError for a version newer than this code."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > form.version:
        raise sqlite3.OperationalError(f"was written by a newer llm-guard (schema version {version})")
    return version


def _bring_up(connection: sqlite3.Connection, form: DatabaseSpec) -> None:
    """Migrates from the version that the file has now: another gateway may have migrated it meanwhile."""
    for step in form.steps[_check_version(connection, form) :]:
        for statement in _statements(step):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {form.version}")


def _statements(script: str) -> Iterator[str]:
    """Splits the script into statements, since `executescript` would commit the transaction."""
    statement = ""
    for line in script.strip().splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _empty_log(connection: sqlite3.Connection) -> None:
    """Truncates the WAL. Skipped while a reader is active: `busy_timeout = 0`, so this never waits."""
    connection.execute("PRAGMA busy_timeout = 0")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_S * 1000:.0f}")


def _code(error: Exception) -> int | None:
    """Returns the primary result code: the lowest byte of an extended one."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _said(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
