"""What operators hear of kept calls: how many of a kind, not each of ten thousand.

Owns that between two tidings of one kind some seconds pass, and that none is left out of a count.
"""

from __future__ import annotations

from typing import Protocol

from llm_guard.clock import Clock

_APART_S = 5.0


class Note(Protocol):
    """Takes an event, as `ops.journal.Journal.note` does."""

    def __call__(self, kind: str, /, **facts: str | float | bool | None) -> None: ...


class Tidings:
    """`tell` may be replaced; until then nobody hears."""

    def __init__(self, clock: Clock) -> None:
        self.tell: Note = _to_nobody
        self._clock = clock
        self._untold: dict[tuple[str, str], int] = {}
        self._told_at: dict[tuple[str, str], float] = {}

    def note(self, kind: str, what: str) -> bool:
        """It has happened once more; returns whether it was told just now."""
        key = (kind, what)
        self._untold[key] = self._untold.get(key, 0) + 1
        if self._clock.now() - self._told_at.get(key, float("-inf")) < _APART_S:
            return False
        self._tell(key)
        return True

    def look(self) -> None:
        """Now and then: what was held back is told when its time has come."""
        now = self._clock.now()
        for key in [key for key in self._untold if now - self._told_at[key] >= _APART_S]:
            self._tell(key)

    def _tell(self, key: tuple[str, str]) -> None:
        self._told_at[key] = self._clock.now()
        self.tell(key[0], what=key[1], count=self._untold.pop(key))


def _to_nobody(kind: str, /, **facts: str | float | bool | None) -> None:
    """Before there is an operator's side."""
