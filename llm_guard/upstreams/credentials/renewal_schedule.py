"""Decides when credentials are renewed, and how long a failed renewal waits. Pure."""

from __future__ import annotations

LEAD_S = 900.0
"""Credentials are renewed this long before they expire, or a quarter of their lifetime if that is shorter: time for
many tries while the old ones are valid."""
UNKNOWN_S = 300.0
"""Credentials that do not say when they expire, such as keys in a file or a variable, are looked up this often."""
_SOONEST_S = 1.0
_BACKOFF_S = 1.0
_LONGEST_BACKOFF_S = 60.0


def renewal_delay_s(left_s: float | None, lifetime_s: float, u: float) -> float:
    """Returns after how many seconds credentials are renewed. `left_s`: seconds until they expire, None if unknown;
    `lifetime_s`: the seconds that were left when they were first seen; `u`: a uniform draw, so that many gateways do
    not renew at once.

    Some clouds return the same credentials until shortly before their end: those are looked up again and again, sooner
    each time.
    """
    if left_s is None:
        return UNKNOWN_S * (1 - 0.1 * u)
    lead_s = min(LEAD_S, lifetime_s / 4)
    due_s = left_s - lead_s * (1 + 0.2 * u)
    return max(_SOONEST_S, due_s if due_s > 0 else left_s / 4)


def backoff_s(failures: int, u: float) -> float:
    """Returns after how many seconds a renewal is tried again; `failures`: in a row, at least 1."""
    return min(_LONGEST_BACKOFF_S, _BACKOFF_S * 2.0 ** min(failures - 1, 10)) * (0.5 + 0.5 * u)
