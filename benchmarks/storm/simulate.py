"""Virtual time, and a provider that serves its queue in order, is down for a while, and may notice its callers'
timeouts.

A caller's behaviour after a timeout is in `storm.metastable`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf


class Timeline:
    """Runs events in order of time, and equal times in order of insertion; seconds from 0."""

    __slots__ = ("_asked", "_events", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def at(self, instant: float, do: Callable[[], None]) -> None:
        """Calls `do` at `instant`; a past one counts as now."""
        self._asked += 1
        heapq.heappush(self._events, (max(instant, self.now), self._asked, do))

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        """Calls `do` in `delay_s` seconds, >= 0."""
        self.at(self.now + delay_s, do)

    def run(self, until: float = inf) -> None:
        """Runs all events up to and including the time `until`, or until none is left."""
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()


@dataclass(slots=True, eq=False)
class Request:
    """A request in a provider's queue."""

    answer: Callable[[], None]
    """Called when it is served, unless its caller has gone."""
    is_abandoned: bool = False
    """True if its caller no longer waits."""


class Provider:
    """Serves one request after the other, `capacity_per_s` of them a second; none while it is down.

    A response begins when the request is served, like a stream's first token. A provider that notices timeouts (the
    socket is closed) drops an abandoned request for free; one that does not wastes time on it."""

    __slots__ = ("_back_at", "_down_at", "_is_busy", "_is_told", "_queue", "_service_s", "_timeline", "requests")

    def __init__(self, timeline: Timeline, capacity_per_s: float, down: tuple[float, float], is_told: bool) -> None:
        self._timeline = timeline
        self._service_s = 1 / capacity_per_s
        self._down_at, self._back_at = down
        self._is_told = is_told
        self._queue: deque[Request] = deque()
        self._is_busy = False
        self.requests = 0

    def send(self, request: Request) -> None:
        """Puts a request into the queue."""
        self.requests += 1
        self._queue.append(request)
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        now = self._timeline.now
        self._is_busy = True
        if self._down_at <= now < self._back_at:
            self._timeline.at(self._back_at, self._begin)
            return
        while self._queue and self._is_told and self._queue[0].is_abandoned:
            self._queue.popleft()
        self._is_busy = bool(self._queue)
        if self._queue:
            request = self._queue.popleft()
            if not request.is_abandoned:
                request.answer()
            self._timeline.after(self._service_s, self._begin)
