"""Timeouts and the deadline: how long a call, and each step of it, may take.

Defines the six timeouts, splits the deadline over attempts and picks the earlier of two instants. The timer is
`clock.TimeLimit`; what follows a timeout is decided in `resilience.retry.decision`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from llm_guard.outcome import Failure, FailureKind, Limit
from llm_guard.resilience.routing.latency import Latency, known
from llm_guard.resilience.units import Factor, OptionalSeconds, Seconds

ATTEMPT_S = 600.0
"""The attempt limit if none is configured and the client's own timeout is unknown: the default of the official SDKs."""
FIRST_TOKEN_S = 120.0
"""The first_token limit if none is configured, unless the deployment's own p99 requires more."""
_LEARNED_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class LearnedSettings:
    """A first_token limit learned from the deployment's own p99; the configured one stays the longest."""

    factor: Factor = _LEARNED_FACTOR
    """The limit in units of p99."""
    min: Seconds = 1.0
    """The shortest limit, in seconds."""


@dataclass(frozen=True, slots=True)
class TimeoutSettings:
    """Durations in seconds, each > 0. The names are those of `outcome.Limit`."""

    connect: Seconds = 5.0
    """TCP and TLS."""
    first_token: OptionalSeconds = None
    """Streams: request sent to first useful event. None: two minutes, or three times the deployment's own p99 if
    that is longer: models that think for minutes before their first token are slow, not broken."""
    idle: Seconds = 30.0
    """Streams: longest silence between chunks."""
    stall: Seconds = 180.0
    """Streams, after the first token: longest time without a useful event, however many keep-alives come."""
    attempt: OptionalSeconds = None
    """Unary: one exchange, to the last byte of the response. None: as long as the client waits by its own headers, or
    ten minutes: an exchange that is cut while the provider works on it is paid for and lost. For a body that is sent
    while it arrives, it begins with the last byte of the body."""
    total: Seconds = 600.0
    """The call: all attempts, waits and the whole stream."""
    learned: LearnedSettings | None = None
    """None: first_token is as configured."""

    def attempt_s(self, *, is_client_timeout_known: bool) -> float:
        """Returns the attempt limit in seconds; infinite if only the client's own timeout counts."""
        if self.attempt is not None:
            return self.attempt
        return inf if is_client_timeout_known else ATTEMPT_S

    def is_configured(self, limit: Limit | None) -> bool:
        """Returns whether the limit of that name was configured for the model; the others have fixed defaults."""
        return (limit != "attempt" or self.attempt is not None) and (
            limit != "first_token" or self.first_token is not None or self.learned is not None
        )


def deadline_at(now: float, total_s: float, client_timeout_s: float | None) -> float:
    """Returns the instant at which a call received at `now` ends; a client's own timeout can only shorten it."""
    return now + (total_s if client_timeout_s is None else min(total_s, client_timeout_s))


def earlier(limit_at: float, name: Limit, deadline_at: float) -> tuple[float, Limit]:
    """Returns the earlier instant and its name: `name`, or "total" for the deadline (also on a tie)."""
    return (limit_at, name) if limit_at < deadline_at else (deadline_at, "total")


def first_token_s(settings: TimeoutSettings, latency: Latency, now: float) -> float:
    """Returns the first_token limit in seconds; `latency` is that of the deployment's first tokens.

    A deployment with more than one cut stream in a hundred has no known p99, so a learned limit
    that is too short returns to the configured one by itself.
    """
    configured, learned = settings.first_token, settings.learned
    longest_s = FIRST_TOKEN_S if configured is None else configured
    if learned is not None:
        p99_s = known(latency.quantile(0.99, now))
        return longest_s if p99_s is None else min(longest_s, max(learned.min, learned.factor * p99_s))
    if configured is None and latency.longest_s * _LEARNED_FACTOR > FIRST_TOKEN_S:
        return max(FIRST_TOKEN_S, _LEARNED_FACTOR * (known(latency.quantile(0.99, now)) or 0.0))
    return longest_s


def attempt_ends_at(now: float, limit_s: float, deadline_at: float, reserve_s: float) -> float:
    """Returns the instant at which an attempt begun at `now` ends, with `reserve_s` kept for one more after it.

    An attempt that would end at or before `now` is not started.
    """
    return min(now + limit_s, deadline_at - reserve_s)


def reserve_s(
    left_s: float, limit_s: float, own: Latency, following: Latency | None, now: float, least_s: float = 0.0
) -> float:
    """Returns the seconds to keep of the `left_s` until the deadline, so that one more attempt would still fit.

    They are the p95 of `following`, the deployment that would be tried next (it may be the same one), or None if no
    further attempt is allowed. Nothing is kept without that history, nor if the attempt at hand, limited to `limit_s`,
    would be left with less than its own p99, less than `least_s` or less than half of the time that is left.
    """
    expected_s = None if following is None else known(following.quantile(0.95, now))
    if expected_s is None:
        return 0.0
    p99_s = known(own.quantile(0.99, now))
    needed_s = limit_s if p99_s is None else min(limit_s, max(p99_s, least_s))
    return expected_s if left_s - expected_s >= max(needed_s, left_s / 2) else 0.0


def can_finish(now: float, deadline_at: float, latency: Latency) -> bool:
    """Returns whether an attempt begun at `now` may end in time, if as fast as the deployment's fastest responses
    (p5)."""
    left_s = deadline_at - now
    fastest_s = known(latency.quantile(0.05, now))
    return left_s > 0 and (fastest_s is None or left_s >= fastest_s)


def timeout_failure(name: str, timeouts: TimeoutSettings, *, is_before_sending: bool = False) -> Failure:
    """Returns the failure of an exchange that ran into the limit called `name`."""
    said = {
        "connect": f"no connection within {timeouts.connect:g} s",
        "first_token": f"no first token within {timeouts.first_token or FIRST_TOKEN_S:g} s",
        "idle": f"silent for {timeouts.idle:g} s in the middle of the stream",
        "stall": f"nothing but keep-alives for {timeouts.stall:g} s in the middle of the stream",
        "attempt": f"no complete response within {timeouts.attempt or ATTEMPT_S:g} s",
        "total": "the call's total timeout, or the client's own, has passed",
    }
    limit: Limit = name  # type: ignore[assignment]  # TimeLimit returns the name it was given
    kind = FailureKind.CONNECT_TIMEOUT if name == "connect" else FailureKind.TIMEOUT
    return Failure(kind, said[name], limit=limit, is_before_sending=is_before_sending)
