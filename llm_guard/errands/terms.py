"""When deferred calls are due and when they expire, on the monotonic clock.

The store has both as wall time, for processes to come. While this one lives, a wall clock that is set moves neither:
it is noticed, and what the store has is written anew. Owns the calls that this process has promised or begun. Does not
own the store, nor when it is written (`errands.runner`).
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_guard.clock import Clock
from llm_guard.store.kept import KeptCall

_JUMP_S = 1.0
"""A difference that is less is no setting of the wall clock; a slewed one takes the monotonic clock along."""

Times = dict[str, tuple[float, float]]
"""By the id of a call: when it is due, and when it expires, as wall time."""


@dataclass(slots=True)
class _Term:
    due_at: float
    expires_at: float


class Terms:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_s = clock.wall() - clock.now()
        """Of the wall clock before the monotonic one, as the store knows it."""
        self._terms: dict[str, _Term] = {}

    def note(self, kept: KeptCall) -> None:
        """A call that is promised, or begun: from now on its deadline counts on the monotonic clock."""
        if kept.deadline_at is not None and kept.id not in self._terms:
            ahead_s = self._clock.wall() - self._clock.now()
            due_at = kept.deadline_at if kept.due_at is None else kept.due_at
            self._terms[kept.id] = _Term(due_at - ahead_s, kept.deadline_at - ahead_s)

    def postpone(self, kept_id: str, due_at: float) -> None:
        """It is queued again; `due_at` on the monotonic clock."""
        if (term := self._terms.get(kept_id)) is not None:
            term.due_at = due_at

    def forget(self, kept_id: str) -> None:
        """It is over, or another process's."""
        self._terms.pop(kept_id, None)

    def forget_expired(self, since_s: float) -> None:
        """Those that expired that long ago: another process may have ended them."""
        before = self._clock.now() - since_s
        for kept_id in [each for each, term in self._terms.items() if term.expires_at < before]:
            del self._terms[kept_id]

    def left_s(self, kept: KeptCall) -> float | None:
        """Seconds until it expires, negative afterwards; None: it never does."""
        if kept.deadline_at is None:
            return None
        self.note(kept)
        return self._terms[kept.id].expires_at - self._clock.now()

    def jumped(self) -> float | None:
        """How far the wall clock is ahead of the monotonic one now, if it was set since `accept`."""
        ahead_s = self._clock.wall() - self._clock.now()
        return ahead_s if abs(ahead_s - self._ahead_s) >= _JUMP_S else None

    def times(self, ahead_s: float) -> Times:
        """What the store has to have where the wall clock is that far ahead."""
        return {each: (term.due_at + ahead_s, term.expires_at + ahead_s) for each, term in self._terms.items()}

    def accept(self, ahead_s: float) -> None:
        """The store has what `times` has returned for it."""
        self._ahead_s = ahead_s
