"""How large a share of the recent attempts failed.

Owns that one number, of a deployment or of a route. Does not own which outcomes are noted (the loop notes those that
tell of the upstream, and rate limits), nor what follows from it (`policy.backoff`, `policy.retry_budget`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MEMORY = 40
"""The newest of so many attempts decide; older ones weigh less and less."""
FADE_S = 15.0
"""Time constant with which attempts lose their weight: after a minute of silence little is left of any share."""

# Fewer attempts than this say little: the missing ones are taken for successes.
_FEW = 10
_KEPT = 1 - 1 / MEMORY
# Attempts so close to one another are taken for simultaneous: `exp` costs as much as all the rest.
_FADE_EACH_S = 0.1


@dataclass(frozen=True, slots=True)
class RecentSnapshot:
    failure_share: float
    """0 to 1."""
    attempts: float
    """The weight that it rests on, in attempts; `MEMORY` at most."""


class Recent:
    """An exponentially weighted mean over attempts and over time.

    It begins with no failure, gains a tenth at most with each, and fades to 0 in silence, so that a deployment is
    not held to what it did a minute ago.
    """

    __slots__ = ("_attempts", "_failures", "_noted_at")

    def __init__(self, now: float) -> None:
        self._attempts = 0.0
        self._failures = 0.0
        self._noted_at = now

    def note(self, is_failure: bool, now: float) -> None:
        """An attempt ended, or its answer began."""
        kept = _KEPT
        if now - self._noted_at > _FADE_EACH_S:
            kept *= self._faded(now)
            self._noted_at = now
        self._attempts = self._attempts * kept + 1.0
        if is_failure or self._failures:
            self._failures = self._failures * kept + is_failure

    def take_back(self, now: float) -> None:
        """An attempt that was noted as a success has failed after all."""
        faded = self._faded(now)
        self._attempts *= faded
        self._failures = min(self._attempts, self._failures * faded + 1.0)
        self._noted_at = now

    def failure_share(self, now: float) -> float:
        """The share of failures, 0 to 1; 0 where nothing is known."""
        if not self._failures:
            return 0.0
        faded = self._faded(now)
        return self._failures * faded / max(_FEW, self._attempts * faded)

    def snapshot(self, now: float) -> RecentSnapshot:
        return RecentSnapshot(self.failure_share(now), self._attempts * self._faded(now))

    def _faded(self, now: float) -> float:
        return math.exp((self._noted_at - now) / FADE_S)
