"""Weighted fair queueing by caller: the order in which the waiting calls of one priority are served.

Self-clocked fair queueing (S. J. Golestani, INFOCOM 1994) with one slot as the unit of service. Each waiting call has
a finish tag: the caller's previous tag plus 1 / weight. The lowest tag is served first and becomes the virtual time,
from which a caller that begins to wait starts. So waiting callers are served in proportion to their weights, a caller
that was idle gains no credit, and no state is kept for one that no longer waits. The calls of one caller are served
first come, first served, or newest first on request: tags belong to places in the queue, so the order among callers is
the same either way.

Calls differ in how long they use a slot. If slots are scarce, a caller that holds its share of them, rounded up, waits
for those that do not: otherwise one with calls ten times as long would get ten times as much.

The order among priorities is in `resilience.capacity.wait_queue`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller with its weight in the wait queue."""

    name: str = ""
    weight: float = 1.0
    """> 0."""


ANONYMOUS = Caller()


@dataclass(frozen=True, slots=True)
class SourceFilter:
    """Selects the calls of some sources, or of all others."""

    sources: Collection[str]
    is_among: bool

    def selects(self, ticket: Ticket) -> bool:
        return (ticket.source in self.sources) is self.is_among


@dataclass(frozen=True, slots=True)
class Holder:
    """The priority and caller that a slot counts for."""

    priority: int
    caller: str = ""
    since: float = 0.0


@dataclass(slots=True, eq=False)
class Slot:
    """Permission for one attempt; every slot is returned exactly once."""

    entered_at: float
    is_back: bool = False
    holder: Holder | None = None
    """Set for a slot for which calls waited; it counts against the caller's share."""
    source: str = ""
    """The caller that a provider's refusal of the call is attributed to."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the wait queue; `notify` is called once, when a slot is granted or the ticket is evicted."""

    priority: int
    notify: Callable[[], None]
    caller: Caller = ANONYMOUS
    slot: Slot | None = None
    is_evicted: bool = False
    source: str = ""
    """The caller that a provider's refusal of the call is attributed to."""


@dataclass(slots=True, eq=False)
class _Flow:
    """The waiting calls of one caller. Tags belong to places, not to calls: when a call leaves, those behind it move
    up, and the last tag is dropped."""

    caller: Caller = ANONYMOUS
    tickets: OrderedDict[Ticket, None] = field(default_factory=OrderedDict)
    turns: deque[_Turn] = field(default_factory=deque)


_Turn = tuple[float, int, _Flow]
"""A finish tag, a number that makes it unique (the earlier first), and its flow."""
_NO_FLOW = _Flow()
_NONE_HELD: Mapping[str, float] = MappingProxyType({})


