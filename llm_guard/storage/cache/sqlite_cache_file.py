"""Cached responses in a SQLite file.

Defines the schema, eviction, and totals that stay correct. Blocking; used by one thread. Timeouts are applied in
`storage.cache.blocking_cache`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from llm_guard.storage.cache.response_store import CachedResponse, CacheHit, EntriesChange, RouteCacheSize, cost_of
from llm_guard.storage.sqlite_file import DatabaseSpec, SqliteFile

FILE = "cache.db"

_LATE_S = 60.0
"""An entry further in the future was stored before the clock was set back: its age is unknown, so it is a miss."""
_SOME = 64
_FIRST = """
CREATE TABLE answers (
    key BLOB PRIMARY KEY, route TEXT NOT NULL, stored_at REAL NOT NULL, ends_at REAL NOT NULL, used_at REAL NOT NULL,
    size INTEGER NOT NULL, answer BLOB NOT NULL
);
CREATE INDEX answers_by_end ON answers (ends_at);
CREATE INDEX answers_by_use ON answers (used_at);
CREATE TABLE totals (route TEXT PRIMARY KEY, entries INTEGER NOT NULL, size INTEGER NOT NULL);
CREATE TRIGGER answers_come AFTER INSERT ON answers BEGIN
    INSERT INTO totals VALUES (NEW.route, 1, NEW.size)
        ON CONFLICT (route) DO UPDATE SET entries = entries + 1, size = size + NEW.size;
END;
CREATE TRIGGER answers_go AFTER DELETE ON answers BEGIN
    UPDATE totals SET entries = entries - 1, size = size - OLD.size WHERE route = OLD.route;
END;
"""
_FORM = DatabaseSpec(FILE, "the cache", (_FIRST,), is_durable=False)
_GET = "SELECT answer, stored_at FROM answers WHERE key = ? AND ends_at > ?"
_PUT = "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)"
_TOUCH = "UPDATE answers SET used_at = max(used_at, ?) WHERE key = ?"
_LEAST_USED = "SELECT key, size FROM answers ORDER BY used_at LIMIT ?"
_TOTALS = "SELECT route, entries, size FROM totals WHERE entries > 0"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(CachedResponse).decode


class CacheFile:
    """Implements `CacheEntries`."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        """`folder` may raise OSError."""
        self._database = SqliteFile(folder, _FORM)

    def get(self, key: bytes, now: float) -> CacheHit | None:
        with self._database.reading() as connection:
            row = None if connection is None else connection.execute(_GET, (key, now)).fetchone()
        if row is None or row[1] > now + _LATE_S:
            return None
        try:
            return CacheHit(_decode(row[0]), max(0.0, now - row[1]))
        except (msgspec.MsgspecError, RecursionError):  # the file was changed by something else
            return None

    def put(
        self, key: bytes, answer: CachedResponse, now: float, lasts_s: float, touches: Mapping[bytes, float], most: int
    ) -> EntriesChange:
        size = cost_of(answer)
        with self._database.writing() as connection:
            connection.executemany(_TOUCH, [(used_at, touched) for touched, used_at in touches.items()])
            gone = _delete(connection, "ends_at <= ?", now)
            _delete(connection, "key = ?", key)
            evicted = _make_room(connection, most - size) if size <= most else 0
            if size <= most:
                connection.execute(_PUT, (key, answer.route, now, now + lasts_s, now, size, _encode(answer)))
            return EntriesChange(_routes(connection), evicted, gone)

    def forget_ended(self, now: float, most: int) -> EntriesChange:
        with self._database.writing() as connection:
            gone = _delete(connection, "ends_at <= ?", now)
            evicted = _make_room(connection, most)
            written = EntriesChange(_routes(connection), evicted, gone)
        if gone + evicted:
            self._database.give_back()
        return written

    def purge(self, route: str | None) -> EntriesChange:
        with self._database.writing() as connection:
            gone = _delete(connection, "1") if route is None else _delete(connection, "route = ?", route)
            written = EntriesChange(_routes(connection), gone=gone)
        self._database.give_back()
        return written

    def close(self) -> None:
        self._database.close()


def _delete(connection: sqlite3.Connection, which: str, *values: object) -> int:
    """`which` is a literal condition of this module."""
    return connection.execute(f"DELETE FROM answers WHERE {which}", values).rowcount  # noqa: S608  # contains no values


def _make_room(connection: sqlite3.Connection, most: int) -> int:
    """Evicts the least recently used entries and returns their number."""
    held = sum(route.bytes for route in _routes(connection).values())
    evicted = 0
    while held > most and (oldest := connection.execute(_LEAST_USED, (_SOME,)).fetchall()):
        going = list(_until_fits(oldest, held - most))
        for key, size in going:
            _delete(connection, "key = ?", key)
            held -= size
        evicted += len(going)
    return evicted


def _until_fits(rows: Iterable[tuple[bytes, int]], excess: int) -> Iterable[tuple[bytes, int]]:
    for key, size in rows:
        if excess <= 0:
            return
        yield key, size
        excess -= size


def _routes(connection: sqlite3.Connection) -> dict[str, RouteCacheSize]:
    return {route: RouteCacheSize(entries, size) for route, entries, size in connection.execute(_TOTALS)}
