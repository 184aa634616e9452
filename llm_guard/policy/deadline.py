"""How long a call, and each step of it, may take.

Owns the five timeouts and which of two instants comes first. Does not own the timer (`clock.TimeLimit`) nor
what is done once time is up (`policy.next_step`).
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_guard.outcome import Limit
from llm_guard.policy.units import Seconds


@dataclass(frozen=True, slots=True)
class TimeoutSettings:
    """Durations in seconds, each > 0; named as in `outcome.Limit`."""

    connect: Seconds = 5.0
    """TCP and TLS."""
    first_token: Seconds = 30.0
    """Streams: request sent to first useful event."""
    idle: Seconds = 30.0
    """Streams: longest silence between chunks."""
    attempt: Seconds = 120.0
    """Unary: one exchange, to the last byte of the answer."""
    total: Seconds = 600.0
    """The call: all attempts, waits and the whole stream."""


def deadline_at(now: float, total_s: float, client_timeout_s: float | None) -> float:
    """The instant at which a call received at `now` ends; a client's own timeout can only shorten it."""
    return now + (total_s if client_timeout_s is None else min(total_s, client_timeout_s))


def earlier(limit_at: float, name: Limit, deadline_at: float) -> tuple[float, Limit]:
    """The instant that comes first and whose it is: `name`, or "total" for the deadline (also on a tie)."""
    return (limit_at, name) if limit_at < deadline_at else (deadline_at, "total")
