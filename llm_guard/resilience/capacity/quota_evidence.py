"""Evidence against a small quota: 429s at a rate that no quota would refuse.

A storm may refuse a part of all calls, however slowly they go. Taken for a quota, it leads to an ever lower rate: fewer
calls are accepted, and the next quota appears to be smaller. `resilience.capacity.learned_rate` acts on the evidence.
"""

from __future__ import annotations

from math import inf, log

# In a minute a quota accepts at most twice its number: a full bucket and what is refilled, or the end of a window and
# the beginning of the next. So half of what was accepted in any minute is within the quota, unless that has changed.
_WITHIN_QUOTA = 0.5
# The most that was accepted in a minute is known for 5 to 10 minutes.
_KNOWN_S = 300.0
# A sequential probability ratio test (Wald) compares two shares of 429s. A quota refuses few of the calls within it,
# because its windows begin at unknown times; a storm refuses many. The doubt is the logarithm of the ratio. Simulated
# quotas of 3 to 40 a minute reach 2.8; two 429s, an accepted call and two more 429s reach 5.1.
_SHARE_OF_QUOTA = 0.1
_SHARE_OF_STORM = 0.4
_LIMITED = log(_SHARE_OF_STORM / _SHARE_OF_QUOTA)
_ACCEPTED = log((1 - _SHARE_OF_STORM) / (1 - _SHARE_OF_QUOTA))
_ENOUGH = 4.0
_DOUBTFUL = 2.5
# A fixed window that is spent refuses everything until it ends, so further 429s in a row are no evidence.
_TELLING_IN_A_ROW = 2


class QuotaEvidence:
    """Tests whether a provider has a small quota. `now` is monotonic."""

    __slots__ = ("_doubt", "_most", "_most_before", "_rotates_at")

    def __init__(self) -> None:
        self._most = self._most_before = 0.0
        """Most calls a second that were accepted in a minute: since the latest rotation, and in the five minutes before
        it."""
        self._rotates_at = -inf
        self._doubt = 0.0

    def note_accepted_rate(self, rate: float, now: float) -> None:
        """Notes that `rate` calls a second were accepted in the minute before a 429."""
        if now >= self._rotates_at:
            self._most_before = self._most if now < self._rotates_at + _KNOWN_S else 0.0
            self._most = 0.0
            self._rotates_at = now + _KNOWN_S
        self._most = max(self._most, rate)

    def least_quota(self) -> float:
        """Returns how many calls a second a quota allows at least, if there is one; 0: unknown."""
        return _WITHIN_QUOTA * max(self._most, self._most_before)

    def drop_doubt(self) -> None:
        """Begins the test again, because the rate is forgotten."""
        self._doubt = 0.0

    def note_rate_limited(self, rate: float, in_a_row: int) -> bool:
        """Notes a 429, the `in_a_row`th, at that rate of a quota. Returns whether it shows that there is no quota."""
        if rate <= self.least_quota() and in_a_row <= _TELLING_IN_A_ROW:
            self._doubt += _LIMITED
        if self._doubt < _ENOUGH:
            return False
        self._doubt = 0.0
        return True

    def note_accepted(self) -> None:
        """Notes another response than a 429 at the rate of a quota."""
        self._doubt = max(0.0, self._doubt + _ACCEPTED)

    @property
    def is_doubtful(self) -> bool:
        """True if 429s came that no quota explains, but not enough of them."""
        return self._doubt >= _DOUBTFUL
