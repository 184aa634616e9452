"""The schema of stored calls in SQLite, and the conversion between calls and rows.

The operations are in `storage.calls.sqlite_store`. Bodies are in a table of their own, so that searching for calls does
not read them; `storage.calls.bodies` encrypts them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from llm_guard.storage.calls.bodies import Bodies, Part, Unreadable
from llm_guard.storage.calls.store import (
    CallFailure,
    CallFilter,
    Purpose,
    StoredCall,
    StoredRequest,
    StoredResponse,
    as_text,
)
from llm_guard.storage.sqlite_file import DatabaseSpec

_CALLS = """
CREATE TABLE calls (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE, request_id TEXT NOT NULL,
    purpose TEXT NOT NULL CHECK (purpose IN ({purposes})),
    state TEXT NOT NULL CHECK (state IN ('dead', 'queued', 'running', 'answered')),
    owner TEXT NOT NULL, client TEXT, route TEXT NOT NULL, request TEXT NOT NULL, is_repeatable INTEGER NOT NULL,
    received_at REAL NOT NULL, first_failed_at REAL, last_failed_at REAL,
    attempts INTEGER NOT NULL, rounds INTEGER NOT NULL, due_at REAL, deadline_at REAL,
    kind TEXT, ended TEXT, answer TEXT, answered_at REAL, webhook TEXT, told TEXT,
    runner TEXT, leased_until REAL,
    size INTEGER NOT NULL,
    CHECK ((state = 'queued') = (due_at IS NOT NULL)),
    CHECK ((state = 'answered') = (answered_at IS NOT NULL)),
    CHECK ((state = 'running') = (runner IS NOT NULL AND leased_until IS NOT NULL))
);
"""
_INDEXES = """
CREATE INDEX calls_by_age ON calls (received_at);
CREATE INDEX calls_due ON calls (due_at) WHERE state = 'queued';
CREATE INDEX calls_running ON calls (leased_until) WHERE state = 'running';
CREATE INDEX calls_answered ON calls (answered_at) WHERE state = 'answered';
CREATE INDEX calls_dead ON calls (received_at, size) WHERE state = 'dead';
CREATE INDEX calls_untold ON calls (webhook, number)
    WHERE webhook IS NOT NULL AND state IN ('answered', 'dead') AND told IS NOT state;
"""
_OTHERS = """
CREATE TABLE bodies (call INTEGER NOT NULL, part TEXT NOT NULL, key TEXT, content BLOB NOT NULL);
CREATE UNIQUE INDEX bodies_of ON bodies (call, part);

CREATE TABLE totals (
    purpose TEXT NOT NULL, state TEXT NOT NULL, count INTEGER NOT NULL, size INTEGER NOT NULL,
    PRIMARY KEY (purpose, state)
) WITHOUT ROWID;
"""
# Triggers keep sizes and totals: they stay correct for every writer, and counting reads neither bodies nor all calls.
_TRIGGERS = """
CREATE TRIGGER calls_come AFTER INSERT ON calls BEGIN
    INSERT INTO totals VALUES (NEW.purpose, NEW.state, 1, NEW.size)
        ON CONFLICT (purpose, state) DO UPDATE SET count = count + 1, size = size + excluded.size;
END;
CREATE TRIGGER calls_go AFTER DELETE ON calls BEGIN
    UPDATE totals SET count = count - 1, size = size - OLD.size WHERE purpose = OLD.purpose AND state = OLD.state;
    DELETE FROM bodies WHERE call = OLD.number;
END;
CREATE TRIGGER calls_change AFTER UPDATE OF state, size ON calls BEGIN
    UPDATE totals SET count = count - 1, size = size - OLD.size WHERE purpose = OLD.purpose AND state = OLD.state;
    INSERT INTO totals VALUES (NEW.purpose, NEW.state, 1, NEW.size)
        ON CONFLICT (purpose, state) DO UPDATE SET count = count + 1, size = size + excluded.size;
END;
CREATE TRIGGER bodies_come AFTER INSERT ON bodies BEGIN
    UPDATE calls SET size = size + length(NEW.content) WHERE number = NEW.call;
END;
CREATE TRIGGER bodies_go AFTER DELETE ON bodies BEGIN
    UPDATE calls SET size = size - length(OLD.content) WHERE number = OLD.call;
END;
"""
_FIRST = _CALLS.format(purposes="'letter', 'later'") + _INDEXES + _OTHERS + _TRIGGERS
_MOVE_CALLS = """
INSERT INTO calls SELECT number, id, request_id, iif(purpose = 'letter', 'dead_letter', 'deferred'),
        state, owner, client, route, request, is_repeatable,
        received_at, first_failed_at, last_failed_at, attempts, rounds, due_at, deadline_at, kind, ended, answer,
        answered_at, webhook, told, runner, leased_until, size
    FROM old_calls;
