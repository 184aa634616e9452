"""Counts refusals that belong together: a series ends with a minute without any."""

from __future__ import annotations

from math import inf

SERIES_S = 60.0
"""A pause of this length ends a series."""


class RefusalSeries:
    """A series of refusals, on monotonic time."""

    __slots__ = ("_count", "_last_at")

    def __init__(self) -> None:
        self._count = 0
        self._last_at = -inf

    def note(self, now: float) -> None:
        """Counts a refusal; the first after a pause begins a new series."""
        if now - self._last_at >= SERIES_S:
            self._count = 0
        self._count += 1
        self._last_at = now

    def count(self, now: float) -> int:
        """Returns the refusals of the present series; 0 if it is over."""
        return self._count if now - self._last_at < SERIES_S else 0
