"""Estimates how fast calls arrive, from those that could not go at once."""

from __future__ import annotations

# Longest time over which calls are counted.
_COUNTED_S = 60.0
# Counting begins again after this long without such a call.
_GAP_S = 15.0


class DeniedCalls:
    """Calls that could not enter at once, whether they wait or not."""

    __slots__ = ("_count", "_held", "_held_since", "_latest_at", "_since")

    def __init__(self, now: float) -> None:
        self._count = 0.0
        self._since = self._latest_at = now
        self._held = 0
        self._held_since = now

    def note(self, now: float) -> None:
        """Notes that a call could not enter."""
        counted_s = now - self._since
        if now - self._latest_at > _GAP_S:
            self._count, self._since = 0.0, now
        elif counted_s > _COUNTED_S:
            self._count *= _COUNTED_S / 2 / counted_s
            self._since = now - _COUNTED_S / 2
        self._latest_at = now
        self._count += 1
        self._held += 1

    def begin_hold(self, now: float) -> None:
        """Notes that no call can enter from now on: before, most may have entered at once."""
        self._held, self._held_since = 0, now

    def take_back(self) -> None:
        """Takes back a call that will be counted again, because it is sent once more."""
        self._count = max(0.0, self._count - 1)
        self._held = max(0, self._held - 1)

    def per_s(self, now: float) -> float:
        return self._count / max(1.0, now - self._since)

    def per_s_of_hold(self, now: float) -> float:
        """Returns the rate since the last hold began, or over all if that is more."""
        return max(self.per_s(now), self._held / max(1.0, now - self._held_since))
