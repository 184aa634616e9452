"""Trends: present and usual values.

Keeps two means of one quantity, over the last minutes and over the hours before them, and the recent gains of counters.
`resilience.alerts.rules` compares them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from operator import sub

_STEPS = 30
"""A window is accurate to one thirtieth of its length."""
_LONGEST_S = 60.0
"""Longest window of counters that gain little."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A sum and its weight: seconds of so many responses, failures within so many seconds."""

    total: float
    weight: float

    @property
    def value(self) -> float:
        """The mean; 0 without weight."""
        return self.total / self.weight if self.weight > 0 else 0.0


class Trend:
    """Recent and usual mean of a quantity, fed with two sums that only grow.

    Values that leave the window join the usual, so that a rise is never compared with itself. The usual decays with a
    time constant of `memory_s`, so that a lasting change becomes the usual in the end.
    """

    __slots__ = ("_marks", "_usual_total", "_usual_weight", "memory_s", "over_s")

    def __init__(self, over_s: float, memory_s: float) -> None:
        """Both > 0; they may be replaced at any moment."""
        self.over_s = over_s
        self.memory_s = memory_s
        self._marks: deque[tuple[float, float, float]] = deque()
        """Time, and both sums then. The newest entry is replaced until it is a step after the one before."""
        self._usual_total = self._usual_weight = 0.0

    def note(self, total: float, weight: float, now: float) -> None:
        """Takes the present sums; the first call sets where they begin."""
        marks = self._marks
        if len(marks) > 1 and marks[-1][0] - marks[-2][0] < self.over_s / _STEPS:
            marks.pop()
        marks.append((now, total, weight))
        while len(marks) > 2 and marks[1][0] <= now - self.over_s:
            self._join_usual()

    @property
    def recent(self) -> Mean:
        """Mean over the last `over_s`, as of the last `note`."""
        if not self._marks:
            return Mean(0.0, 0.0)
        (_, total, weight), (_, last_total, last_weight) = self._marks[0], self._marks[-1]
        return Mean(last_total - total, last_weight - weight)

    @property
    def usual(self) -> Mean:
        """Mean over the time before that, with decaying weight."""
        return Mean(self._usual_total, self._usual_weight)

    def _join_usual(self) -> None:
        at, total, weight = self._marks.popleft()
        until, next_total, next_weight = self._marks[0]
        kept = exp((at - until) / self.memory_s)
        self._usual_total = self._usual_total * kept + next_total - total
        self._usual_weight = self._usual_weight * kept + next_weight - weight


class Gains:
    """Gains of counters that only grow, over the last `over_s`, which may be replaced at any moment, or over up to a
    minute if the gains are few."""

    __slots__ = ("_marks", "over_s")

    def __init__(self, over_s: float, counts: tuple[int, ...], now: float) -> None:
        """`counts`: initial values of the counters."""
        self.over_s = over_s
        self._marks: deque[tuple[float, tuple[int, ...]]] = deque([(now, counts)])

    def note(
        self, counts: tuple[int, ...], now: float, is_few: Callable[[tuple[int, ...]], bool] = lambda _gains: False
    ) -> tuple[tuple[int, ...], float]:
        """Takes what the counters are now; returns their gains since the newest note that is `over_s` old and since
        which they are not `is_few`, and the length of that window in seconds."""
        marks = self._marks
        marks.append((now, counts))
        longest_s = max(self.over_s, _LONGEST_S)
        while len(marks) > 1 and marks[1][0] <= now - longest_s:
            marks.popleft()
        at, mark = marks[0]
        for at, mark in reversed(marks):
            if at <= now - self.over_s and not is_few(tuple(map(sub, counts, mark))):
                break
        return tuple(map(sub, counts, mark)), min(longest_s, max(self.over_s, now - at))
