"""What has happened, for whoever watches: transitions, alerts, reloads, drains, an operator's changes.

Owns the order of events, how many are kept, and who waits for the next. Does not own what is an event (whoever notes
it), nor how it is sent (`ops.events`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from llm_guard.clock import Clock
from llm_guard.gateway.call_line import Timestamps

KEPT = 2000
"""Events; a reader that comes back gets what it missed of these."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened."""

    id: int
    """Counts up from 1 since the start of the process."""
    at: str
    """ISO 8601, UTC."""
    kind: str
    """`breaker`, `alert`, `reload`, `drain`, `change`, ..."""
    facts: dict[str, str | int | float | bool | None]
    """By kind."""


class Journal:
    """The last events. Of one thread, the event loop's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._readers: set[Callable[[Event], None]] = set()
        self._last_id = 0
        self._timestamps = Timestamps()

    def note(self, kind: str, /, **facts: str | float | bool | None) -> None:
        """It has happened just now."""
        self._last_id += 1
        event = Event(self._last_id, self._timestamps.of(self._clock.wall()), kind, facts)
        self._events.append(event)
        for tell in tuple(self._readers):
            tell(event)

    @property
    def last_id(self) -> int:
        return self._last_id

    def since(self, last_id: int) -> tuple[list[Event], bool]:
        """What came after the event `last_id`, and whether none of it is lost."""
        kept = [event for event in self._events if event.id > last_id]
        return kept, self._last_id - last_id == len(kept)

    def subscribe(self, tell: Callable[[Event], None]) -> Callable[[], None]:
        """`tell` hears of every event from now on, at once: it must not block nor raise. Returns how to end that."""
        self._readers.add(tell)
        return lambda: self._readers.discard(tell)
