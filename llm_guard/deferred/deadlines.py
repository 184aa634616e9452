"""Keeps due times and deadlines of deferred calls on the monotonic clock.

The store has both as wall time, because they must survive a restart. If the wall clock is set while this process runs,
the jump is detected and `deferred.worker` rewrites the times in the store. Covers the calls that this process has
deferred or begun.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_guard.clock import Clock
from llm_guard.storage.calls.store import StoredCall

_JUMP_S = 1.0
"""Seconds: a smaller difference is no jump of the wall clock. Slewing moves the monotonic clock as well."""

Times = dict[str, tuple[float, float]]
"""Due time and expiry as wall time, by the call's id."""


@dataclass(slots=True)
class _Term:
    due_at: float
    expires_at: float


class CallDeadlines:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_s = clock.wall() - clock.now()
        """Seconds by which the wall clock is ahead of the monotonic one, as of the times in the store."""
        self._terms: dict[str, _Term] = {}

    def note(self, kept: StoredCall) -> None:
        """Starts to track a call that was deferred or begun."""
        if kept.deadline_at is not None and kept.id not in self._terms:
            ahead_s = self._clock.wall() - self._clock.now()
            due_at = kept.deadline_at if kept.due_at is None else kept.due_at
            self._terms[kept.id] = _Term(due_at - ahead_s, kept.deadline_at - ahead_s)

    def postpone(self, kept_id: str, due_at: float) -> None:
        """Sets the next due time of a call that is queued again; `due_at` on the monotonic clock."""
        if (term := self._terms.get(kept_id)) is not None:
            term.due_at = due_at

    def forget(self, kept_id: str) -> None:
        """Stops tracking a call that is over, or that another process has taken over."""
        self._terms.pop(kept_id, None)

    def forget_expired(self, since_s: float) -> None:
        """Stops tracking calls that expired at least `since_s` seconds ago: another process may have ended them."""
        before = self._clock.now() - since_s
        for kept_id in [kept_id for kept_id, term in self._terms.items() if term.expires_at < before]:
            del self._terms[kept_id]

    def left_s(self, kept: StoredCall) -> float | None:
        """Returns the seconds until the call expires, negative afterwards, or None if it never does."""
        if kept.deadline_at is None:
            return None
        self.note(kept)
        return self._terms[kept.id].expires_at - self._clock.now()

    def jumped(self) -> float | None:
        """Returns how far the wall clock is ahead of the monotonic one if it was set since `accept`, else None."""
        ahead_s = self._clock.wall() - self._clock.now()
        return ahead_s if abs(ahead_s - self._ahead_s) >= _JUMP_S else None

    def times(self, ahead_s: float) -> Times:
        """Returns the times that the store must have where the wall clock is `ahead_s` ahead."""
        return {kept_id: (term.due_at + ahead_s, term.expires_at + ahead_s) for kept_id, term in self._terms.items()}

    def accept(self, ahead_s: float) -> None:
        """Records that the store has the times that `times` returned for `ahead_s`."""
        self._ahead_s = ahead_s
