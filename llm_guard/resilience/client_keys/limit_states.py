"""What a client key's limits (`resilience.client_keys.limits`) show: what was used, what is left, and what refuses."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
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


class RefusingLimits:
    """The limits that have refused calls since the last call was let in."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[LimitName, Refusing] = {}

    def now(self, now: float) -> tuple[Refusing, ...]:
        """Returns those that refuse calls now."""
        return tuple(refusing for refusing in self._by_name.values() if refusing.until > now)

    def note(self, exceeded: list[Exceeded], now: float) -> None:
        """Notes a refused call and the limits that it exceeded."""
        before = {refusing.limit: refusing for refusing in self.now(now)}
        for excess in exceeded:
            last = before.get(excess.limit)
            since, refused = (now, 0) if last is None else (last.since, last.refused)
            self._by_name[excess.limit] = Refusing(excess.limit, since, now + wait_s_of(excess), refused + 1)

    def clear(self) -> None:
        """Notes that a call was let in."""
        self._by_name.clear()


def wait_s_of(exceeded: Exceeded) -> float:
    """Returns the seconds until the same call would be let in; inf: never."""
    return inf if exceeded.retry_after_s is None else exceeded.retry_after_s


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
