"""Recent share of failed attempts, of a deployment or of a route.

The attempt loop decides which outcomes are noted: those that are evidence about the upstream, and rate limits.
`resilience.retry.backoff` and `resilience.retry.budget` use the share.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

MEMORY = 40
"""About this many of the newest attempts decide; older ones weigh less and less."""
FADE_S = 15.0
"""Time constant with which attempts lose their weight: a minute without attempts leaves little of any share."""

# Fewer attempts than this mean little: the missing ones are assumed to be successes.
_FEW = 10
_KEPT = 1 - 1 / MEMORY
# Attempts within this time are treated as simultaneous: `exp` costs as much as everything else.
_FADE_EACH_S = 0.1


@dataclass(frozen=True, slots=True)
class FailureRateSnapshot:
    failure_share: float
    """0 to 1."""
    attempts: float
    """Weight of the evidence, in attempts; at most `MEMORY`."""


class FailureRate:
    """An exponentially weighted mean over attempts and over time.

    It begins at 0, rises by at most a tenth with each failure, and decays to 0 without attempts, so that a deployment
    is not judged by failures of a minute ago.
    """

    __slots__ = ("_attempts", "_failures", "_noted_at")

    def __init__(self, now: float) -> None:
        self._attempts = 0.0
        self._failures = 0.0
        self._noted_at = now

    def note(self, is_failure: bool, now: float) -> None:
        """Notes the end of an attempt, or the beginning of its response."""
        kept = _KEPT
        if now - self._noted_at > _FADE_EACH_S:
            kept *= self._faded(now)
            self._noted_at = now
        self._attempts = self._attempts * kept + 1.0
        if is_failure or self._failures:
            self._failures = self._failures * kept + is_failure

    def take_back(self, now: float) -> None:
        """Turns a success into a failure."""
        faded = self._faded(now)
        self._attempts *= faded
        self._failures = min(self._attempts, self._failures * faded + 1.0)
        self._noted_at = now

    def failure_share(self, now: float) -> float:
        """Returns the share of failures, 0 to 1; 0 if nothing is known."""
        if not self._failures:
            return 0.0
        faded = self._faded(now)
        return self._failures * faded / max(_FEW, self._attempts * faded)

    def snapshot(self, now: float) -> FailureRateSnapshot:
        return FailureRateSnapshot(self.failure_share(now), self._attempts * self._faded(now))

    def _faded(self, now: float) -> float:
        return exp((self._noted_at - now) / FADE_S)
