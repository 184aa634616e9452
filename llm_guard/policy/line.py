"""Who waits at a gate, and in which order: lower numbers first, and within a number who came first.

Owns the order. Does not own when somebody may pass (`policy.gate`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(slots=True, eq=False)
class Slot:
    """Leave for one attempt; every slot is given back, once."""

    entered_at: float
    is_back: bool = False


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the line; `notify` is called once, when there is a slot or when it was evicted."""

    priority: int
    notify: Callable[[], None]
    slot: Slot | None = None
    is_evicted: bool = False


class Line:
    """Tickets by priority; each operation takes constant time but for the number of priorities in use."""

    __slots__ = ("_by_priority", "length")

    def __init__(self) -> None:
        self._by_priority: dict[int, OrderedDict[Ticket, None]] = {}
        self.length = 0

    def add(self, ticket: Ticket) -> None:
        self._by_priority.setdefault(ticket.priority, OrderedDict())[ticket] = None
        self.length += 1

    def remove(self, ticket: Ticket) -> bool:
        """False: it was not in the line."""
        queue = self._by_priority.get(ticket.priority)
        if queue is None or ticket not in queue:
            return False
        del queue[ticket]
        if not queue:
            del self._by_priority[ticket.priority]
        self.length -= 1
        return True

    def first(self) -> Ticket | None:
        """Whose turn it is."""
        return next(iter(self._by_priority[min(self._by_priority)])) if self.length else None

    def last(self) -> Ticket | None:
        """Who would be missed least: the newest of the lowest priority."""
        return next(reversed(self._by_priority[max(self._by_priority)])) if self.length else None

    def count_ahead(self, priority: int) -> int:
        """How many a newcomer of `priority` would wait for."""
        return sum(len(queue) for of, queue in self._by_priority.items() if of <= priority)

    def counts(self) -> Mapping[int, int]:
        """How many wait, by priority."""
        return MappingProxyType({of: len(queue) for of, queue in sorted(self._by_priority.items())})
