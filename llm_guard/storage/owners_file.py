"""Records which client key created which of a provider's objects, in a SQLite file that several gateways can share.

Defines the content of the file and its limit. Blocking; used by one thread. The index that calls use is in
`resilience.client_keys.object_owners`; `proxy.client_keys.object_ownership` synchronises the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from llm_guard.resilience.client_keys.object_owners import MOST_ANSWERS, MOST_OBJECTS, ObjectKey, Ownership
from llm_guard.storage.sqlite_file import DatabaseSpec, SqliteFile

FILE = "owners.db"

_FIRST = """
CREATE TABLE owners (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    upstream TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL, is_answer INTEGER NOT NULL,
    UNIQUE (upstream, id)
);
CREATE INDEX owners_by_owner ON owners (owner, is_answer, number);
"""
_FORM = DatabaseSpec(FILE, "the index of objects", (_FIRST,), is_durable=False)
_INSERT = "INSERT OR IGNORE INTO owners (upstream, id, owner, is_answer) VALUES (?, ?, ?, ?)"
_SELECT = "SELECT number, upstream, id, owner, is_answer FROM owners WHERE number > ? ORDER BY number LIMIT ?"
_TRIM = """
DELETE FROM owners WHERE owner = ?1 AND is_answer = ?2 AND number <= (
    SELECT number FROM owners WHERE owner = ?1 AND is_answer = ?2 ORDER BY number DESC LIMIT 1 OFFSET ?3
)
"""
_AT_ONCE = 10_000


class OwnersStore(Protocol):
    """A store of the index. Blocking; after a StoreError the next call opens it again."""

    def exchange(self, new: Sequence[Ownership], after: int) -> tuple[list[Ownership], int]:
        """Adds the new entries; returns entries with a number above `after`, some thousands at once, and the last
        number that was read: lower than `after` if the store has lost what it had. Raises StoreError; then some of the
        new entries may have been added."""
        ...

    def close(self) -> None: ...


class OwnersFile:
    """The index's file, opened on first use. Implements `OwnersStore`; if a call fails, it has added nothing."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        """`folder` may raise OSError."""
        self._database = SqliteFile(folder, _FORM)

    def exchange(self, new: Sequence[Ownership], after: int) -> tuple[list[Ownership], int]:
        if new:
            with self._database.writing() as connection:
                connection.executemany(
                    _INSERT, [(*ownership.key, ownership.owner, ownership.is_answer) for ownership in new]
                )
                for owner, is_answer in {(ownership.owner, ownership.is_answer) for ownership in new}:
                    connection.execute(_TRIM, (owner, is_answer, MOST_ANSWERS if is_answer else MOST_OBJECTS))
        with self._database.reading() as connection:
            rows = [] if connection is None else connection.execute(_SELECT, (after, _AT_ONCE)).fetchall()
        found = [Ownership(ObjectKey(upstream, name), owner, bool(kind)) for _, upstream, name, owner, kind in rows]
        return found, rows[-1][0] if rows else after

    def close(self) -> None:
        self._database.close()
