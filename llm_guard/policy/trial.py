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

_LEAST_SHARE = 0.02
_LARGEST_SHARE = 0.999


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


def at_least(share: float, calls: int) -> float:
    """A share that was seen in so many calls, less one standard deviation: a trial begins where it is high by
    chance."""
    return max(_LEAST_SHARE, share - _deviation(share, calls))


def differs(share: float, calls: int, known: float) -> bool:
    """Whether a share that was seen in so many calls is another one than the known, by more than chance."""
    return abs(share - known) > max(0.15, 3 * _deviation(share, calls))


def _deviation(share: float, calls: int) -> float:
    return sqrt(share * (1 - share) / calls)
