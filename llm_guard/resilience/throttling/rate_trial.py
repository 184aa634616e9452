"""Statistics of a trial: whether fewer calls fail at a lower rate.

`resilience.throttling.adaptive_throttle` decides when a trial begins and what follows from it.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Literal

TrialVerdict = Literal["helps", "helps_not", "likely", "unlikely"]
"""The last two are undecided, and say which of the others is more likely."""

# Where sending less helps, at most this fraction of the share of failures is left.
_LEFT = 0.25
# Log likelihood ratios that decide: wrong in 0.3 % and in 5 % of the trials.
_HELPS = 6.0
_HELPS_NOT = -3.0
# Evidence with which an undecided first trial is likely to help; after a trial that has helped less is needed.
_LIKELY = 5.0

# A share differs if it is off by this fraction of a single call's standard deviation: 15 % around 50 %, 11 % around
# 85 %.
_MATTERS = 0.3

_LEAST_SHARE = 0.02
# A larger one would let two calls decide.
_LARGEST_SHARE = 0.95


def judge(share: float, decided: float, failures: int, *, has_helped: bool) -> TrialVerdict:
    """Runs a sequential test (Wald 1945) of the share of failures before the trial against a quarter of it.

    `share`: before the trial, as returned by `at_least`; `decided`: calls of the trial that have succeeded or failed,
    `failures` of them failed; `has_helped`: an earlier trial of the same throttle has helped.
    """
    old, new = min(share, _LARGEST_SHARE), share * _LEFT
    evidence = max(0.0, decided - failures) * log((1 - new) / (1 - old)) + failures * log(_LEFT)
    if evidence >= _HELPS:
        return "helps"
    if evidence <= _HELPS_NOT:
        return "helps_not"
    return "likely" if evidence > (0.0 if has_helped else _LIKELY) else "unlikely"


def at_least(share: float, calls: float) -> float:
    """Returns a share seen in so many calls, less one standard deviation: trials begin where it is high by chance."""
    return max(_LEAST_SHARE, share - _spread(share) / sqrt(calls))


def differs(share: float, calls: int, known: float) -> bool:
    """Returns whether a share seen in so many calls differs from the known one, by more than chance and by enough to
    matter."""
    return abs(share - known) > max(_MATTERS * _spread(share), 3 * _spread(known) / sqrt(calls))


def _spread(share: float) -> float:
    """Returns the standard deviation of a single call."""
    return sqrt(share * (1 - share))
