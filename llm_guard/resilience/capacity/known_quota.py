"""Memory of a small quota, which outlives its learned rate.

`resilience.capacity.learned_rate` forgets a rate that no call waits for. If few more calls come than a quota allows,
that happens after every burst, and finding the quota again costs a dozen 429s.
"""

from __future__ import annotations

from math import inf

_KNOWN_S = 900.0
# A 429 of the same quota comes when about as many calls were accepted within a minute. A fixed window may accept nearly
# twice as many, at the end of one window and at the beginning of the next.
_LEAST_SHARE = 0.9
_MOST_SHARE = 2.0


class KnownQuota:
    """The rate that was accepted in the minute before the latest 429 of a quota, known for 15 minutes."""

    __slots__ = ("_known_until", "_rate", "_rate_before_row")

    def __init__(self) -> None:
        self._rate = 0.0
        self._known_until = -inf
        self._rate_before_row = 0.0
        """Calls a second that were accepted in the minute before the latest 429s in a row."""

    def note(self, rate: float, now: float) -> None:
        """Notes a 429 of a quota. `rate`: calls a second that were accepted in the minute before it."""
        if rate:
            self._rate, self._known_until = rate, now + _KNOWN_S

    def begin_row(self, rate: float) -> None:
        """Notes the first 429 after an accepted call. `rate`: calls a second that were accepted in the minute before
        it; 1: one or more."""
        self._rate_before_row = rate

    def note_renewal(self, until: float, now: float) -> None:
        """Notes that the latest 429s in a row name `until` as the instant at which their quota is renewed. A wait for
        less than one call says nothing: a bucket that holds few calls names the instant of the next one, however few
        were accepted before."""
        rate = self._rate_before_row
        if rate < 1 and rate * (until - now) >= 1:
            self.note(rate, now)

    def is_spent(self, now: float) -> bool:
        """Returns whether the latest 429s in a row are due to the known quota."""
        return self.recall(self._rate_before_row, now) is not None

    def recall(self, rate: float, now: float) -> float | None:
        """Returns the quota's rate if a 429 after a minute with `rate` accepted calls a second is due to it. None: it
        is not, or no quota is known."""
        if now < self._known_until and _LEAST_SHARE * self._rate <= rate <= _MOST_SHARE * self._rate:
            return self._rate
        return None

    def forget(self) -> None:
        self._known_until = -inf
