"""Generic cell rate algorithm (GCRA): when the next call may go at a given rate.

The rate is set in `resilience.capacity.pacing`.
"""

from __future__ import annotations

from math import inf

BURST_S = 0.02
"""A call may go this much early, so that a late timer loses no calls. Allows this many seconds' worth of calls at
once."""
LOWEST_RATE = 1 / 30
"""Lowest limit on the rate, in calls a second."""


class Bucket:
    """A token bucket in the form of one instant, the earliest for the next call (GCRA: ITU-T I.371).

    Rates are in calls a second, and may differ from call to call.
    """

    __slots__ = ("next_at",)

    def __init__(self) -> None:
        self.next_at = -inf
        """The earliest instant of the next call without a burst."""

    def opens_at(self) -> float:
        """Returns the earliest instant of the next call; one in the past means now."""
        return self.next_at - BURST_S

    def take(self, rate: float, now: float) -> None:
        self.next_at = max(self.next_at, now) + 1 / rate

    def put_back(self, rate: float, now: float) -> None:
        """Undoes one `take`."""
        self.next_at = max(now, self.next_at - 1 / rate)

    def correct(self, seconds: float, now: float) -> None:
        """Moves the next call by what calls of another account of the same limit take, or by what was counted too
        much: below 0."""
        self.next_at = max(self.next_at, now) + seconds if seconds > 0 else self.next_at + seconds

    def restart(self, rate: float, now: float) -> None:
        """Makes the next call wait one interval from now, regardless of earlier calls."""
        self.next_at = now + 1 / rate

    def shorten(self, rate: float, now: float) -> None:
        """Limits the wait of the next call to one interval: it may have been set at a lower rate. Never allows more
        than the burst, however often it is called."""
        self.next_at = min(self.next_at, now + BURST_S + 1 / rate)

    def pause(self, until: float) -> None:
        self.next_at = max(self.next_at, until)
