"""Event log: breaker transitions, alerts, reloads, drains, changes by operators.

Keeps the last events in order, and passes new ones to subscribers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from llm_guard.clock import Clock
from llm_guard.proxy.telemetry.access_log import Timestamps

KEPT = 2000
"""Most events kept. A reader that reconnects gets those that it missed of these."""


class OperatorEvent(msgspec.Struct, frozen=True):
    """An event."""

    id: int
    """Number of the event, from 1 since the start of the process."""
    at: str
    """Time, ISO 8601 in UTC."""
    kind: str
    """Kind of event: `breaker`, `alert`, `reload`, `drain`, `change`, ..."""
    facts: dict[str, str | int | float | bool | None]
    """Details, depending on the kind."""


class EventLog:
    """The last events. Used from the event loop's thread only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[OperatorEvent] = deque(maxlen=KEPT)
        self._readers: set[Callable[[OperatorEvent], None]] = set()
        self._last_id = 0
        self._timestamps = Timestamps()

    def note(self, kind: str, /, **facts: str | float | bool | None) -> None:
        """Records an event that happens now."""
        self._last_id += 1
        event = OperatorEvent(self._last_id, self._timestamps.of(self._clock.wall()), kind, facts)
        self._events.append(event)
        for tell in tuple(self._readers):
            tell(event)

    @property
    def last_id(self) -> int:
        return self._last_id

    def since(self, last_id: int) -> tuple[list[OperatorEvent], bool]:
        """Returns the events after `last_id`, and whether none of them is lost."""
        kept = [event for event in self._events if event.id > last_id]
        return kept, self._last_id - last_id == len(kept)

    def subscribe(self, tell: Callable[[OperatorEvent], None]) -> Callable[[], None]:
        """Calls `tell` at once with every new event; it must not block or raise. Returns a function that
        unsubscribes."""
        self._readers.add(tell)
        return lambda: self._readers.discard(tell)
