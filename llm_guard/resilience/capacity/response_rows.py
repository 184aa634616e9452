"""Responses in a row: 429s without an accepted call between them, and the other way round."""

from __future__ import annotations

from math import inf

_TOGETHER_S = 1.0


class ResponseRows:
    """The two latest rows. A 429 is faster than other responses: of calls that entered together, those that are
    accepted come back last, and are no row."""

    __slots__ = ("_latest_limited", "accepted", "limited", "limited_since")

    def __init__(self) -> None:
        self.accepted = 0
        """Accepted calls since the last 429, without those that entered together with a call that got one."""
        self.limited = 0
        """429s since the last accepted call."""
        self.limited_since = -inf
        """When the first call of that row entered."""
        self._latest_limited = -inf

    def note_rate_limited(self, entered_at: float) -> None:
        """Notes a 429 for the call that entered at `entered_at`."""
        self.accepted = 0
        self._latest_limited = max(self._latest_limited, entered_at)
        self.limited_since = min(self.limited_since, entered_at) if self.limited else entered_at
        self.limited += 1

    def note_accepted(self, entered_at: float) -> None:
        """Notes another response."""
        if not 0.0 <= self._latest_limited - entered_at <= _TOGETHER_S:
            self.accepted += 1
        if entered_at >= self.limited_since:
            self.limited = 0
