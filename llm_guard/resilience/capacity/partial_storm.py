"""A storm that refuses a part of all calls at any rate: when it is on, and when it has ended.

`resilience.capacity.quota_evidence` finds that there is one, `resilience.capacity.learned_rate` keeps a rate meanwhile.
"""

from __future__ import annotations

from math import inf, log

# A storm may last this long.
_LASTS_S = 600.0
# Of 429s and accepted calls, about the latest twenty rows count.
_KEPT = 0.95
# So many accepted calls in a row come once in 300 rows by chance, at the share of 429s that the storm has had.
_BY_CHANCE = log(0.003)
_MOST_SHARE = 0.9
# The storm goes on if after its end so many 429s come, and they are this share of the calls. A rate that grows until
# the provider refuses calls has fewer.
_TELLING_429S = 3
_SHARE_OF_STORM = 0.3


class PartialStorm:
    """Follows the share of calls that get a 429. `now` is monotonic."""

    __slots__ = ("_accepted", "_is_on", "_limited", "_until")

    def __init__(self) -> None:
        self._until = -inf
        self._is_on = False
        self._accepted = self._limited = 0.0
        """Calls so far; older ones count less."""

    def begin(self, now: float) -> None:
        """Notes that a part of the calls is refused at any rate."""
        self._until = now + _LASTS_S
        self._is_on = True

    def is_recent(self, now: float) -> bool:
        """Returns whether there was such a storm within the last ten minutes; it may have ended."""
        return now < self._until

    def is_on(self, now: float) -> bool:
        """Returns whether 429s are due to the storm. False: they are due to the rate of the calls."""
        return self._is_on and self.is_recent(now)

    def note_rate_limited(self, accepted: int) -> None:
        """Notes a 429 after so many accepted calls in a row."""
        self._accepted = _KEPT * self._accepted + accepted
        self._limited = _KEPT * self._limited + 1
        self._is_on = self._is_on or (self._limited >= _TELLING_429S and self._share() > _SHARE_OF_STORM)

    def ends(self, accepted: int, now: float) -> bool:
        """Returns whether the storm has just ended: so many calls in a row were accepted that chance does not explain
        it."""
        if not self.is_on(now) or accepted * log(1 - self._share()) > _BY_CHANCE:
            return False
        self._is_on = False
        self._accepted = self._limited = 0.0
        return True

    def _share(self) -> float:
        return min(_MOST_SHARE, self._limited / max(1.0, self._limited + self._accepted))
