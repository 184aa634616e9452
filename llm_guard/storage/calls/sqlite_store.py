"""Deferred calls and dead letters in a SQLite file that several gateways can share.

Ensures that each call is run by one gateway at a time, and ended only by the gateway that runs it. Blocking; used by
one thread. Opening the file is in `storage.sqlite_file`, its schema in `storage.calls.schema`.

Times are wall time, passed in by the caller: all gateways must agree on it to within a lease. Where it jumps ahead, a
call that runs elsewhere may be started a second time; where it jumps back, due calls wait that much longer.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_guard.storage.calls.bodies import Bodies, Unreadable
from llm_guard.storage.calls.process_lock import RunnerLock
from llm_guard.storage.calls.schema import (
    FORM,
    INSERT,
    SELECT,
    bodies_of,
    condition,
    put_bodies,
    stored_call,
    written,
)
from llm_guard.storage.calls.statements import (
    ALIVE,
    BEGIN,
    CAN_BE_ASKED,
    DUE,
    EXTEND,
    GONE,
    GROUPS,
    LOST,
    MOVE,
    OVERDUE_AND_UNREADABLE,
    REQUEUE,
    RESCHEDULE,
    RUNNING,
    SET_HOME,
    TOO_MANY,
    TOO_OLD,
)
from llm_guard.storage.calls.store import (
    HOME_S,
    INTERRUPTED,
    OVERDUE,
    CallFailure,
    CallFilter,
    CallGroup,
    CallStats,
    Purpose,
    State,
    StoredCall,
    StoredResponse,
    as_text,
    stored_at,
)
from llm_guard.storage.errors import DiskFullError, StoreError
from llm_guard.storage.sqlite_file import SqliteFile

_BATCH = 300
_BATCH_BYTES = 2 * 1024**2
"""Limits of a transaction that deletes, so that other gateways get their turn and the WAL stays small."""
_AT_ONCE = 5_000
"""Maximum number of rows deleted by one call: takes 0.4 s, for which other work waits."""
_Doomed = tuple[str, State, int]
"""Id, state and size of a row to be deleted, unless it has changed since it was read."""


class SqliteCallStore:
    """Implements `CallStore` for one gateway. Opens the file on first use; after a StoreError the next call opens it
    again."""

    def __init__(self, folder: Callable[[], Path], runner: str | RunnerLock, bodies: Bodies) -> None:
        """`folder` may raise OSError. `runner` identifies this process uniquely. With a lock, calls of an earlier
        process are taken over at once; without one, when their leases end."""
        self._database = SqliteFile(folder, FORM)
        self._lock = None if isinstance(runner, str) else runner
        self._runner = runner if isinstance(runner, str) else runner.runner
        self._bodies = bodies
        self._is_home = False
        """True once this process has the credentials of a stored call."""

    def adopt(self, bodies: Bodies) -> None:
        """Changes how bodies are stored from now on. Stored ones stay as they are, and are read with the keys of
        `bodies`."""
        self._bodies = bodies

    def add(self, *calls: StoredCall) -> None:
        with self._database.writing() as connection:
            for call in calls:
                number = connection.execute(INSERT, written(call)).lastrowid
                assert number is not None  # noqa: S101  # set after every INSERT
                if call.request.needs_credentials:
                    connection.execute(SET_HOME, (self._runner, number))
                    connection.execute(ALIVE, (self._runner, stored_at(call) + HOME_S))
                    self._is_home = True
                put_bodies(connection, number, call.id, call.purpose, self._bodies, self._bodies.of_new(call))

    def get(self, call_id: str) -> StoredCall | None:
        with self._database.reading() as connection:
            row = connection and connection.execute(f"{SELECT} WHERE id = ?", (call_id,)).fetchone()
            return _whole(connection, row, self._bodies) if connection and row else None

    def find(self, wanted: CallFilter, limit: int, before: str | None) -> list[StoredCall]:
        """Returns none if the call with the id `before` is gone."""
        where, values = condition(wanted)
        if before is not None:
            where += " AND (received_at, number) < (SELECT received_at, number FROM calls WHERE id = :before)"
        order = "ORDER BY received_at DESC, number DESC LIMIT :limit"
        return self._bare(f"{SELECT} WHERE {where} {order}", values | {"before": before, "limit": limit})

    def stats(self) -> CallStats:
        with self._database.reading() as connection:
            if connection is None:
                return CallStats(count={}, size=0)
            totals = connection.execute("SELECT purpose, state, count, size FROM totals WHERE count > 0").fetchall()
            oldest_at = connection.execute("SELECT min(received_at) FROM calls").fetchone()[0]
        count = {f"{purpose}/{state}": number for purpose, state, number, _ in totals}
        return CallStats(count=count, size=sum(size for *_, size in totals), oldest_at=oldest_at)

    def groups(self, limit: int) -> list[CallGroup]:
        with self._database.reading() as connection:
            return [CallGroup(*row) for row in connection.execute(GROUPS, (limit,))] if connection else []

    def begin(self, now: float, limit: int, lease_s: float, purpose: Purpose | None = None) -> list[StoredCall]:
        if not self._database.is_there():
            return []
        if self._lock is not None:
            self._lock.hold()
        bodies = self._bodies  # another thread may replace it
        values = {
            "now": now, "purpose": purpose, "limit": limit, "keys": json.dumps(bodies.keys), "runner": self._runner,
        }  # fmt: skip
        with self._database.writing() as connection:
            if self._is_home:
                connection.execute(ALIVE, (self._runner, now + HOME_S))
            numbers = [number for (number,) in connection.execute(DUE, values).fetchall()]
            connection.executemany(BEGIN, [(self._runner, now + lease_s, number) for number in numbers])
            begun = [self._begun(connection, number, bodies, now) for number in numbers]
        return [call for call in begun if call is not None]

    def extend(self, ids: Sequence[str], now: float, lease_s: float) -> list[str]:
        """Returns the calls that no longer run here: taken over by another gateway, or deleted."""
        if not self._database.is_there():
            return list(ids)
        with self._database.writing() as connection:
            until = now + lease_s
            return [
                call_id for call_id in ids if not connection.execute(EXTEND, (until, call_id, self._runner)).rowcount
            ]

    def reschedule(self, times: Mapping[str, tuple[float, float]]) -> None:
        if times and self._database.is_there():
            with self._database.writing() as connection:
                connection.executemany(RESCHEDULE, [(*both, call_id) for call_id, both in times.items()])

    def put_back(self, call_id: str, ended: CallFailure | None, now: float, due_at: float) -> bool:
        return self._leave(call_id, "queued", now, ended, due_at=due_at)

    def answer(self, call_id: str, answer: StoredResponse, attempts: int, now: float) -> bool:
        """Deletes the request, which is no longer needed."""
        return self._leave(call_id, "answered", now, None, answer=answer, attempts=attempts)

    def dead_letter(self, call_id: str, ended: CallFailure, now: float) -> bool:
        return self._leave(call_id, "dead", now, ended)

    def requeue(self, wanted: CallFilter, now: float, pace_s: float) -> list[str]:
        """Queues the oldest first, behind dead letters that wait already, and without a deadline. Calls without a
        readable request stay dead."""
        if not self._database.is_there():
            return []
        where, values = condition(wanted)
        where += f" AND state = 'dead' AND {CAN_BE_ASKED}"
        chosen = f"SELECT number, id FROM calls WHERE {where} ORDER BY received_at, number"  # noqa: S608  # constants
        ahead = "SELECT count(*) FROM calls WHERE state = 'queued' AND due_at > ? AND purpose = 'dead_letter'"
        with self._database.writing() as connection:
            found = connection.execute(chosen, values | {"keys": json.dumps(self._bodies.keys)}).fetchall()
            first = connection.execute(ahead, (now,)).fetchone()[0]
            dues = [(now + pace_s * place, number) for place, (number, _) in enumerate(found, first)]
            connection.executemany(REQUEUE, dues)
        return [call_id for _, call_id in found]

    def delete(self, wanted: CallFilter, *, running: bool = False) -> int:
        where, values = condition(wanted)
        where += "" if running else " AND state != 'running'"
        chosen = f"SELECT id, state, size FROM calls WHERE {where} LIMIT {_AT_ONCE}"  # noqa: S608  # constants
        return self._making_room(lambda: self._delete(self._rows(chosen, values)))

    def mark_notified(self, call_id: str, state: State) -> None:
        if self._database.is_there():
            with self._database.writing() as connection:
                connection.execute("UPDATE calls SET told = ? WHERE id = ?", (state, call_id))

    def unnotified(self, webhook: str, limit: int) -> list[StoredCall]:
        where = "webhook = :webhook AND state IN ('answered', 'dead') AND told IS NOT state"
        return self._bare(f"{SELECT} WHERE {where} ORDER BY number LIMIT :limit", {"webhook": webhook, "limit": limit})

    def recover(self, now: float) -> int:
        if not self._database.is_there():
            return 0
        ended = [] if self._lock is None else self._lock.ended()
        with self._database.writing() as connection:
            connection.execute(GONE, (json.dumps(ended),))
            if self._is_home:
                connection.execute(ALIVE, (self._runner, now + HOME_S))
            found = connection.execute(LOST, {"now": now, "ended": json.dumps(ended)}).fetchall()
            for call_id, runner, is_repeatable in found:
                if is_repeatable:
                    self._move(connection, call_id, runner, "queued", now, None, due_at=now)
                else:
                    self._move(connection, call_id, runner, "dead", now, INTERRUPTED)
        if self._lock is not None:
            for runner in ended:
                self._lock.forget(runner)
        return len(found)

    def sweep(self, now: float, answered_for_s: float, max_age_s: float, max_bytes: int) -> int:
        """Deletes some thousands at most; the next sweep goes on. `max_bytes`: of the dead calls. Queued calls that are
        too old and past their deadline are deleted too, since no gateway processes them any more. Those that this
        gateway has no key for are marked dead at their deadline."""
        if not self._database.is_there():
            return 0
        ages = {"answered": now - answered_for_s, "received": now - max_age_s, "now": now, "limit": _AT_ONCE}
        count = self._making_room(lambda: self._delete(self._rows(TOO_OLD, ages)))
        dead = self._rows("SELECT coalesce(sum(size), 0) FROM totals WHERE state = 'dead'")
        if dead and dead[0][0] > max_bytes:
            most = {"most": max_bytes, "limit": _AT_ONCE - min(count, _AT_ONCE)}
            count += self._making_room(lambda: self._delete(self._rows(TOO_MANY, most)))
        self._bury_overdue(now)
        self._database.give_back()
        return count

    def close(self) -> None:
        if self._is_home:
            with contextlib.suppress(StoreError), self._database.writing() as connection:
                connection.execute(GONE, (json.dumps([self._runner]),))
        self._database.close()
        if self._lock is not None:
            self._lock.release()

    # one call

    def _begun(self, connection: sqlite3.Connection, number: int, bodies: Bodies, now: float) -> StoredCall | None:
        """Returns None for a damaged call, and marks it as dead, so that it does not block the others."""
        row = connection.execute(f"{SELECT} WHERE number = ?", (number,)).fetchone()
        try:
            return _whole(connection, row, bodies)
        except Unreadable as error:
            self._move(connection, row[1], self._runner, "dead", now, CallFailure(kind="damaged", detail=str(error)))
            return None

    def _leave(self, call_id: str, state: State, now: float, ended: CallFailure | None, **facts: Any) -> bool:
        if not self._database.is_there():
            return False
        with self._database.writing() as connection:
            return self._move(connection, call_id, self._runner, state, now, ended, **facts)

    def _move(
        self, connection: sqlite3.Connection, call_id: str, runner: str, state: State, now: float,
        ended: CallFailure | None, **facts: Any,
    ) -> bool:  # fmt: skip
        """Ends a call that `runner` runs. False: it does not run there."""
        found = connection.execute(RUNNING, (call_id, runner)).fetchone()
        if found is None:
            return False
        number, purpose = found
        self._end(connection, number, call_id, purpose, state, now, ended, **facts)
        return True

    def _bury_overdue(self, now: float) -> None:
        values = {"now": now, "keys": json.dumps(self._bodies.keys), "limit": _AT_ONCE}
        if self._rows(OVERDUE_AND_UNREADABLE, values):
            with self._database.writing() as connection:
                for number, call_id, purpose in connection.execute(OVERDUE_AND_UNREADABLE, values).fetchall():
                    self._end(connection, number, call_id, purpose, "dead", now, OVERDUE)

    def _end(
        self, connection: sqlite3.Connection, number: int, call_id: str, purpose: Purpose, state: State, now: float,
        ended: CallFailure | None, *, due_at: float | None = None, answer: StoredResponse | None = None,
        attempts: int = 0,
    ) -> None:  # fmt: skip
        """Changes the state, and stores or deletes the bodies as the new state requires."""
        values = {
            "number": number, "state": state, "due_at": due_at, "ended": as_text(ended), "answer": as_text(answer),
            "kind": None if ended is None else ended.kind, "failed_at": None if ended is None else now,
            "attempts": attempts if ended is None else ended.attempts,
            "answered_at": None if answer is None else now,
        }  # fmt: skip
        connection.execute(MOVE, values)
        parts = self._bodies.after(purpose, state, ended, answer)
        put_bodies(connection, number, call_id, purpose, self._bodies, parts)

    # many calls

    def _rows(self, query: str, values: Mapping[str, Any] | Sequence[Any] = ()) -> list[Any]:
        with self._database.reading() as connection:
            return [] if connection is None else connection.execute(query, values).fetchall()

    def _bare(self, query: str, values: Mapping[str, Any]) -> list[StoredCall]:
        return [stored_call(row, {}) for row in self._rows(query, values)]

    def _making_room(self, delete: Callable[[], int]) -> int:
        try:
            return delete()
        except DiskFullError:
            if not self._database.has_released_reserve():
                raise
            return delete()

    def _delete(self, doomed: Iterable[_Doomed]) -> int:
        """Returns how many were deleted: those that had not changed since they were read."""
        count = 0
        for batch in _batches(doomed):
            with self._database.writing() as connection:
                count += connection.executemany("DELETE FROM calls WHERE id = ? AND state = ?", batch).rowcount
            self._database.give_back()
        return count


def _whole(connection: sqlite3.Connection, row: Sequence[Any], bodies: Bodies) -> StoredCall:
    """Raises Unreadable."""
    number, call_id = row[:2]
    found, is_readable = bodies_of(connection, number, call_id, bodies)
    return stored_call(row, found, is_readable=is_readable)


def _batches(doomed: Iterable[_Doomed]) -> Iterator[list[tuple[str, State]]]:
    batch: list[tuple[str, State]] = []
    size = 0
    for call_id, state, its_size in doomed:
        batch.append((call_id, state))
        size += its_size
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
