"""An in-memory store of calls with a simulated full disk.

Implements `llm_guard.storage.calls.store.CallStore`. Several gateways share one through `beside`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from llm_guard.storage.calls.store import (
    CallFailure,
    CallFilter,
    CallGroup,
    CallStats,
    Purpose,
    State,
    StoredCall,
    StoredResponse,
    StoreError,
)


class InMemoryCallStore:
    """The store as one gateway sees it; `runner` is that gateway's name."""

    def __init__(self, runner: str = "one", rows: dict[str, StoredCall] | None = None) -> None:
        self.rows: dict[str, StoredCall] = {} if rows is None else rows
        self.leases: dict[str, tuple[str, float]] = {}
        self.problem: str | None = None
        """Error that every method raises, None for no error."""
        self.refused = b"not to be written"
        """A body that the store refuses to write."""
        self.done: list[str] = []
        """Names of the methods that were called, in order."""
        self._runner = runner

    def beside(self, runner: str) -> InMemoryCallStore:
        """Returns another gateway's view of the same calls."""
        other = InMemoryCallStore(runner, self.rows)
        other.leases = self.leases
        return other

    def add(self, *calls: StoredCall) -> None:
        self._note("add")
        if any(call.request.body == self.refused for call in calls):
            raise StoreError("surrogates not allowed")
        for call in calls:
            assert call.id not in self.rows
            self.rows[call.id] = call

    def get(self, call_id: str) -> StoredCall | None:
        self._note("get")
        return self.rows.get(call_id)

    def find(self, wanted: CallFilter, limit: int, before: str | None) -> list[StoredCall]:
        self._note("find")
        return [row for row in reversed(self.rows.values()) if _is_wanted(row, wanted)][:limit]

    def stats(self) -> CallStats:
        self._note("stats")
        count: dict[str, int] = {}
        for row in self.rows.values():
            key = f"{row.purpose}/{row.state}"
            count[key] = count.get(key, 0) + 1
        return CallStats(count=count, size=sum(len(row.request.body or b"") for row in self.rows.values()))

    def groups(self, limit: int) -> list[CallGroup]:
        self._note("groups")
        found: dict[tuple[str, str | None, Purpose, State], list[float]] = {}
        for row in self.rows.values():
            kind = row.ended.kind if row.ended is not None else None
            found.setdefault((row.request.route, kind, row.purpose, row.state), []).append(row.received_at)
        groups = [CallGroup(*of, len(times), min(times), max(times)) for of, times in found.items()]
        return sorted(groups, key=lambda group: -group.count)[:limit]

    def begin(self, now: float, limit: int, lease_s: float, purpose: Purpose | None = None) -> list[StoredCall]:
        self._note(f"begin {purpose} {limit}")
        due = [
            row for row in self.rows.values()
            if row.state == "queued" and (row.due_at or 0.0) <= now and purpose in (None, row.purpose)
        ]  # fmt: skip
        begun = sorted(due, key=lambda call: call.due_at or 0.0)[:limit]
        for call in begun:
            self.leases[call.id] = (self._runner, now + lease_s)
            self._put(call, state="running", due_at=None, rounds=call.rounds + 1)
        return [self.rows[call.id] for call in begun]

    def extend(self, ids: Sequence[str], now: float, lease_s: float) -> list[str]:
        self._note("extend")
        for each in ids:
            if self._is_mine(each):
                self.leases[each] = (self._runner, now + lease_s)
        return [each for each in ids if not self._is_mine(each)]

    def reschedule(self, times: Mapping[str, tuple[float, float]]) -> None:
        self._note("reschedule")
        for call_id, (due_at, deadline_at) in times.items():
            kept = self.rows.get(call_id)
            if kept is not None and kept.state in ("queued", "running"):
                self._put(kept, due_at=due_at if kept.state == "queued" else None, deadline_at=deadline_at)

    def put_back(self, call_id: str, ended: CallFailure | None, now: float, due_at: float) -> bool:
        return self._leave("put_back", call_id, ended, now, state="queued", due_at=due_at)

    def answer(self, call_id: str, answer: StoredResponse, attempts: int, now: float) -> bool:
        kept = self.rows.get(call_id)
        attempts += kept.attempts if kept is not None else 0
        facts = {"state": "answered", "answer": answer, "attempts": attempts, "answered_at": now}
        return self._leave("answer", call_id, None, now, **facts)

    def dead_letter(self, call_id: str, ended: CallFailure, now: float) -> bool:
        return self._leave("dead_letter", call_id, ended, now, state="dead")

    def requeue(self, wanted: CallFilter, now: float, pace_s: float) -> list[str]:
        self._note("requeue")
        dead = [row for row in self.rows.values() if row.state == "dead" and _is_wanted(row, wanted)]
        for place, call in enumerate(dead):
            self._put(call, state="queued", due_at=now + pace_s * place, deadline_at=None)
        return [call.id for call in dead]

    def delete(self, wanted: CallFilter, *, running: bool = False) -> int:
        self._note("delete")
        found = [row for row in self.rows.values() if running or row.state != "running"]
        gone = [row.id for row in found if _is_wanted(row, wanted)]
        for each in gone:
            del self.rows[each]
        return len(gone)

    def mark_notified(self, call_id: str, state: State) -> None:
        self._note("mark_notified")
        self._put(self.rows[call_id], told=state)

    def unnotified(self, webhook: str, limit: int) -> list[StoredCall]:
        self._note("unnotified")
        over = [row for row in self.rows.values() if row.state in ("answered", "dead") and row.state != row.told]
        return [call for call in over if call.webhook == webhook][:limit]

    def recover(self, now: float) -> int:
        self._note("recover")
        lost = [row for row in self.rows.values() if row.state == "running" and self.leases[row.id][1] <= now]
        for call in lost:
            self._put(call, state="queued", due_at=now)
        return len(lost)

    def sweep(self, now: float, answered_for_s: float, max_age_s: float, max_bytes: int) -> int:
        self._note("sweep")
        gone = [row for row in self.rows.values() if row.answered_at and row.answered_at <= now - answered_for_s]
        for call in gone:
            del self.rows[call.id]
        return len(gone)

    def close(self) -> None:
        self.done.append("close")

    def _note(self, what: str) -> None:
        self.done.append(what)
        if self.problem is not None:
            raise StoreError(self.problem)

    def _is_mine(self, call_id: str) -> bool:
        kept = self.rows.get(call_id)
        return kept is not None and kept.state == "running" and self.leases[call_id][0] == self._runner

    def _leave(self, what: str, call_id: str, ended: CallFailure | None, now: float, **facts: object) -> bool:
        self._note(what)
        if not self._is_mine(call_id):
            return False
        kept = self.rows[call_id]
        if ended is not None:
            facts |= {"ended": ended, "attempts": kept.attempts + ended.attempts, "last_failed_at": now}
        self._put(kept, **facts)
        return True

    def _put(self, kept: StoredCall, **facts: object) -> None:
        self.rows[kept.id] = replace(kept, **facts)


def _is_wanted(call: StoredCall, wanted: CallFilter) -> bool:
    facts = {
        "purpose": call.purpose, "state": call.state, "route": call.request.route,
        "kind": call.ended and call.ended.kind,
    }  # fmt: skip
    is_one = wanted.ids is None or call.id in wanted.ids
    return is_one and all(getattr(wanted, name) in (None, value) for name, value in facts.items())