UPDATE totals SET purpose = iif(purpose = 'letter', 'dead_letter', 'deferred');
DROP TABLE old_calls;
"""
_SECOND = (
    "".join(
        f"DROP TRIGGER {name};\n" for name in ("calls_come", "calls_go", "calls_change", "bodies_come", "bodies_go")
    )
    + "ALTER TABLE calls RENAME TO old_calls;\n"
    + _CALLS.format(purposes="'dead_letter', 'deferred'")
    + _MOVE_CALLS
    + _INDEXES
    + _TRIGGERS
)
"""Renames the purposes. SQLite cannot change a CHECK, so the table is replaced."""
_THIRD = """
ALTER TABLE calls ADD COLUMN home TEXT;
CREATE TABLE gateways (runner TEXT PRIMARY KEY, alive_until REAL NOT NULL) WITHOUT ROWID;
"""
"""`home`: the runner that has the caller's credentials; NULL: the call needs none."""
FORM = DatabaseSpec("calls.db", "the store of calls", (_FIRST, _SECOND, _THIRD), reserve_bytes=8 * 1024**2)

_COLUMNS = (
    "number", "id", "request_id", "purpose", "state", "owner", "client", "request", "received_at", "first_failed_at",
    "last_failed_at", "attempts", "rounds", "due_at", "deadline_at", "ended", "answer", "answered_at", "webhook",
    "told",
)  # fmt: skip
SELECT = f"SELECT {', '.join(_COLUMNS)} FROM calls"  # noqa: S608  # constants only
_WRITTEN = (*_COLUMNS[1:], "route", "is_repeatable", "kind", "size")
INSERT = f"INSERT INTO calls ({', '.join(_WRITTEN)}) VALUES ({', '.join(f':{name}' for name in _WRITTEN)})"  # noqa: S608
_TERMS = {
    "purpose": "purpose = :purpose",
    "state": "state = :state",
    "route": "route = :route",
    "kind": "kind = :kind",
    "since": "received_at >= :since",
    "until": "received_at <= :until",
    "ids": "id IN (SELECT value FROM json_each(:ids))",
}
_ROW_BYTES = 500
"""Size of a row besides its texts: numbers and indexes."""


def written(call: StoredCall) -> dict[str, Any]:
    """The values of INSERT, without the bodies."""
    row = {name: getattr(call, name) for name in _COLUMNS[1:]}
    request, ended, answer = as_text(call.request), as_text(call.ended), as_text(call.answer)
    return row | {
        "request": request, "ended": ended, "answer": answer,
        "route": call.request.route, "is_repeatable": call.request.is_repeatable,
        "kind": None if call.ended is None else call.ended.kind,
        "size": _ROW_BYTES + sum(len(text or "") for text in (request, ended, answer)),
    }  # fmt: skip


def condition(wanted: CallFilter) -> tuple[str, dict[str, Any]]:
    """The filter as an SQL condition, with its values. Contains only the terms that are set, so that SQLite can choose
    an index."""
    values = {name: getattr(wanted, name) for name in _TERMS}
    terms = ["TRUE", *(term for name, term in _TERMS.items() if values[name] is not None)]
    return " AND ".join(terms), values | {"ids": json.dumps(sorted(wanted.ids or ()))}


def stored_call(row: Sequence[Any], bodies: Mapping[Part, bytes], *, is_readable: bool = True) -> StoredCall:
    """Converts a row of SELECT. Raises Unreadable."""
    facts = dict(zip(_COLUMNS, row, strict=True))
    del facts["number"]
    try:
        request = msgspec.json.decode(facts.pop("request"), type=StoredRequest)
        ended = msgspec.json.decode(facts.pop("ended") or "null", type=CallFailure | None)
        answer = msgspec.json.decode(facts.pop("answer") or "null", type=StoredResponse | None)
    except (msgspec.DecodeError, RecursionError) as error:  # the file was changed by something else
        raise Unreadable(f"{facts['id']}: {error}") from None
    return StoredCall(
        **facts,
        request=msgspec.structs.replace(request, body=bodies.get("request")),
        ended=ended and msgspec.structs.replace(ended, body=bodies.get("ended")),
        answer=answer and msgspec.structs.replace(answer, body=bodies.get("answer", b"")),
        is_readable=is_readable,
    )


def put_bodies(
    connection: sqlite3.Connection, number: int, call_id: str, purpose: Purpose, bodies: Bodies,
    parts: Mapping[Part, bytes | None],
) -> None:  # fmt: skip
    """Replaces these parts; None deletes one."""
    for part, content in parts.items():
        connection.execute("DELETE FROM bodies WHERE call = ? AND part = ?", (number, part))
        if content is not None:
            key, kept = bodies.seal(content, f"{call_id}/{part}", purpose)
            connection.execute(
                "INSERT INTO bodies (call, part, key, content) VALUES (?, ?, ?, ?)", (number, part, key, kept)
            )


def bodies_of(
    connection: sqlite3.Connection, number: int, call_id: str, bodies: Bodies
) -> tuple[dict[Part, bytes], bool]:
    """Returns the stored bodies that could be decrypted, and whether that was all of them. Raises Unreadable."""
    found: dict[Part, bytes] = {}
    is_open = True
    for part, key, content in connection.execute("SELECT part, key, content FROM bodies WHERE call = ?", (number,)):
        opened = bodies.open(content, f"{call_id}/{part}", key)
        if opened is None:
            is_open = False
        else:
            found[part] = opened
    return found, is_open
