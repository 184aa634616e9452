"""How long to wait before a retry.

Owns the retry settings and the length of a wait. Does not own whether to retry at all (`policy.next_step`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_guard.outcome import FailureKind
from llm_guard.policy.retry_budget import BudgetSettings
from llm_guard.policy.units import Count, Factor, Seconds, Spread

IMMEDIATE_S = 0.05
"""The first retry after a flap waits no longer than this."""

_FLAPS = frozenset({
    FailureKind.NETWORK, FailureKind.TRUNCATED, FailureKind.TIMEOUT, FailureKind.CONNECT_TIMEOUT, FailureKind.RETIRED,
})  # fmt: skip
"""Kinds that a second exchange often cures at once; a timed-out attempt has waited long enough already."""

# Clients that were all told "in 20 s" shall not come back in the same instant.
_RETRY_AFTER_SPREAD = 0.1


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Durations in seconds."""

    max_attempts: Count = 3
    """Exchanges with one deployment, the first included."""
    base_delay: Seconds = 0.2
    multiplier: Factor = 2.0
    max_delay: Seconds = 30.0
    jitter: Spread = 0.3
    immediate_first: bool = True
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    fallback_on: tuple[Literal["context_length", "content_policy"], ...] = ("context_length",)
    """What another model may answer, among what no other deployment of the same one would."""


def delay_s(
    settings: RetrySettings,
    *,
    retry: int,
    kind: FailureKind,
    retry_after_s: float | None,
    previous_s: float | None,
    u: float,
) -> float:
    """Seconds to wait before retry number `retry` (1 is the first), from a uniform draw `u` in [0, 1).

    At most `max_delay`, unless the upstream asked for more by `retry_after_s`: that is a floor (RFC 9110,
    10.2.3), exceeded by a tenth at most. `previous_s` is the wait before the previous retry, or None; only
    decorrelated jitter looks at it.
    """
    wait_s = _own_delay_s(settings, retry, kind, previous_s, u)
    if retry_after_s is None:
        return wait_s
    return max(wait_s, retry_after_s * (1 + _RETRY_AFTER_SPREAD * u))


def _own_delay_s(settings: RetrySettings, retry: int, kind: FailureKind, previous_s: float | None, u: float) -> float:
    if retry == 1 and settings.immediate_first and kind in _FLAPS:
        return u * min(IMMEDIATE_S, settings.max_delay)
    match settings.jitter:
        case "full":
            return u * _exponential_s(settings, retry, settings.max_delay)
        case "equal":
            return (0.5 + u * 0.5) * _exponential_s(settings, retry, settings.max_delay)
        case "decorrelated":
            return _decorrelated_s(settings, previous_s, u)
        case share:
            # The ceiling is lowered so that jitter ends at max_delay: cut off there instead, half of all
            # clients would wait exactly max_delay and come back together.
            middle_s = _exponential_s(settings, retry, settings.max_delay / (1 + share))
            return min(settings.max_delay, middle_s * (1 + share * (2 * u - 1)))


def _exponential_s(settings: RetrySettings, retry: int, ceiling_s: float) -> float:
    try:
        grown_s = settings.base_delay * settings.multiplier ** (retry - 1)
    except OverflowError:  # 2.0 ** 1024, the 1,025th retry (Polly issue 2163)
        return ceiling_s
    return min(ceiling_s, grown_s)


def _decorrelated_s(settings: RetrySettings, previous_s: float | None, u: float) -> float:
    """M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015."""
    base_s = settings.base_delay
    # An immediate first retry must not pull the next wait below the base.
    previous_s = max(base_s, previous_s or 0.0)
    return min(settings.max_delay, base_s + u * (3 * previous_s - base_s))
