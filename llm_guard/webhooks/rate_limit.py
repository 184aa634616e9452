"""Rate limit for sending webhooks: a generic cell rate algorithm (ITU-T I.371), which needs one number."""

from __future__ import annotations

from dataclasses import dataclass

BURST = 5
"""Number that may go at once after a pause."""


@dataclass(frozen=True, slots=True)
class SendRateSnapshot:
    wait_s: float
    """Seconds until the next may go; 0 if it may now."""


class SendRate:
    """Allows `per_second`, > 0, on average."""

    __slots__ = ("_full_at", "_step_s")

    def __init__(self, per_second: float) -> None:
        self._step_s = 1 / per_second
        self._full_at = float("-inf")
        """When a whole burst may go again."""

    def take(self, now: float) -> None:
        """Counts one that goes, whether it may or not."""
        self._full_at = max(self._full_at, now) + self._step_s

    def wait_s(self, now: float) -> float:
        """Returns the seconds until the next may go, >= 0."""
        return max(0.0, self._full_at - (BURST - 1) * self._step_s - now)

    def snapshot(self, now: float) -> SendRateSnapshot:
        return SendRateSnapshot(self.wait_s(now))
