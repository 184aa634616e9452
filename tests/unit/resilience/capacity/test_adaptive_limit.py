"""The learned concurrency limit, against a provider that refuses calls beyond its capacity."""

from __future__ import annotations

import heapq
from random import Random

import pytest

from llm_guard.resilience.capacity.adaptive_limit import AdaptiveLimit


class World:
    """Sends as many calls as the limit allows to a provider that holds `most` and slows down beyond `knee`."""

    def __init__(self, knee: int, most: int, answer_s: float = 0.2, failing: float = 0.0) -> None:
        self.limit = AdaptiveLimit()
        self.limit.keep_within(1, 1000)
        self.refused = self.answered = 0
        self._knee, self._most, self._answer_s, self._failing = knee, most, answer_s, failing
        self._ends: list[tuple[float, float, bool]] = []
        self._inside = 0
        self._dice = Random(7)
        self._now = 0.0

    def run(self, until: float) -> None:
        self.refused = self.answered = 0
        while self._now < until:
            while len(self._ends) < self.limit.limit:
                self._enter()
            self._end()

    def _enter(self) -> None:
        if self._inside >= self._most or self._dice.random() < self._failing:
            heapq.heappush(self._ends, (self._now + 0.05, self._now, True))
            return
        self._inside += 1
        took_s = self._answer_s * max(1.0, self._inside / self._knee) * (0.9 + self._dice.random() / 5)
        heapq.heappush(self._ends, (self._now + took_s, self._now, False))

    def _end(self) -> None:
        in_flight = len(self._ends)
        self._now, entered_at, is_refused = heapq.heappop(self._ends)
        if is_refused:
            self.refused += 1
            self.limit.note_overload(entered_at, self._now, in_flight)
            return
        self._inside -= 1
        self.answered += 1
        self.limit.note_answer(entered_at, self._now, self._now - entered_at, in_flight)


@pytest.mark.parametrize(("knee", "most"), [(8, 24), (3, 6), (40, 100), (20, 20)])
def test_limit_settles_between_the_knee_and_the_refused_load(knee: int, most: int) -> None:
    world = World(knee, most)
    world.run(20.0)
    world.run(120.0)
    assert 0.9 * knee <= world.limit.limit <= most + 1
    assert world.refused <= 0.03 * (world.refused + world.answered)
    assert world.answered >= 0.95 * 100 * knee / 0.2


def test_random_overloads_do_not_bring_the_limit_down_for_good() -> None:
    world = World(20, 1000, failing=0.3)
    world.run(20.0)
    world.run(220.0)
    assert world.answered >= 0.8 * 200 * 20 / 0.2


def test_ceiling_is_passed_again_when_the_provider_holds_more() -> None:
    world = World(24, 24)
    world.run(30.0)
    world._most = world._knee = 60
    world.run(150.0)
    assert world.limit.limit > 40
