"""The audit trail: changes with time, author and reason, in an append-only SQLite file.

Defines the content of the file. Blocking; used by one thread. Opening and sharing are in `storage.sqlite_file`; entries
that could not be written are handled in `admin.audit.writer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from llm_guard.storage.sqlite_file import DatabaseSpec, SqliteFile

FILE = "audit.db"

_INSERT = "INSERT INTO changes (at, actor, action, target, reason, detail, instance) VALUES (?, ?, ?, ?, ?, ?, ?)"
_SELECT = (
    "SELECT id, at, actor, action, target, reason, detail, instance FROM changes WHERE id < ? ORDER BY id DESC LIMIT ?"
)
_HIGHEST = (1 << 63) - 1
_FIRST = """
CREATE TABLE changes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL, target TEXT NOT NULL, reason TEXT NOT NULL,
    detail TEXT NOT NULL, instance TEXT NOT NULL
);
CREATE TRIGGER changes_stay BEFORE UPDATE ON changes BEGIN SELECT RAISE(ABORT, 'the audit trail only grows'); END;
CREATE TRIGGER changes_remain BEFORE DELETE ON changes BEGIN SELECT RAISE(ABORT, 'the audit trail only grows'); END;
"""
_FORM = DatabaseSpec(FILE, "the audit trail", (_FIRST,))


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One change."""

    id: int | None = None
    """Sequence number; null: not on the disk."""
    at: str
    """Time as ISO 8601, UTC."""
    actor: str
    """Name of the token, and the client's address. For the token `operator`, which several people may share, followed
    by the name that the client claimed. `expiry`, `file`, `signal`, `reload` and `start` are the gateway itself."""
    action: str
    """Action, such as `breakers.force-open`."""
    target: str
    reason: str
    detail: dict[str, Any]
    instance: str
    """Gateway that made the change: host and process id."""


class AuditFile:
    """The audit trail's file. Opens it on first use; after a StoreError the next call opens it again."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        """`folder` may raise OSError."""
        self._database = SqliteFile(folder, _FORM)

    def append(self, entries: Sequence[Entry]) -> None:
        """Appends all entries or none; they are on the disk when this returns. Raises StoreError."""
        with self._database.writing() as connection:
            connection.executemany(_INSERT, [_row(entry) for entry in entries])

    def latest(self, limit: int, before: int | None) -> list[Entry]:
        """Returns the newest entries first; `before`: only those with a lower id. Returns none if there is no file.
        Raises StoreError."""
        with self._database.reading() as connection:
            if connection is None:
                return []
            found = connection.execute(_SELECT, (_HIGHEST if before is None else before, limit)).fetchall()
        return [_entry(row) for row in found]

    def close(self) -> None:
        self._database.close()


def _row(entry: Entry) -> tuple[str, ...]:
    detail = msgspec.json.encode(entry.detail).decode()
    return entry.at, entry.actor, entry.action, entry.target, entry.reason, detail, entry.instance


def _entry(row: tuple[int, str, str, str, str, str, str, str]) -> Entry:
    number, at, actor, action, target, reason, detail, instance = row
    try:
        facts = msgspec.json.decode(detail, type=dict[str, Any])
    except msgspec.DecodeError:  # the file was changed by something else
        facts = {"unreadable": detail}
    return Entry(
        id=number, at=at, actor=actor, action=action, target=target, reason=reason, detail=facts, instance=instance,
    )  # fmt: skip
