"""Wait queue of a gate: the order in which calls are served, by priority and fairly by caller within one priority.

Decides the order among priorities, the share that lower ones keep, which call is evicted, and counts the slots held by
each caller. The order within one priority is `resilience.capacity.fair_queue`'s; `resilience.capacity.gate` decides
when a call may pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from llm_guard.resilience.capacity.fair_queue import ANONYMOUS, Caller, FairQueue, Holder, SourceFilter, Ticket
from llm_guard.resilience.capacity.slot_usage import SlotTime

MOST_PASSED = 3
"""After so many turns of other priorities in a row the next is of a priority that waits. So each gets at least a
quarter of the turns, which leaves a margin over the promised fifth for the gaps between a caller's calls."""
# With fewer slots than this no priority can have a quarter of them to itself: their time of use is shared instead.
_FEWEST_SLOTS = MOST_PASSED + 1
# Sums of instants are rounded: between calls that take hardly any time, turns decide.
_PRECISION_S = 0.001
# Each priority may take this fraction of a queue's places from the others. A queue of one or two has none to share.
_PLACES_SHARE = 5
_SHORTEST_SHARED = 3


class WaitQueue:
    """Waiting tickets by priority, lower numbers first."""

    __slots__ = ("_held", "_passed", "_queues", "_slot_time", "length")

    def __init__(self) -> None:
        self._queues: dict[int, FairQueue] = {}
        """Queues by priority; only those in which calls wait."""
        self._passed: dict[int, int] = {}
        """Turns of other priorities since the last one of each priority; it need not have waited all the time."""
        self._held: dict[int, dict[str, float]] = {}
        """Slots held, by priority and caller, by calls that came through the wait queue."""
        self._slot_time = SlotTime()
        """Time for which those slots were used."""
        self.length = 0

    def add(self, ticket: Ticket) -> None:
        queue = self._queues.get(ticket.priority)
        if queue is None:
            queue = self._queues[ticket.priority] = FairQueue()
            self._passed.setdefault(ticket.priority, 0)
        queue.add(ticket)
        self.length += 1

    def remove(self, ticket: Ticket) -> bool:
        """Removes a call that no longer waits. False: it was not in the queue."""
        queue = self._queues.get(ticket.priority)
        if queue is None or not queue.remove(ticket):
            return False
        self._note_shorter(ticket.priority, queue)
        return True

    def take(self, slots: int | None = None, *, newest_first: bool = False, now: float = 0.0) -> Ticket:
        """Removes and returns the next call; `newest_first`: the latest one of the next caller. Raises
        ValueError if none waits. `slots`: see `FairQueue.take`."""
        priority = self._next_priority(self._queues, slots, now)
        queue = self._queues[priority]
        capacity, held = self._shares(priority, queue, slots, now)
        ticket = queue.take(capacity, held, newest_first=newest_first)
        self._note_shorter(priority, queue)
        self.note_turn(priority)
        return ticket

    def take_selected(
        self, only: SourceFilter, slots: int | None = None, *, newest_first: bool = False, now: float = 0.0
    ) -> Ticket:  # fmt: skip
        """Like `take`, but passes over calls that are not selected. Raises ValueError if none is."""
        ready = [of for of, queue in self._queues.items() if queue.has_selected(only, newest_first=newest_first)]
        priority = self._next_priority(ready, slots, now)
        queue = self._queues[priority]
        capacity, held = self._shares(priority, queue, slots, now)
        ticket = queue.take_selected(only, capacity, held, newest_first=newest_first)
        self._note_shorter(priority, queue)
        self.note_turn(priority)
        return ticket

    def has_selected(self, only: SourceFilter, *, newest_first: bool = False) -> bool:
        """Returns whether a selected call may be taken."""
        return any(queue.has_selected(only, newest_first=newest_first) for queue in self._queues.values())

    def may_pass(self, priority: int, slots: int | None = None, now: float = 0.0) -> bool:
        """Returns whether a new call has the next turn, although it has not waited."""
        if not self.length:
            return True
        return priority < min(self._queues) and self._overdue(self._queues, slots, now) is None

    def hold(self, priority: int, caller: str = "", now: float = 0.0) -> Holder:
        """Notes that a call was let in while others waited; pass the result to `release` when its slot is returned."""
        held = self._held.setdefault(priority, {})
        held[caller] = held.get(caller, 0) + 1
        self._slot_time.begin(priority, caller, now)
        return Holder(priority, caller, now)

    def release(self, holder: Holder, now: float = 0.0) -> None:
        """Notes that a slot is returned."""
        self._slot_time.end(holder.priority, holder.caller, holder.since, now)
        held = self._held[holder.priority]
        held[holder.caller] -= 1
        if not held[holder.caller]:
            held.pop(holder.caller)

    def note_turn(self, priority: int) -> None:
        """Notes that a call of this priority is served."""
        passed = self._passed
        for other in passed:
            passed[other] += 1
        passed[priority] = 0

    def count_ahead(
        self, priority: int, caller: Caller = ANONYMOUS, only: SourceFilter | None = None, *, newest_first: bool = False
    ) -> int:  # fmt: skip
        """Returns the number of selected waiting calls that are served before a new one."""
        if not self.length:
            return 0
        own = self._queues.get(priority)
        ahead = own.count_ahead(caller, only, newest_first=newest_first) if own is not None else 0
        counts = {of: queue.count(only, newest_first=newest_first) for of, queue in self._queues.items()}
        if higher := sum(count for other, count in counts.items() if other < priority):
            first = max(0, MOST_PASSED - self._passed.get(priority, 0))
            ahead = min(ahead + higher, first + ahead * (MOST_PASSED + 1))
        return ahead + sum(
            min(count, (ahead + min(MOST_PASSED, self._passed[other])) // MOST_PASSED)
            for other, count in counts.items()
            if other > priority
        )

    def displaced_by(
        self, priority: int, caller: Caller, places: int, *, newest_first: bool = False
    ) -> Ticket | None:  # fmt: skip
        """Returns the call that gives up its place to a new one in a full queue of so many places; None: none does.

        It is the call served last of the caller that waits with the most calls per weight, in the lowest priority that
        can be displaced. Each priority keeps a fifth of the places. A caller displaces its equals only if it would be
        served before them.
        """
        kept = max(1, places // _PLACES_SHARE) if places >= _SHORTEST_SHARED else 0
        displaceable = [other for other, queue in self._queues.items() if len(queue) > kept]
        lowest = max(displaceable, default=priority)
        if lowest > priority:
            return self._queues[lowest].last(newest_first=newest_first)
        own = self._queues.get(priority)
        if own is not None and own.is_before_last(caller, newest_first=newest_first):
            return own.last(newest_first=newest_first)
        has_its_share = (len(own) if own is not None else 0) >= kept
        return None if has_its_share or not displaceable else self._queues[lowest].last(newest_first=newest_first)

    def tickets(self) -> Iterator[Ticket]:
        """Yields the waiting calls, the higher priorities first."""
        for _, queue in sorted(self._queues.items()):
            yield from queue.tickets()

    def counts(self) -> Mapping[int, int]:
        """Returns the number of waiting calls by priority."""
        return MappingProxyType({of: len(queue) for of, queue in sorted(self._queues.items())})

    def _next_priority(self, ready: Collection[int], slots: int | None, now: float) -> int:
        """Returns the priority of the next turn. Raises ValueError if none is ready."""
        overdue = self._overdue(ready, slots, now) if len(ready) > 1 else None
        return min(ready) if overdue is None else overdue

    def _overdue(self, ready: Collection[int], slots: int | None, now: float) -> int | None:
        """Returns the priority that has the next turn before the higher ones, if any. If calls wait for a rate, it is
        the one with the most turns of others since its last one. If they wait for one of four slots or more, it is the
        one that holds the fewest; for one of fewer slots, see `_is_behind`."""
        if slots is not None and slots >= _FEWEST_SLOTS:
            used, priority = min((float(sum(self._held.get(of, {}).values())), of) for of in ready)
            return priority if used * (MOST_PASSED + 1) < slots else None
        candidates = ready if slots is None else [of for of in ready if self._is_behind(of, now)]
        if not candidates:
            return None
        priority = max(sorted(candidates), key=self._passed.__getitem__)
        return priority if slots is not None or self._passed[priority] >= MOST_PASSED else None

    def _is_behind(self, priority: int, now: float) -> bool:
        """Returns whether a priority has used the slots for less than a quarter of the time: clearly, so that with one
        more call it would not exceed the quarter, or while others had three turns."""
        time = self._slot_time
        spare_s = time.total(now) - (MOST_PASSED + 1) * time.of_priority(priority, now)
        typical_s = time.typical_s(priority)
        is_clear = typical_s is not None and spare_s >= MOST_PASSED * max(typical_s, _PRECISION_S)
        return is_clear or (spare_s >= -_PRECISION_S and self._passed[priority] >= MOST_PASSED)

    def _shares(
        self, priority: int, queue: FairQueue, slots: int | None, now: float
    ) -> tuple[float | None, Mapping[str, float]]:
        """Returns what the callers of a priority share, if slots are scarce, and how much of it each has: slots, or the
        time of their use if there are one to three."""
        if slots is None or slots >= _FEWEST_SLOTS:
            return slots, {} if slots is None else self._held.get(priority, {})
        used_s = self._slot_time.of_callers(priority, queue.callers(), now)
        return sum(used_s.values()), used_s

    def _note_shorter(self, priority: int, queue: FairQueue) -> None:
        self.length -= 1
        if not queue:
            del self._queues[priority]
