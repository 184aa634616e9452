"""SQL of `storage.calls.sqlite_store`. The tables are in `storage.calls.schema`."""

from __future__ import annotations

MINE = "id = ? AND state = 'running' AND runner = ?"
RESCHEDULE = """
    UPDATE calls SET due_at = iif(state = 'queued', ?, NULL), deadline_at = ?
    WHERE id = ? AND state IN ('queued', 'running')
"""
RUNNING = f"SELECT number, purpose FROM calls WHERE {MINE}"  # noqa: S608  # constants
EXTEND = f"UPDATE calls SET leased_until = ? WHERE {MINE}"  # noqa: S608  # constants
# json_each takes a list of any length; SQLite's own parameters do not.
CAN_BE_ASKED = """
    EXISTS (SELECT 1 FROM bodies WHERE call = number AND part = 'request'
        AND (key IS NULL OR key IN (SELECT value FROM json_each(:keys))))
"""
DUE = f"""
    SELECT number FROM calls WHERE state = 'queued' AND due_at <= :now AND (:purpose IS NULL OR purpose = :purpose)
    AND (home IS NULL OR home = :runner OR home NOT IN (SELECT runner FROM gateways WHERE alive_until > :now))
    AND {CAN_BE_ASKED} ORDER BY due_at, number LIMIT :limit
"""  # noqa: S608  # constants
OVERDUE_AND_UNREADABLE = f"""
    SELECT number, id, purpose FROM calls
    WHERE state = 'queued' AND deadline_at <= :now AND NOT {CAN_BE_ASKED} LIMIT :limit
"""  # noqa: S608  # constants
LOST = """
    SELECT id, runner, is_repeatable FROM calls
    WHERE state = 'running' AND (leased_until <= :now OR runner IN (SELECT value FROM json_each(:ended)))
"""
SET_HOME = "UPDATE calls SET home = ? WHERE number = ?"
ALIVE = """
    INSERT INTO gateways VALUES (?, ?)
    ON CONFLICT (runner) DO UPDATE SET alive_until = max(alive_until, excluded.alive_until)
"""
GONE = "DELETE FROM gateways WHERE runner IN (SELECT value FROM json_each(?))"
BEGIN = """
    UPDATE calls SET state = 'running', runner = ?, leased_until = ?, due_at = NULL, rounds = rounds + 1
    WHERE number = ?
"""
MOVE = """
    UPDATE calls SET state = :state, due_at = :due_at, runner = NULL, leased_until = NULL,
        kind = coalesce(:kind, kind), ended = coalesce(:ended, ended), attempts = attempts + :attempts,
        first_failed_at = coalesce(first_failed_at, :failed_at), last_failed_at = coalesce(:failed_at, last_failed_at),
        answer = :answer, answered_at = :answered_at,
        size = size + coalesce(length(:ended) - coalesce(length(ended), 0), 0) + coalesce(length(:answer), 0)
    WHERE number = :number
"""
REQUEUE = "UPDATE calls SET state = 'queued', due_at = ?, deadline_at = NULL WHERE number = ?"
TOO_OLD = """
    SELECT id, state, size FROM calls WHERE state = 'answered' AND answered_at <= :answered
    UNION ALL SELECT id, state, size FROM calls WHERE state = 'dead' AND received_at <= :received
    UNION ALL SELECT id, state, size FROM calls
        WHERE state = 'queued' AND received_at <= :received AND coalesce(deadline_at, 0) <= :now
    LIMIT :limit
"""
TOO_MANY = """
    SELECT id, state, size FROM (
        SELECT id, state, size, sum(size) OVER (ORDER BY received_at DESC, number DESC) AS total
        FROM calls WHERE state = 'dead'
    ) WHERE total > :most ORDER BY total DESC LIMIT :limit
"""
GROUPS = """
    SELECT route, kind, purpose, state, count(*), min(received_at), max(received_at) FROM calls
    GROUP BY route, kind, purpose, state ORDER BY count(*) DESC, route, kind, state LIMIT ?
"""
