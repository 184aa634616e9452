"""Callers that wait all the time are served in proportion to their weights, regardless of other callers."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_guard.resilience.capacity.fair_queue import Caller, FairQueue, Ticket
from tests.effort import repeated

weights = st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0, 10.0])
events = st.lists(st.tuples(st.sampled_from(["join", "leave", "take"]), st.integers(0, 5)), max_size=200)


@settings(derandomize=True, deadline=None, max_examples=repeated(300))
@given(shares=st.lists(weights, min_size=2, max_size=6), steps=events)
def test_callers_that_wait_all_the_time_are_served_by_weight(shares: list[float], steps: list[tuple[str, int]]) -> None:
    """The first two wait all the time; the others come and go. Golestani's bound: over any interval their service by
    weight differs by no more than one unit of each."""
    callers = [Caller(str(number), share) for number, share in enumerate(shares)]
    queue = FairQueue()
    waiting: dict[str, list[Ticket]] = {caller.name: [] for caller in callers}
    served: Counter[str] = Counter()

    def join(caller: Caller) -> None:
        ticket = Ticket(1, lambda: None, caller)
        waiting[caller.name].append(ticket)
        queue.add(ticket)

    for caller in callers[:2]:
        for _ in range(2):
            join(caller)
    for event, number in steps:
        caller = callers[number % len(callers)]
        mine = waiting[caller.name]
        if event == "join":
            join(caller)
        elif event == "leave" and len(mine) > 2:
            assert queue.remove(mine.pop(number % len(mine)))
        elif event == "take":
            ticket = queue.take()
            name = ticket.caller.name
            assert waiting[name].pop(0) is ticket, "first come, first served"
            served[name] += 1
            if name in "01":
                join(ticket.caller)
        assert len(queue) == sum(map(len, waiting.values()))
        one, other = callers[:2]
        gap = abs(served[one.name] / one.weight - served[other.name] / other.weight)
        assert gap <= 1 / one.weight + 1 / other.weight + 1e-6
