"""Calls of a client key at the other gateways of a fleet, before it is known that there were any.

Gateways learn of one another's calls a moment later. Until then each counts its own for those that are probably made
elsewhere meanwhile. Else each would let as many in as all of them may, and then none for a while.
"""

from __future__ import annotations

from math import inf

# Of the calls between two exchanges, a tenth of a second or more apart.
_SMOOTHING = 0.2
_FEW_CALLS = 0.01


class AnticipatedCalls:
    """What one call here stands for. `calls` are all calls here so far."""

    __slots__ = ("_anticipated", "_before", "_everywhere", "_exchanged_at", "_here", "gateways", "weight")

    def __init__(self, now: float) -> None:
        self.gateways = 1
        """Gateways that have the limit together."""
        self.weight = 1.0
        """Calls at all gateways for each one here, on average."""
        self._anticipated = 0.0
        """Calls elsewhere that were counted since the last exchange."""
        self._here = self._everywhere = 0.0
        """Averages of the calls between two exchanges."""
        self._before = 0
        """Calls at the last exchange."""
        self._exchanged_at = now

    def take(self, calls: int) -> float:
        """Notes calls here; returns for how many calls they count."""
        self._anticipated += calls * (self.weight - 1.0)
        return calls * self.weight

    def note(self, calls: int, elsewhere: int, now: float) -> float:
        """Notes an exchange, which has shown so many calls `elsewhere` since the last one. Returns how many of them
        were not counted yet; below 0, too many were."""
        here, self._before = calls - self._before, calls
        unexpected, self._anticipated = elsewhere - self._anticipated, 0.0
        self._here += _SMOOTHING * (here - self._here)
        self._everywhere += _SMOOTHING * (here + elsewhere - self._everywhere)
        self.weight = min(self._everywhere / self._here, self.gateways) if self._here > _FEW_CALLS else 1.0
        self._exchanged_at = now
        return unexpected

    def forget(self) -> None:
        """Anticipates no calls until the next exchange: each gateway has its own part of the limit."""
        self.weight, self._anticipated = 1.0, 0.0

    def burst_wait_s(self, calls: int, rate: float, now: float) -> float:
        """Returns the seconds until one more call may enter; below 0 if it might have entered already. Of a second's
        worth of calls, which may come at once, each gateway has its part between two exchanges: the others may let in
        theirs at the same time."""
        if self.gateways == 1:
            return -inf
        too_many = calls - self._before + 1 - max(1.0, rate / self.gateways)
        return too_many / rate - (now - self._exchanged_at)
