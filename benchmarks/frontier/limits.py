"""Providers with a maximum concurrency, which refuse further calls or queue them."""

from __future__ import annotations

import heapq
from random import Random

from benchmarks.virtual import answers
from benchmarks.virtual.provider import Answer, Request


class Crowded:
    """Responds more slowly the more calls are in flight beyond the knee, and refuses calls above the maximum with a
    503."""

    def __init__(self, knee: int, most: int, answer_s: float, failing: float = 0.0) -> None:
        self._knee, self._most, self._answer_s, self._failing = knee, most, answer_s, failing
        self._ends: list[float] = []
        self._draw = Random(7)
        self.peaks: list[tuple[float, int]] = []

    def answer(self, request: Request) -> Answer:
        self._ends = [end for end in self._ends if end > request.at]
        if len(self._ends) >= self._most or self._draw.random() < self._failing:
            return answers.error("openai", "503", request.model, None, 0.05)
        took_s = self._answer_s * max(1.0, (len(self._ends) + 1) / self._knee)
        self._ends.append(request.at + took_s)
        self.peaks.append((request.at, len(self._ends)))
        return answers.right("openai", request.model, took_s)


class Returning:
    """Fails until a given time, and then serves a fixed number of calls at once; the others are queued."""

    def __init__(self, back_at: float, places: int, answer_s: float) -> None:
        self._back_at, self._answer_s = back_at, answer_s
        self._free_at = [0.0] * places

    def answer(self, request: Request) -> Answer:
        if request.at < self._back_at:
            return answers.error("openai", "503", request.model, None, 0.05)
        began_at = max(request.at, heapq.heappop(self._free_at))
        heapq.heappush(self._free_at, began_at + self._answer_s)
        return answers.right("openai", request.model, began_at + self._answer_s - request.at)
