"""A simulation of one gate on a virtual clock: calls arrive at a provider that has a token bucket."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from math import inf

from llm_guard.resilience.capacity.gate import CapacitySettings, Gate, Slot, Ticket

MAX_ATTEMPTS = 4


@dataclass
class Provider:
    """A token bucket; `rate` may change during a run. A share `moody` of the calls gets a 429 regardless of it."""

    rate: float
    capacity: float = 40.0
    moody: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(5))
    tokens: float = field(default=inf)
    updated_at: float = 0.0

    def accepts(self, now: float) -> bool:
        if self.dice.random() < self.moody:
            return False
        self.tokens = min(self.capacity, self.tokens + (now - self.updated_at) * self.rate)
        self.updated_at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@dataclass
class Call:
    arrived_at: float
    attempts: int = 0
    waited_s: float = 0.0
    answered_at: float | None = None


class World:
    """Runs calls through a gate as the gateway does: they enter or queue, are sent, and retry after a 429."""

    def __init__(self, provider: Provider, retry_after_s: float | None = None, seed: int = 7) -> None:
        self.now = 0.0
        self.provider = provider
        self.retry_after_s = retry_after_s
        self.dice = random.Random(seed)
        self.gate = Gate(CapacitySettings(max_queue=100_000), self.now)
        self.waits: list[tuple[float, float]] = []
        self.calls: list[Call] = []
        self.accepted_at: list[float] = []
        self.refused_at: list[float] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._timer_at = inf

    def at(self, instant: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (instant, next(self._order), what))

    def offer(self, instants: Iterator[float]) -> None:
        for instant in instants:
            call = Call(instant)
            self.calls.append(call)
            self.at(instant, lambda call=call: self.attempt(call))  # type: ignore[misc]  # binds the loop's call

    def run(self, until: float = inf) -> World:
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        return self

    def attempt(self, call: Call) -> None:
        slot = self.gate.try_enter(self.now)
        if slot is not None:
            self.send(call, slot)
            return
        joined_at = self.now
        tickets: list[Ticket] = []

        def granted() -> None:
            slot = tickets[0].slot
            assert slot is not None
            call.waited_s += self.now - joined_at
            self.waits.append((joined_at, self.now - joined_at))
            self.send(call, slot)

        ticket = self.gate.enqueue(1, granted)
        assert ticket is not None
        tickets.append(ticket)
        self.advance()

    def send(self, call: Call, slot: Slot) -> None:
        call.attempts += 1
        self.at(self.now + self.dice.uniform(0.01, 0.05), lambda: self.arrive(call, slot))

    def arrive(self, call: Call, slot: Slot) -> None:
        accepted = self.provider.accepts(self.now)
        (self.accepted_at if accepted else self.refused_at).append(self.now)
        self.at(self.now + self.dice.uniform(0.01, 0.05), lambda: self.answer(call, slot, accepted))

    def answer(self, call: Call, slot: Slot, accepted: bool) -> None:
        latency_s = self.now - slot.entered_at
        self.gate.exit(slot, self.now, "ok" if accepted else "rate_limited", latency_s)
        if accepted:
            call.answered_at = self.now
        elif call.attempts < MAX_ATTEMPTS:
            wait_s = 0.2 * 2 ** (call.attempts - 1) * self.dice.uniform(0.7, 1.3)
            self.at(self.now + (self.retry_after_s or wait_s), lambda: self.attempt(call))
        self.advance()

    def advance(self) -> None:
        again_at = self.gate.dispatch(self.now)
        if again_at is not None and not self.now < self._timer_at <= again_at:
            self._timer_at = again_at
            self.at(again_at, self.advance)

    # results

    def served_within(self, seconds: float) -> float:
        good = sum(c.answered_at is not None and c.answered_at - c.arrived_at <= seconds for c in self.calls)
        return good / len(self.calls)

    def requests_per_call(self) -> float:
        return sum(call.attempts for call in self.calls) / len(self.calls)

    def longest_wait(self, begin: float) -> float:
        """Returns the longest wait among the calls that joined the queue at `begin` or later."""
        return max((waited_s for joined_at, waited_s in self.waits if joined_at >= begin), default=0.0)

    def mean_wait(self) -> float:
        return sum(call.waited_s for call in self.calls) / len(self.calls)

    def utilisation(self, begin: float, end: float, rate: float) -> float:
        return sum(begin <= at < end for at in self.accepted_at) / ((end - begin) * rate)


def evenly(rate: float, begin: float, end: float) -> Iterator[float]:
    for i in range(int((end - begin) * rate)):
        yield begin + i / rate


def at_random(rate: float, begin: float, end: float, seed: int = 3) -> Iterator[float]:
    dice = random.Random(seed)
    while (begin := begin + dice.expovariate(rate)) < end:
        yield begin
