"""How fast calls come, counted over those that could not go at once.

Owns the estimate. Does not own what follows from it (`policy.gate`).
"""

from __future__ import annotations

# Calls are counted over at most so many seconds.
_COUNTED_S = 60.0
# Counting begins again after such a time in which all calls could enter.
_GAP_S = 15.0


class DeniedCalls:
    """Calls that could not enter at once, whether they wait or not."""

    __slots__ = ("_count", "_latest_at", "_since")

    def __init__(self, now: float) -> None:
        self._count = 0.0
        self._since = self._latest_at = now

    def note(self, now: float) -> None:
        """A call could not enter."""
        counted_s = now - self._since
        if now - self._latest_at > _GAP_S:
            self._count, self._since = 0.0, now
        elif counted_s > _COUNTED_S:
            self._count *= _COUNTED_S / 2 / counted_s
            self._since = now - _COUNTED_S / 2
        self._latest_at = now
        self._count += 1

    def take_back(self) -> None:
        """A call will be counted again: it is sent once more."""
        self._count = max(0.0, self._count - 1)

    def per_s(self, now: float) -> float:
        return self._count / max(1.0, now - self._since)
