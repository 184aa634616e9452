"""What something is now, and what it usually is.

Owns two means of one quantity: over the last minutes, and over the hours before them; and what counters have gained
lately. Does not own what follows from them (`policy.alert_rules`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import exp
from operator import sub

_STEPS = 30
"""A window is as exact as one thirtieth of itself."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A sum and what it is a sum of: seconds of so many answers, failures within so many seconds."""

    total: float
    weight: float

    @property
    def value(self) -> float:
        """0 where there is nothing."""
        return self.total / self.weight if self.weight > 0 else 0.0


class Trend:
    """Fed with two sums that only ever grow.

    What leaves the window joins the usual, so that a rise is never held against itself; and the usual forgets with a
    time constant of `memory_s`, so that what has come to stay is the usual in the end.
    """

    __slots__ = ("_marks", "_usual_total", "_usual_weight", "memory_s", "over_s")

    def __init__(self, over_s: float, memory_s: float) -> None:
        """Both > 0; they may be replaced at any moment."""
        self.over_s = over_s
        self.memory_s = memory_s
        self._marks: deque[tuple[float, float, float]] = deque()
        """When, and both sums then. The newest is replaced until it is a step after the one before."""
        self._usual_total = self._usual_weight = 0.0

    def note(self, total: float, weight: float, now: float) -> None:
        """What the sums are now; the first time says where they begin."""
        marks = self._marks
        if len(marks) > 1 and marks[-1][0] - marks[-2][0] < self.over_s / _STEPS:
            marks.pop()
        marks.append((now, total, weight))
        while len(marks) > 2 and marks[1][0] <= now - self.over_s:
            self._join_usual()

    @property
    def recent(self) -> Mean:
        """Of the last `over_s`, as of when it was fed last."""
        if not self._marks:
            return Mean(0.0, 0.0)
        (_, total, weight), (_, last_total, last_weight) = self._marks[0], self._marks[-1]
        return Mean(last_total - total, last_weight - weight)

    @property
    def usual(self) -> Mean:
        """Of the time before, which loses its weight by and by."""
        return Mean(self._usual_total, self._usual_weight)

    def _join_usual(self) -> None:
        at, total, weight = self._marks.popleft()
        until, next_total, next_weight = self._marks[0]
        kept = exp((at - until) / self.memory_s)
        self._usual_total = self._usual_total * kept + next_total - total
        self._usual_weight = self._usual_weight * kept + next_weight - weight


class Gains:
    """What counters that only ever grow have gained in the last `over_s`, which may be replaced at any moment."""

    __slots__ = ("_marks", "over_s")

    def __init__(self, over_s: float, counts: tuple[int, ...], now: float) -> None:
        """`counts`: where the counters begin."""
        self.over_s = over_s
        self._marks: deque[tuple[float, tuple[int, ...]]] = deque([(now, counts)])

    def note(self, counts: tuple[int, ...], now: float) -> tuple[int, ...]:
        """Takes what the counters are now; returns their gains since the last note that is `over_s` old."""
        marks = self._marks
        marks.append((now, counts))
        while len(marks) > 1 and marks[1][0] <= now - self.over_s:
            marks.popleft()
        return tuple(map(sub, counts, marks[0][1]))
