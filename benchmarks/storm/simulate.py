"""Virtual time, and a provider that serves its queue in order, is down for a while, and may be told of timeouts.

Owns events and the queue. Does not own what a caller does about a timeout (`storm.metastable`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf


class Timeline:
    """Runs what is due, in order of time, and among equals in order of asking; seconds from 0."""

    __slots__ = ("_asked", "_events", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def at(self, instant: float, do: Callable[[], None]) -> None:
        """Have `do` called at `instant`; one that has passed already is now."""
        self._asked += 1
        heapq.heappush(self._events, (max(instant, self.now), self._asked, do))

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        """Have `do` called in `delay_s` seconds, >= 0."""
        self.at(self.now + delay_s, do)

    def run(self, until: float = inf) -> None:
        """Up to and including the instant `until`, or until nothing is left."""
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()


@dataclass(slots=True, eq=False)
class Request:
    """What a provider has in its queue."""

    answer: Callable[[], None]
    """Called when its turn comes, unless its caller has gone."""
    is_abandoned: bool = False
    """Its caller no longer waits."""


class Provider:
    """Serves one request after the other, `capacity_per_s` of them a second; nothing while it is down.

    An answer begins when its turn comes, as a stream's first token does. A provider that is told of timeouts (the
    socket is closed) drops an abandoned request for free, one that is not works on it for nobody.
    """

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
