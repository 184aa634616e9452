"""How callers share a gate's capacity, on a virtual clock: a hog, victims, weights, and a thousand callers."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from llm_guard.resilience.capacity.fair_queue import Caller
from llm_guard.resilience.capacity.gate import CapacitySettings, Gate, Slot, Ticket
from tests.effort import some

ANSWER_S = 1.0
LASTS_S = {"slow hog": 20.0, "very slow": 200.0}


class Crowd:
    """Callers that each keep a number of calls open, and send the next one as soon as one is answered."""

    def __init__(self, capacity: int, queue: int = 1_000_000) -> None:
        self.gate = Gate(replace(CapacitySettings(), concurrency=capacity, pacing=False, max_queue=queue), 0.0)
        self.now = 0.0
        self.served: Counter[str] = Counter()
        self.used_s: defaultdict[str, float] = defaultdict(float)
        """Seconds for which each caller's calls have used slots."""
        self.refused: Counter[str] = Counter()
        self._events: list[tuple[float, int, Caller, int, Slot]] = []
        self._numbers = count()
        self._stopped: set[str] = set()
        self._granted: list[tuple[Caller, int]] = []
        self._tickets: dict[int, Ticket] = {}

    def open(self, caller: Caller, calls: int, priority: int = 1) -> None:
        for _ in range(calls):
            self._send(caller, priority)

    def stop(self, name: str) -> None:
        """Stops the caller from sending further calls."""
        self._stopped.add(name)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, caller, priority, slot = heapq.heappop(self._events)
            self.served[caller.name] += 1
            self.gate.exit(slot, self.now, "ok", ANSWER_S)
            self.gate.dispatch(self.now)
            if caller.name not in self._stopped:
                self._send(caller, priority)

    def share(self, name: str) -> float:
        return self.served[name] / self.served.total()

    def share_of_capacity(self, name: str) -> float:
        return self.used_s[name] / sum(self.used_s.values())

    def _send(self, caller: Caller, priority: int) -> None:
        slot = self.gate.try_enter(self.now, priority)
        if slot is not None:
            self._begin(caller, priority, slot)
            return
        number = next(self._numbers)
        ticket = self.gate.enqueue(priority, partial(self._told, number, caller, priority), caller)
        if ticket is None:
            self.refused[caller.name] += 1
        else:
            self._tickets[number] = ticket

    def _told(self, number: int, caller: Caller, priority: int) -> None:
        ticket = self._tickets.pop(number)
        if ticket.slot is None:
            self.refused[caller.name] += 1
        else:
            self._begin(caller, priority, ticket.slot)

    def _begin(self, caller: Caller, priority: int, slot: Slot) -> None:
        # Spreads the answers, so that they do not all arrive at the same instant.
        lasts_s = LASTS_S.get(caller.name, ANSWER_S) * (1 + next(self._numbers) % 7 / 1000)
        self.used_s[caller.name] += lasts_s
        heapq.heappush(self._events, (self.now + lasts_s, next(self._numbers), caller, priority, slot))


@pytest.mark.parametrize(
    ("capacity", "hog_priority", "least"), some([*((c, *rest) for rest in ((0, 0.2), (1, 0.49)) for c in (1, 4, 20))])
)
def test_victim_competes_with_a_heavy_caller(capacity: int, hog_priority: int, least: float) -> None:
    crowd = Crowd(capacity)
    crowd.open(Caller("hog"), 50 * capacity, hog_priority)
    crowd.open(Caller("victim"), 2 * capacity)
    crowd.run(2000 / capacity)
    assert crowd.share("victim") >= least


@pytest.mark.parametrize(
    ("capacity", "hog_priority", "least"),
    some([*((c, *rest) for rest in ((0, 0.2), (1, 0.39)) for c in (1, 2, 3, 4, 5, 20))]),
)
def test_victim_competes_with_a_heavy_caller_whose_calls_take_longer(
    capacity: int, hog_priority: int, least: float
) -> None:
    """With one turn each, the victim would get a twentieth of the capacity."""
    crowd = Crowd(capacity)
    crowd.open(Caller("slow hog"), 50 * capacity, hog_priority)
    crowd.open(Caller("victim"), 2 * capacity)
    crowd.run(8000 / capacity)
    assert crowd.share_of_capacity("victim") >= least


