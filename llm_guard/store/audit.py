"""The audit trail: what was changed, when, by whom and why, in a SQLite file that nothing is ever taken out of.

Owns the file: its making, what becomes of a broken one, and that several gateways can share it. It blocks, and is one
thread's. Does not own what is written when the file cannot be (`ops.trail`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import structlog

from llm_guard.store.folder import make_private, open_private

_log = structlog.get_logger("llm_guard.store.audit")

FILE = "audit.db"

_VERSION = 1
_BUSY_S = 5.0
_LOOK_AGAIN_S = 0.05
"""So long one gateway waits for another that writes."""
_BESIDE = ("", "-wal", "-shm")
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_INSERT = "INSERT INTO changes (at, who, what, target, why, detail, instance) VALUES (?, ?, ?, ?, ?, ?, ?)"
_SELECT = "SELECT id, at, who, what, target, why, detail, instance FROM changes WHERE id < ? ORDER BY id DESC LIMIT ?"
_HIGHEST = (1 << 63) - 1
_SCHEMA = f"""
CREATE TABLE changes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, target TEXT NOT NULL, why TEXT NOT NULL,
    detail TEXT NOT NULL, instance TEXT NOT NULL
);
CREATE TRIGGER changes_stay BEFORE UPDATE ON changes BEGIN SELECT RAISE(ABORT, 'the audit trail only grows'); END;
CREATE TRIGGER changes_remain BEFORE DELETE ON changes BEGIN SELECT RAISE(ABORT, 'the audit trail only grows'); END;
PRAGMA user_version = {_VERSION};
"""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One change."""

    id: int | None = None
    """Counts up; null: it is not on the disk."""
    at: str
    """ISO 8601, UTC."""
    who: str
    """As claimed: all operators share one token. `expiry`, `file`, `signal`, `reload` and `start` are the gateway
    itself."""
    what: str
    """`breakers.force-open`, ..."""
    target: str
    why: str
    detail: dict[str, Any]
    instance: str
    """Which gateway: host and process id."""


class AuditError(Exception):
    """The trail cannot be written or read; the text says why."""


class AuditFile:
    """Opened when it is first needed. After an AuditError the next call tries anew."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        """`folder` may raise OSError."""
        self._folder = folder
        self._database: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def append(self, entries: Sequence[Entry]) -> None:
        """All of them, on the disk when it returns, or none. Raises AuditError."""
        with self._telling():
            rows = [_row(entry) for entry in entries]
            database = self._open()
            with _transaction(database):
                database.executemany(_INSERT, rows)

    def latest(self, limit: int, before: int | None) -> list[Entry]:
        """The newest first, of those with a lower id than `before`. Makes nothing: without a file there is none.
        Raises AuditError."""
        with self._telling():
            if not self._path().exists():
                return []
            database = self._database if self._is_current() else self._connect()
            assert database is not None  # noqa: S101  # a current one is there
            found = database.execute(_SELECT, (_HIGHEST if before is None else before, limit)).fetchall()
        return [_entry(row) for row in found]

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _path(self) -> Path:
        return self._folder() / FILE

    def _is_current(self) -> bool:
        """Whether what is open is what lies in the folder: another gateway may have moved it aside."""
        return self._database is not None and _identity(self._path()) == self._identity

    def _open(self) -> sqlite3.Connection:
        """The database, made if it is not there; a broken one is moved aside."""
        if self._database is not None and self._is_current():
            return self._database
        self.close()
        folder = self._folder()
        make_private(folder)
        with _alone(folder / "audit.lock"):
            # SQLite gives its files beside this one the same mode.
            os.close(open_private(self._path()))
            try:
                return self._connect()
            except sqlite3.DatabaseError as error:
                if _code(error) not in _BROKEN:
                    raise
                self.close()
                _move_aside(self._path(), error)
            os.close(open_private(self._path(), os.O_EXCL))
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        self.close()
        path = self._path()
        database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            _prepare(database)
        except BaseException:
            database.close()
            raise
        self._identity = _identity(path)
        self._database = database
        return database

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, ValueError, TypeError) as error:
            # What is wrong with one connection must not stay wrong for ever.
            self.close()
            raise AuditError(f"{FILE}: {_said(error)}") from error


def _prepare(database: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError, also when the file is broken."""
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        raise sqlite3.OperationalError(f"was written by a newer llm-guard (version {version} of its form)")
    if (found := database.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        broken = sqlite3.DatabaseError(found)
        broken.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise broken
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    if version == 0:
        with _transaction(database):
            # Another gateway may have been quicker.
            if database.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in _statements(_SCHEMA):
                    database.execute(statement)


def _statements(script: str) -> Iterator[str]:
    """`executescript` would end the transaction."""
    statement = ""
    for line in script.strip().splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Of all gateways with this folder: two must not move the same file aside, nor one the other's new one."""
    held = open_private(lock)
    try:
        _lock(held)
        yield
    finally:
        os.close(held)


def _lock(held: int) -> None:
    """Raises OSError where another gateway has kept it for too long: it may have been stopped in the middle."""
    never = threading.Event()
    for _ in range(max(1, round(_BUSY_S / _LOOK_AGAIN_S))):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        never.wait(_LOOK_AGAIN_S)
    raise OSError(errno.EAGAIN, "another gateway does not let go of the audit trail's lock")


def _move_aside(path: Path, error: sqlite3.Error) -> None:
    aside = next(name for number in count(1) if not os.path.lexists(name := f"{path}.broken-{number}"))
    for suffix in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    _log.error("the audit trail is broken: a new one begins", kept_as=aside, problem=_said(error))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _code(error: sqlite3.Error) -> int | None:
    """The primary code: the extended ones have it in their lowest byte."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _said(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _row(entry: Entry) -> tuple[str, ...]:
    detail = msgspec.json.encode(entry.detail).decode()
    return entry.at, entry.who, entry.what, entry.target, entry.why, detail, entry.instance


def _entry(row: tuple[int, str, str, str, str, str, str, str]) -> Entry:
    number, at, who, what, target, why, detail, instance = row
    try:
        facts = msgspec.json.decode(detail, type=dict[str, Any])
    except msgspec.DecodeError:  # somebody else's hand
        facts = {"unreadable": detail}
    return Entry(
        id=number, at=at, who=who, what=what, target=target, why=why, detail=facts, instance=instance,
    )  # fmt: skip
