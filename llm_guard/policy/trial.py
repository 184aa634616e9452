"""Whether fewer calls fail at a lower rate: the statistics of a trial.

Owns the test. Does not own when a trial begins, nor what follows from it (`policy.throttle`).
"""

from __future__ import annotations

from math import log, sqrt
from typing import Literal

Verdict = Literal["helps", "helps_not", "likely", "unlikely"]
"""The last two: undecided, and which of both is more likely."""

# Where sending less helps, so much of the share of failures is left, at most.
_LEFT = 0.25
# Log likelihood ratios that decide: wrong in 0.3 % and in 5 % of the trials.
_HELPS = 6.0
_HELPS_NOT = -3.0
# An undecided first trial has to be so far on the way; one of a throttle that has helped before needs less.
_LIKELY = 5.0

# So large a part of the standard deviation of a single call is another share: 15 % around 50 %, 11 % around 85 %.
_MATTERS = 0.3

_LEAST_SHARE = 0.02
# A larger one would let two calls decide.
_LARGEST_SHARE = 0.95


def judge(share: float, decided: float, failures: int, *, has_helped: bool) -> Verdict:
    """A sequential test (Wald 1945) of the share of failures from before the trial against a quarter of it.

    `share`: before the trial, as `at_least` gives it; `decided`: calls of the trial that were answered or have failed,
    of these `failures`; `has_helped`: an earlier trial of the same throttle has.
    """
    old, new = min(share, _LARGEST_SHARE), share * _LEFT
    evidence = max(0.0, decided - failures) * log((1 - new) / (1 - old)) + failures * log(_LEFT)
    if evidence >= _HELPS:
        return "helps"
    if evidence <= _HELPS_NOT:
        return "helps_not"
    return "likely" if evidence > (0.0 if has_helped else _LIKELY) else "unlikely"


def at_least(share: float, calls: float) -> float:
    """A share that was seen in so many calls, less one standard deviation: a trial begins where it is high by
    chance."""
    return max(_LEAST_SHARE, share - _spread(share) / sqrt(calls))


def differs(share: float, calls: int, known: float) -> bool:
    """Whether a share that was seen in so many calls is another one than the known, by more than chance and by enough
    to matter."""
    return abs(share - known) > max(_MATTERS * _spread(share), 3 * _spread(known) / sqrt(calls))


def _spread(share: float) -> float:
    """Standard deviation of a single call."""
    return sqrt(share * (1 - share))
