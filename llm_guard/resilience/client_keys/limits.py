"""Limits of one client key: calls a second, concurrent calls, tokens a minute and tokens a day.

Keeps the sums, reserves tokens for a call when it enters, and corrects them when it ends.
`proxy.client_keys.authentication` finds the key of a call, `proxy.client_keys.quotas` counts what it has used.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

from llm_guard.resilience.throttling.gcra import Bucket
from llm_guard.resilience.units import OptionalCount, Unit, at_least, nullable, number_from, or_none

LimitName = Literal["rate", "concurrency", "tokens_per_minute", "tokens_per_day"]

DAY_S = 86_400.0
_LOWEST_RATE = 0.001
# It is not known when another call of the key will end.
_SLOT_WAIT_S = 1.0
_PER_MINUTE_S = 60.0
_ROUNDING_S = 1e-9


@dataclass(frozen=True, slots=True)
class ClientLimitSettings:
    """Limits of a client key; null: no limit."""

    rate: Annotated[float | None, Unit(or_none(at_least(_LOWEST_RATE)), nullable(number_from(_LOWEST_RATE)))] = None
    """Calls a second, on average; a second's worth of them may come at once."""
    concurrency: OptionalCount = None
    """Calls at once. A deferred call counts while it is executed, not when it is accepted."""
    tokens_per_minute: OptionalCount = None
    """Tokens of input and output; a minute's worth of them may be used at once."""
    tokens_per_day: OptionalCount = None
    """The same, in a day of UTC."""

    @property
    def limits_tokens(self) -> bool:
        return self.tokens_per_minute is not None or self.tokens_per_day is not None


NO_LIMITS = ClientLimitSettings()


@dataclass(slots=True, eq=False)
class Reservation:
    """Resources held by an admitted call; to be returned once, to its owner."""

    owner: ClientLimits
    tokens: int
    """Estimated tokens."""
    day: int
    minute_tokens: int = 0
    """Part of the estimate that was added to the minute's sum: none if there was no such limit."""
    slots: int = 1
    """Concurrent calls that it counts as."""
    streamed_tokens: int = 0
    """Output of its stream, one per event: providers send no usage in a stream unless the client requests it."""


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


