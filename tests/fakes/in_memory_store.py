"""An in-memory store of calls with a simulated full disk.

Implements `llm_guard.storage.calls.store.CallStore`. Several gateways share one through `beside`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from llm_guard.storage.calls.store import (
    CallFailure,
    CallFilter,
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
        return [each for each in reversed(self.rows.values()) if _is_wanted(each, wanted)][:limit]

    def stats(self) -> CallStats:
        self._note("stats")
        count: dict[str, int] = {}
        for each in self.rows.values():
            key = f"{each.purpose}/{each.state}"
            count[key] = count.get(key, 0) + 1
        return CallStats(count=count, size=sum(len(each.request.body or b"") for each in self.rows.values()))

    def begin(self, now: float, limit: int, lease_s: float, purpose: Purpose | None = None) -> list[StoredCall]:
        self._note(f"begin {purpose} {limit}")
        due = [
            each for each in self.rows.values()
            if each.state == "queued" and (each.due_at or 0.0) <= now and purpose in (None, each.purpose)
        ]  # fmt: skip
        begun = sorted(due, key=lambda each: each.due_at or 0.0)[:limit]
        for each in begun:
            self.leases[each.id] = (self._runner, now + lease_s)
            self._put(each, state="running", due_at=None, rounds=each.rounds + 1)
        return [self.rows[each.id] for each in begun]

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
        dead = [each for each in self.rows.values() if each.state == "dead" and _is_wanted(each, wanted)]
        for place, each in enumerate(dead):
            self._put(each, state="queued", due_at=now + pace_s * place, deadline_at=None)
        return [each.id for each in dead]

    def delete(self, wanted: CallFilter) -> int:
        self._note("delete")
        gone = [each.id for each in self.rows.values() if each.state != "running" and _is_wanted(each, wanted)]
        for each in gone:
            del self.rows[each]
        return len(gone)

    def mark_notified(self, call_id: str, state: State) -> None:
        self._note("mark_notified")
        self._put(self.rows[call_id], told=state)

    def unnotified(self, webhook: str, limit: int) -> list[StoredCall]:
        self._note("unnotified")
        over = [each for each in self.rows.values() if each.state in ("answered", "dead") and each.state != each.told]
        return [each for each in over if each.webhook == webhook][:limit]

    def recover(self, now: float) -> int:
        self._note("recover")
        lost = [each for each in self.rows.values() if each.state == "running" and self.leases[each.id][1] <= now]
        for each in lost:
            self._put(each, state="queued", due_at=now)
        return len(lost)

    def sweep(self, now: float, answered_for_s: float, max_age_s: float, max_bytes: int) -> int:
        self._note("sweep")
        gone = [each for each in self.rows.values() if each.answered_at and each.answered_at <= now - answered_for_s]
        for each in gone:
            del self.rows[each.id]
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