@pytest.mark.parametrize(("capacity", "most"), [(1, 0.35), (2, 0.3), (3, 0.3), (4, 0.3)])
def test_long_calls_of_a_lower_priority_take_no_more_than_its_share(capacity: int, most: float) -> None:
    """On a single slot they get slightly more: such a call takes a third of the remembered time."""
    crowd = Crowd(capacity)
    crowd.open(Caller("slow hog"), 200, priority=2)
    crowd.open(Caller("victim"), 200, priority=1)
    crowd.run(8000 / capacity)
    assert 0.2 <= crowd.share_of_capacity("slow hog") <= most


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_very_long_calls_of_a_lower_priority_have_their_turns(capacity: int) -> None:
    """A call takes longer than the remembered time of use."""
    crowd = Crowd(capacity)
    crowd.open(Caller("very slow"), 20, priority=2)
    crowd.open(Caller("victim"), 200, priority=1)
    crowd.run(20_000)
    assert 0.2 <= crowd.share_of_capacity("very slow") <= 0.6


@pytest.mark.parametrize("hog_weight", [1.0, 3.0])
def test_weights_are_shares_of_the_capacity_for_any_call_duration(hog_weight: float) -> None:
    crowd = Crowd(8)
    crowd.open(Caller("slow hog", hog_weight), 200)
    crowd.open(Caller("victim"), 200)
    crowd.run(2000)
    assert crowd.share_of_capacity("slow hog") == pytest.approx(hog_weight / (hog_weight + 1), abs=0.03)


def test_released_slots_are_forgotten() -> None:
    crowd = Crowd(4)
    crowd.open(Caller("hog"), 20, priority=0)
    crowd.open(Caller("victim"), 20)
    crowd.run(100)
    for name in ("hog", "victim"):
        crowd.stop(name)
    crowd.run(100)
    assert not any(crowd.gate._queue._held.values())


def test_victim_of_one_call_at_a_time_has_nearly_a_fifth_against_a_heavy_caller_of_high_priority() -> None:
    crowd = Crowd(4)
    crowd.open(Caller("hog"), 200, priority=0)
    crowd.open(Caller("victim"), 1)
    crowd.run(500)
    assert crowd.share("victim") >= 0.19


def test_weights_decide_among_callers_whose_demand_exceeds_the_rate() -> None:
    crowd = Crowd(4)
    crowd.open(Caller("light", 1.0), 100)
    crowd.open(Caller("heavy", 3.0), 100)
    crowd.run(500)
    assert crowd.share("heavy") == pytest.approx(0.75, abs=0.01)


def test_capacity_that_one_caller_does_not_use_is_the_others() -> None:
    crowd = Crowd(10)
    crowd.open(Caller("hog"), 100)
    crowd.open(Caller("modest"), 1)
    crowd.run(200)
    assert crowd.served.total() >= 1960
    assert crowd.share("hog") > 0.85


def test_thousand_callers_have_a_thousandth_each() -> None:
    crowd = Crowd(10)
    crowd.open(Caller("hog"), 5000)
    for number in range(1000):
        crowd.open(Caller(str(number)), 2)
    crowd.run(502)
    served = [crowd.served[str(number)] for number in range(1000)]
    assert min(served) >= 3
    assert max(served) <= 6
    assert crowd.served["hog"] <= 20


def test_full_queue_is_shared_as_well() -> None:
    crowd = Crowd(4, queue=20)
    crowd.open(Caller("hog"), 24, priority=0)
    for _ in range(100):
        crowd.open(Caller("hog"), 5, priority=0)
        crowd.open(Caller("victim"), 1)
        crowd.run(1.0)
    assert crowd.share("victim") >= 0.2
    assert crowd.refused["hog"] > 400