class FairQueue:
    """Tickets of one priority. Each operation takes O(log tickets) comparisons."""

    __slots__ = ("_count", "_flows", "_turns", "_virtual_time", "_weight")

    def __init__(self) -> None:
        self._flows: dict[str, _Flow] = {}
        self._turns: list[_Turn] = []
        """The turns of all flows, in order."""
        self._virtual_time = 0.0
        self._weight = 0.0
        """Sum of the weights of all waiting callers."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, ticket: Ticket) -> None:
        turn_tag = self._next_tag(ticket.caller)
        flow = self._flows.get(ticket.caller.name)
        if flow is None:
            flow = self._flows[ticket.caller.name] = _Flow(ticket.caller)
            self._weight += ticket.caller.weight
        self._count += 1
        turn = (turn_tag, self._count, flow)
        if not self._turns or turn > self._turns[-1]:  # always, for a single caller
            self._turns.append(turn)
        else:
            insort(self._turns, turn)
        flow.turns.append(turn)
        flow.tickets[ticket] = None

    def remove(self, ticket: Ticket) -> bool:
        """Removes a call that no longer waits. False: it was not in the queue."""
        flow = self._flows.get(ticket.caller.name)
        if flow is None or ticket not in flow.tickets:
            return False
        del flow.tickets[ticket]
        del self._turns[bisect_left(self._turns, flow.turns.pop())]
        self._drop_if_empty(flow)
        return True

    def take(
        self, slots: float | None = None, held: Mapping[str, float] = _NONE_HELD, *, newest_first: bool = False
    ) -> Ticket:
        """Removes and returns the next call. Raises IndexError if there is none. `slots`: their number if slots are
        scarce, or the time for which they were used; `held`: how much of that each caller has."""
        at = self._first_below_share(slots, held) if slots is not None and len(self._flows) > 1 else 0
        return self._take_at(at, newest_first=newest_first)

    def take_selected(
        self,
        only: SourceFilter,
        slots: float | None = None,
        held: Mapping[str, float] = _NONE_HELD,
        *,
        newest_first: bool = False,
    ) -> Ticket:
        """Like `take`, but passes over callers if their next call is not selected. Raises ValueError if none is."""
        firsts = sorted(flow.turns[0] for flow in self._flows.values() if self._is_selected(flow, only, newest_first))
        if not firsts:
            raise ValueError("no call is selected")
        turn = firsts[0]
        if slots is not None and len(firsts) > 1:
            per_weight = slots / self._weight
            below = [turn for turn in firsts if held.get(turn[2].caller.name, 0) < per_weight * turn[2].caller.weight]
            turn = below[0] if below else turn
        return self._take_at(bisect_left(self._turns, turn), newest_first=newest_first)

    def has_selected(self, only: SourceFilter, *, newest_first: bool = False) -> bool:
        """Returns whether a caller's next call is selected."""
        return any(self._is_selected(flow, only, newest_first) for flow in self._flows.values())

    def _is_selected(self, flow: _Flow, only: SourceFilter, newest_first: bool) -> bool:
        return only.selects(next(reversed(flow.tickets) if newest_first else iter(flow.tickets)))

    def _take_at(self, at: int, *, newest_first: bool) -> Ticket:
        tag, _, flow = self._turns.pop(at)
        self._virtual_time = max(self._virtual_time, tag)
        flow.turns.popleft()
        ticket, _ = flow.tickets.popitem(last=newest_first)
        self._drop_if_empty(flow)
        return ticket

    def tickets(self) -> Iterator[Ticket]:
        """Yields the waiting calls, caller by caller."""
        for flow in self._flows.values():
            yield from flow.tickets

    def callers(self) -> Collection[str]:
        """Returns the names of the waiting callers."""
        return self._flows.keys()

    def last(self, *, newest_first: bool = False) -> Ticket:
        """Returns the call that is served last, of the caller with the most waiting calls per weight. Raises IndexError
        if there is none."""
        tickets = self._turns[-1][2].tickets
        return next(iter(tickets) if newest_first else reversed(tickets))

    def is_before_last(self, caller: Caller, *, newest_first: bool = False) -> bool:
        """Returns whether a new call of this caller would be served before the last one that waits."""
        if newest_first and caller.name in self._flows:
            return True
        return bool(self._turns) and self._next_tag(caller) < self._turns[-1][0]

    def count(self, only: SourceFilter | None = None, *, newest_first: bool = False) -> int:
        """Returns the number of waiting calls of callers with a selected next call, or of all callers."""
        if only is None:
            return len(self._turns)
        return sum(len(flow.turns) for flow in self._flows.values() if self._is_selected(flow, only, newest_first))

    def count_ahead(self, caller: Caller, only: SourceFilter | None = None, *, newest_first: bool = False) -> int:
        """Returns how many waiting calls are served before a new call of this caller. With `only`, counts the calls of
        the callers with a selected next call."""
        if not self._turns:
            return 0
        newcomer: _Turn = (self._next_tag(caller), self._count + 1, _NO_FLOW)
        if newest_first and (flow := self._flows.get(caller.name)) is not None:
            newcomer = flow.turns[0]
        ahead = len(self._turns) if newcomer > self._turns[-1] else bisect_left(self._turns, newcomer)
        if only is None:
            return ahead
        others = {name for name, flow in self._flows.items() if not self._is_selected(flow, only, newest_first)}
        return ahead - sum(turn[2].caller.name in others for turn in self._turns[:ahead])

    def _next_tag(self, caller: Caller) -> float:
        flow = self._flows.get(caller.name)
        begin = self._virtual_time if flow is None else flow.turns[-1][0]
        return begin + 1 / caller.weight

    def _first_below_share(self, slots: float, held: Mapping[str, float]) -> int:
        """Returns the index of the first turn of a caller with less than its share of the slots; 0 if there is none."""
        per_weight = slots / self._weight
        left = len(self._flows)
        for at, turn in enumerate(self._turns):
            flow = turn[2]
            if held.get(flow.caller.name, 0) < per_weight * flow.caller.weight:
                return at
            if flow.turns[0] is turn:
                left -= 1
                if not left:
                    break
        return 0

    def _drop_if_empty(self, flow: _Flow) -> None:
        if not flow.tickets:
            del self._flows[flow.caller.name]
            self._weight = self._weight - flow.caller.weight if self._flows else 0.0
