"""Evidence against a small quota: 429s at a rate that no quota would refuse.

A storm may refuse a part of all calls, however slowly they go. Taken for a quota, it leads to an ever lower rate: fewer
calls are accepted, and the next quota appears to be smaller. `resilience.capacity.learned_rate` acts on the evidence.
"""

from __future__ import annotations

from math import inf, log

# In a minute a quota accepts at most twice its number: a full bucket and what is refilled, or the end of a window and
# the beginning of the next. So half of what was accepted in any minute is within the quota.
_WITHIN_QUOTA = 0.5
# What was accepted in a minute is known for 5 to 10 minutes: quotas change.
_KNOWN_S = 300.0
# Sequential test of two shares of 429s within a quota: those of fixed windows that begin at other times, and those of a
# storm. Simulated quotas of 3 to 40 a minute reach 2.8; two 429s, a call that is accepted, and two more are 5.1.
_SHARE_OF_QUOTA = 0.1
_SHARE_OF_STORM = 0.4
_LIMITED = log(_SHARE_OF_STORM / _SHARE_OF_QUOTA)
_ACCEPTED = log((1 - _SHARE_OF_STORM) / (1 - _SHARE_OF_QUOTA))
_ENOUGH = 4.0
_DOUBTFUL = 2.5
# A fixed window that is spent refuses everything until it ends, so further 429s in a row say nothing.
_TELLING_IN_A_ROW = 2


class QuotaEvidence:
    """A sequential test, on monotonic time, of whether a provider has a small quota."""

    __slots__ = ("_answers", "_doubt", "_limited", "_most", "_most_before", "_turns_at")

    def __init__(self) -> None:
        self._most = self._most_before = 0.0
        """Most calls a second that were accepted in a minute: since the latest turn, and between that and the one
        before."""
        self._turns_at = inf
        self._doubt = 0.0
        self._limited = self._answers = 0

    def note_accepted_rate(self, rate: float, now: float) -> None:
        """Notes that `rate` calls a second were accepted in the minute before a 429."""
        if now >= self._turns_at:
            self._most_before = self._most if now < self._turns_at + _KNOWN_S else 0.0
            self._most = 0.0
        if not self._most:
            self._turns_at = now + _KNOWN_S
        self._most = max(self._most, rate)

    def least_rate(self) -> float:
        """Returns a rate in calls a second that is within the quota, if there is one; 0: none is known."""
        return _WITHIN_QUOTA * max(self._most, self._most_before)

    def begin(self) -> None:
        """Begins the test anew."""
        self._doubt = 0.0
        self._limited = self._answers = 0

    def note_rate_limited(self, rate: float, in_a_row: int) -> bool:
        """Notes a 429, the `in_a_row`th, at that rate. Returns whether it shows that there is no quota."""
        if rate <= self.least_rate() and in_a_row <= _TELLING_IN_A_ROW:
            if not self._doubt:
                self.begin()
            self._doubt += _LIMITED
        self._limited += 1
        return self._doubt >= _ENOUGH

    def note_accepted(self, rate: float) -> None:
        """Notes another response than a 429 at that rate."""
        self._answers += 1
        if rate <= self.least_rate():
            self._doubt = max(0.0, self._doubt + _ACCEPTED)

    @property
    def is_doubtful(self) -> bool:
        """True if 429s came that no quota explains, but not enough of them."""
        return self._doubt >= _DOUBTFUL

    def limited_share(self) -> float:
        """Returns the share of the calls that got a 429 since the doubt began."""
        return self._limited / max(1, self._limited + self._answers)

    def forget(self) -> None:
        """Forgets all evidence."""
        self._most = self._most_before = 0.0
        self._turns_at = inf
        self.begin()