class ClientLimits:
    """The limits of one key. `now` is monotonic, `wall` in seconds since the epoch."""

    __slots__ = (
        "_bucket", "_day", "_day_tokens", "_in_flight", "_minute_at", "_minute_tokens", "_refusing", "settings",
    )  # fmt: skip

    def __init__(self, settings: ClientLimitSettings, now: float, wall: float) -> None:
        self.settings = settings
        """May be replaced at any moment: what was used stays used."""
        self._bucket = Bucket()
        self._in_flight = 0
        self._minute_tokens = 0.0
        """Tokens used, less those that have flowed back by `_minute_at`."""
        self._minute_at = now
        self._day = _day_of(wall)
        self._day_tokens = 0
        self._refusing: dict[LimitName, Refusing] = {}

    @property
    def day(self) -> tuple[int, int]:
        """The day since the epoch, and the tokens used in it."""
        return self._day, self._day_tokens

    def restore_day(self, day: int, tokens: int, wall: float) -> None:
        """Adds the sum of an earlier process, if it is of this day."""
        self._roll(wall)
        if day == self._day:
            self._day_tokens += max(0, tokens)
        elif day == self._day + 1:
            self._day, self._day_tokens = day, max(0, tokens)

    def try_enter(
        self, tokens: int, now: float, wall: float, without: LimitName | None = None
    ) -> Reservation | Exceeded:  # fmt: skip
        """Lets in a call of so many estimated tokens, or returns the exceeded limit with the longest wait. A refused
        call uses nothing. `without`: a limit that the call neither respects nor uses."""
        if wall // DAY_S != self._day:
            self._roll(wall)
        exceeded = self._exceeded(tokens, now, wall)
        if without is not None:
            exceeded = [excess for excess in exceeded if excess.limit != without]
        if exceeded:
            self._note_refused(exceeded, now)
            return max(exceeded, key=_wait_s)
        if self._refusing:
            self._refusing.clear()
        if self.settings.rate is not None and without != "rate":
            self._bucket.take(self.settings.rate, now)
        slots = int(without != "concurrency")
        self._in_flight += slots
        minute_tokens = tokens if self.settings.tokens_per_minute is not None else 0
        self._minute_tokens += minute_tokens
        self._day_tokens += tokens
        return Reservation(self, tokens, self._day, minute_tokens, slots)

    def try_take_rate(self, now: float, wall: float) -> Exceeded | None:
        """Counts a call that uses neither a slot nor tokens; returns the rate if that is exceeded."""
        exceeded = [excess for excess in self._exceeded(0, now, wall) if excess.limit == "rate"]
        if exceeded:
            self._note_refused(exceeded, now)
            return exceeded[0]
        if self.settings.rate is not None:
            self._bucket.take(self.settings.rate, now)
        return None

    def leave(self, reservation: Reservation, tokens: int) -> None:
        """Notes that the call is over, and has used so many tokens: as if the latest call had entered after them, and
        of the day on which this one entered."""
        self._in_flight -= reservation.slots
        if self.settings.tokens_per_minute is not None:
            self._minute_tokens = max(0.0, self._minute_tokens + tokens - reservation.minute_tokens)
        if reservation.day == self._day:
            self._day_tokens = max(0, self._day_tokens + tokens - reservation.tokens)

    def reset(self, now: float, wall: float) -> None:
        """Forgets what was used, but not the calls that are running: an operator's reset."""
        self._roll(wall)
        self._bucket = Bucket()
        self._minute_tokens, self._minute_at = 0.0, now
        self._day_tokens = 0
        self._refusing.clear()

    def left(self, now: float, wall: float) -> tuple[LimitLeft, ...]:
        """Returns the state of each limit that is set. Changes nothing."""
        settings = self.settings
        found: list[LimitLeft] = []
        if (rate := settings.rate) is not None:
            wait_s = max(0.0, self._bucket.next_at - now)
            burst = max(1.0, rate)
            found.append(LimitLeft("rate", rate, max(0.0, burst - wait_s * rate), wait_s))
        if (most := settings.concurrency) is not None:
            found.append(LimitLeft("concurrency", most, max(0, most - self._in_flight), 0.0))
        if (per_minute := settings.tokens_per_minute) is not None:
            used = max(0.0, self._minute_tokens - (now - self._minute_at) * per_minute / _PER_MINUTE_S)
            found.append(
                LimitLeft("tokens_per_minute", per_minute, max(0.0, per_minute - used), used * 60 / per_minute)
            )
        if (per_day := settings.tokens_per_day) is not None:
            used_today = 0 if self._is_over(_day_of(wall)) else self._day_tokens
            found.append(LimitLeft("tokens_per_day", per_day, max(0, per_day - used_today), DAY_S - wall % DAY_S))
        return tuple(found)

    def refusing(self, now: float) -> tuple[Refusing, ...]:
        """Returns the limits that refuse calls now."""
        return tuple(refusing for refusing in self._refusing.values() if refusing.until > now)

    def _note_refused(self, exceeded: list[Exceeded], now: float) -> None:
        before = {refusing.limit: refusing for refusing in self.refusing(now)}
        for excess in exceeded:
            last = before.get(excess.limit)
            since, refused = (now, 0) if last is None else (last.since, last.refused)
            self._refusing[excess.limit] = Refusing(excess.limit, since, now + _wait_s(excess), refused + 1)

    def _exceeded(self, tokens: int, now: float, wall: float) -> list[Exceeded]:
        """Returns the limits that a call of so many tokens exceeds. Tokens of the minute flow back up to now."""
        settings = self.settings
        found: list[Exceeded] = []  # `list[Exceeded]()` takes a microsecond
        if (rate := settings.rate) is not None:
            early_s = 1 - 1 / rate if rate > 1 else 0.0  # a second's worth of calls may come at once
            wait_s = self._bucket.next_at - early_s - now
            if wait_s > _ROUNDING_S:
                found.append(Exceeded("rate", wait_s))
        if (most := settings.concurrency) is not None and self._in_flight >= most:
            found.append(Exceeded("concurrency", _SLOT_WAIT_S))
        if (allowed := settings.tokens_per_minute) is not None:
            used = self._minute_tokens - (now - self._minute_at) * allowed / _PER_MINUTE_S
            self._minute_tokens, self._minute_at = used if used > 0 else 0.0, now
            # A call larger than a minute's tokens goes when nothing is used, and the calls after it wait for longer.
            wait_s = (self._minute_tokens + min(tokens, allowed) - allowed) * _PER_MINUTE_S / allowed
            if wait_s > _ROUNDING_S:
                found.append(Exceeded("tokens_per_minute", wait_s))
        if (allowed := settings.tokens_per_day) is not None:
            if tokens > allowed:
                found.append(Exceeded("tokens_per_day", None))
            elif self._day_tokens + tokens > allowed or self._day_tokens >= allowed:
                found.append(Exceeded("tokens_per_day", DAY_S - wall % DAY_S))
        return found

    def _roll(self, wall: float) -> None:
        day = _day_of(wall)
        if self._is_over(day):
            self._day, self._day_tokens = day, 0

    def _is_over(self, day: int) -> bool:
        """Returns whether the sum is of another day. A clock that is set back over midnight does not reset it."""
        return day != self._day and day != self._day - 1


def _wait_s(exceeded: Exceeded) -> float:
    return inf if exceeded.retry_after_s is None else exceeded.retry_after_s


def _day_of(wall: float) -> int:
    return int(wall // DAY_S)
