"""Backoff: how long to wait before a retry of a call, a probe, a webhook and so on.

Whether to retry at all is decided in `resilience.retry.decision`; `resilience.retry.limits` counts how much
failed lately.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_guard.outcome import FailureKind
from llm_guard.resilience.retry.limits import BudgetSettings
from llm_guard.resilience.units import Count, Factor, OptionalSeconds, Pause, Seconds, Spread

IMMEDIATE_S = 0.05
"""The first retry after a flap waits no longer than this."""

_FLAPS = frozenset({
    FailureKind.NETWORK, FailureKind.TRUNCATED, FailureKind.TIMEOUT, FailureKind.CONNECT_TIMEOUT, FailureKind.RETIRED,
})  # fmt: skip
"""Kinds that a second exchange often cures at once; a timed-out attempt has waited long enough already."""

# Clients that all received "Retry-After: 20" must not return in the same instant.
_RETRY_AFTER_SPREAD = 0.1


@dataclass(frozen=True, slots=True)
class BaseDelays:
    """Seconds before the first retry by category of failure; None: `base_delay`."""

    rate_limit: OptionalSeconds = None
    """None: `base_delay`."""
    overloaded: OptionalSeconds = None
    """None: `base_delay`."""
    network: OptionalSeconds = None
    """None: `base_delay`."""

    def of(self, kind: FailureKind | None) -> float | None:
        match kind.category if kind is not None else None:
            case "rate_limit":
                return self.rate_limit
            case "overloaded":
                return self.overloaded
            case "network":
                return self.network
            case _:
                return None


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Durations in seconds."""

    max_attempts: Count = 4
    """Attempts on one deployment, the first included."""
    base_delay: Seconds = 0.2
    """Wait before the first retry."""
    base_delays: BaseDelays = field(default_factory=BaseDelays)
    """Another `base_delay` for some kinds of failure."""
    adaptive: bool = True
    """True if waits grow with the recent share of failed attempts, up to twice as long."""
    multiplier: Factor = 2.0
    """Factor from one wait to the next."""
    max_delay: Seconds = 30.0
    """The longest wait. An upstream's Retry-After may exceed it."""
    max_retry_after: Seconds = 60.0
    """Longest time for which a provider's hint (Retry-After) keeps calls away. Then one call goes first; if it is
    refused with a hint, that one is obeyed in turn."""
    fallback_after: Pause = 5.0
    """How long a call is tried with its own model, from its beginning to the end of the next wait, before a fallback to
    another model is preferred; at most half of the time that the call has. 0: at once."""
    jitter: Spread = 0.3
    """Share by which each wait is shorter or longer, or the name of a distribution."""
    immediate_first: bool = True
    """True: the first retry after a lost connection or a timeout waits 50 ms at most."""
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    """Bounds retries and hedges, per deployment and per requested model."""
    fallback_on: tuple[Literal["context_length", "content_policy"], ...] = ("context_length",)
    """Failures that another model may serve, among those that no other deployment of the same model would."""


def delay_s(
    settings: RetrySettings,
    *,
    retry: int,
    kind: FailureKind | None,
    retry_after_s: float | None,
    previous_s: float | None,
    u: float,
    failure_share: float = 0.0,
) -> float:
    """Returns the seconds to wait before retry number `retry` (1 is the first), from a uniform draw `u` in [0, 1).

    At most `max_delay`, unless the upstream requested more by `retry_after_s`: that is a floor (RFC 9110, 10.2.3),
    exceeded by a tenth at most. `kind` is what failed, None if no request was sent to an upstream. `previous_s` is the
    wait before the previous retry, or None; only decorrelated jitter uses it. `failure_share`, 0 to 1, is the recent
    share of failures (`failure_rate.FailureRate`).
    """
    wait_s = _own_delay_s(settings, retry, kind, previous_s, u, failure_share)
    if retry_after_s is None:
        return wait_s
    return max(wait_s, retry_after_s * (1 + _RETRY_AFTER_SPREAD * u))


def _own_delay_s(
    settings: RetrySettings, retry: int, kind: FailureKind | None, previous_s: float | None, u: float, share: float
) -> float:
    if retry == 1 and settings.immediate_first and kind in _FLAPS:
        return u * min(IMMEDIATE_S, settings.max_delay)
    base_s = _base_s(settings, kind, share)
    match settings.jitter:
        case "full":
            return u * _exponential_s(settings, base_s, retry, settings.max_delay)
        case "equal":
            return (0.5 + u * 0.5) * _exponential_s(settings, base_s, retry, settings.max_delay)
        case "decorrelated":
            return _decorrelated_s(settings, base_s, previous_s, u)
        case spread:
            # The ceiling is lowered so that jitter ends at max_delay: if it were cut off there instead, half of all
            # clients would wait exactly max_delay and return together.
            middle_s = _exponential_s(settings, base_s, retry, settings.max_delay / (1 + spread))
            return min(settings.max_delay, middle_s * (1 + spread * (2 * u - 1)))


def _base_s(settings: RetrySettings, kind: FailureKind | None, failure_share: float) -> float:
    own_s = settings.base_delays.of(kind)
    base_s = settings.base_delay if own_s is None else own_s
    return base_s * (1 + failure_share**2) if settings.adaptive else base_s


def _exponential_s(settings: RetrySettings, base_s: float, retry: int, ceiling_s: float) -> float:
    try:
        grown_s = base_s * settings.multiplier ** (retry - 1)
    except OverflowError:  # 2.0 ** 1024, the 1,025th retry (Polly issue 2163)
        return ceiling_s
    return min(ceiling_s, grown_s)


def _decorrelated_s(settings: RetrySettings, base_s: float, previous_s: float | None, u: float) -> float:
    """Decorrelated jitter after M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015."""
    # An immediate first retry must not pull the next wait below the base.
    previous_s = max(base_s, previous_s or 0.0)
    return min(settings.max_delay, base_s + u * (3 * previous_s - base_s))
