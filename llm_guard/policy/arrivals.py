"""How fast calls come, counted over those that could not go at once.

Owns the estimate. Does not own what follows from it (`policy.gate`).
"""

from __future__ import annotations

# Calls are counted over at most so many seconds.
_COUNTED_S = 60.0


class DeniedCalls:
    """Calls that could not enter at once, whether they wait or not."""

    __slots__ = ("_count", "_since")

    def __init__(self, now: float) -> None:
        self._count = 0.0
        self._since = now

    def note(self, now: float) -> None:
        """A call could not enter."""
        counted_s = now - self._since
        if counted_s > _COUNTED_S:
            self._count *= _COUNTED_S / 2 / counted_s
            self._since = now - _COUNTED_S / 2
        self._count += 1

    def take_back(self) -> None:
        """A call will be counted again: it is sent once more."""
        self._count = max(0.0, self._count - 1)

    def per_s(self, now: float) -> float:
        return self._count / max(1.0, now - self._since)
