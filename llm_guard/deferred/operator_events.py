"""Aggregates operator events about stored calls: at most one of a kind every 5 seconds, with a complete count."""

from __future__ import annotations

from typing import Protocol

from llm_guard.clock import Clock

_APART_S = 5.0


class PublishEvent(Protocol):
    """Publishes an event, as `admin.events.event_log.EventLog.note` does."""

    def __call__(self, kind: str, /, **facts: str | float | bool | None) -> None: ...


class AggregatedEvents:
    """Aggregates events, and passes them to `publish`."""

    def __init__(self, publish: PublishEvent, clock: Clock) -> None:
        self._publish = publish
        self._clock = clock
        self._untold: dict[tuple[str, str], int] = {}
        self._told_at: dict[tuple[str, str], float] = {}

    def note(self, kind: str, event: str) -> bool:
        """Counts one event. Returns whether it was published now."""
        key = (kind, event)
        self._untold[key] = self._untold.get(key, 0) + 1
        if self._clock.now() - self._told_at.get(key, float("-inf")) < _APART_S:
            return False
        self._tell(key)
        return True

    def look(self) -> None:
        """Publishes held-back events after their interval. Called periodically."""
        now = self._clock.now()
        for key in [key for key in self._untold if now - self._told_at[key] >= _APART_S]:
            self._tell(key)

    def _tell(self, key: tuple[str, str]) -> None:
        self._told_at[key] = self._clock.now()
        self._publish(key[0], event=key[1], count=self._untold.pop(key))
