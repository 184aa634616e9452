"""What a client key's limits (`resilience.client_keys.limits`) show: what was used, what is left, and what refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LimitName = Literal["rate", "concurrency", "tokens_per_minute", "tokens_per_day"]


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A limit that refused a call."""

    limit: LimitName
    retry_after_s: float | None
    """Seconds until the same call would be let in, if nothing else happens; None: never."""


@dataclass(frozen=True, slots=True)
class Refusing:
    """A limit that refuses calls now."""

    limit: LimitName
    since: float
    """Time of the first of these refusals."""
    until: float
    """When the latest refused call would be let in; inf: never."""
    refused: int = 1
    """These refusals."""


@dataclass(frozen=True, slots=True)
class LimitLeft:
    """Current state of one limit."""

    limit: LimitName
    allowed: float
    left: float
    """At least 0."""
    reset_s: float
    """Seconds until the limit is fully available again, if nothing is used meanwhile."""


@dataclass(frozen=True, slots=True)
class ClientUse:
    """What a gateway has used of a key's limits."""

    calls: int = 0
    """Calls that count for the rate, since its start."""
    tokens: int = 0
    """Tokens that count for the minute, since its start; fewer than before if estimates were too high."""
    day: int = 0
    """Days since the epoch."""
    day_tokens: int = 0
    """Tokens that this process has used on that day; fewer than before if estimates were too high."""
    day_restored: int = 0
    """Tokens that earlier processes have used on that day, as this one's state says."""
    day_gone: int = 0
    """Tokens used on that day by gateways that have left, as far as this one knows."""
    resets: int = 0
    """Resets by operators so far, at any gateway. What was used before the latest one does not count."""
