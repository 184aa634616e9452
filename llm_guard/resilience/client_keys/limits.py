"""Limits of one client key: calls a second, concurrent calls, tokens a minute and tokens a day.

Keeps the sums, reserves tokens for a call when it enters, and corrects them when it ends. Gateways of a fleet have the
limits together: each notes what the others have used, or allows a part of the limits while it cannot know.
`proxy.client_keys.authentication` finds the key of a call, `proxy.client_keys.quotas` counts what it has used.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated

from llm_guard.resilience.client_keys.anticipated_calls import AnticipatedCalls
from llm_guard.resilience.client_keys.limit_states import ClientUse, Exceeded, LimitLeft, LimitName, Refusing
from llm_guard.resilience.throttling.gcra import Bucket
from llm_guard.resilience.units import OptionalCount, Unit, at_least, nullable, number_from, or_none

DAY_S = 86_400.0
_LOWEST_RATE = 0.001
# It is not known when another call of the key will end.
_SLOT_WAIT_S = 1.0
_PER_MINUTE_S = 60.0
_ROUNDING_S = 1e-9
_MOST_DEBT_S = 60.0
"""Calls at other gateways make those here wait for no longer: what is published may be nonsense."""


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


class ClientLimits:
    """The limits of one key. `now` is monotonic, `wall` in seconds since the epoch."""

    __slots__ = (
        "_bucket", "_burst_s", "_calls", "_day", "_day_restored", "_day_tokens", "_day_tokens_before",
        "_day_tokens_elsewhere", "_denied", "_gateways", "_minute_at", "_minute_tokens", "_others", "_per_minute",
        "_rate", "_refusing", "_settings", "_tokens", "in_flight", "resets", "slots",
    )  # fmt: skip

    def __init__(self, settings: ClientLimitSettings, now: float, wall: float) -> None:
        self.slots: int | None = None
        """This gateway's share of `concurrency`; None: all of it. One call may always enter if there are fewer slots
        than gateways: a client that makes one call at a time may send each to another gateway."""
        self._gateways = 1
        """Gateways that have the limits together, but do not know what the others use."""
        self._settings = settings
        self._adapt()
        self._bucket = Bucket()
        self._others = AnticipatedCalls(now)
        self.in_flight = 0
        self.resets = 0
        """Resets of these limits, at any gateway."""
        self._denied = 0
        """Calls refused for want of a slot, until `take_denied`."""
        self._calls = self._tokens = 0
        """The fields of `ClientUse`."""
        self._minute_tokens = 0.0
        """Tokens used, less those that have flowed back by `_minute_at`."""
        self._minute_at = now
        self._day = _day_of(wall)
        self._day_tokens = 0
        self._day_restored = 0
        """The field of `ClientUse`."""
        self._day_tokens_elsewhere = 0
        """Tokens that other gateways have used on this day."""
        self._day_tokens_before = 0
        """Tokens of the day that were used before it was no longer known what others use."""
        self._refusing: dict[LimitName, Refusing] = {}

    @property
    def settings(self) -> ClientLimitSettings:
        """May be replaced at any moment: what was used stays used."""
        return self._settings

    @settings.setter
    def settings(self, settings: ClientLimitSettings) -> None:
        self._settings = settings
        self._adapt()

    def share(self, gateways: int, *, knows_others: bool) -> None:
        """Shares the limits with other gateways: `gateways` is their number, this one included. Either
        `note_elsewhere` is called (`knows_others`), or each gateway uses an equal part of the limits."""
        alone = 1 if knows_others else gateways
        if alone != self._gateways:
            self._day_tokens_before = self._day_tokens
            self._others.forget()
        self._gateways, self._others.gateways = alone, gateways
        self._adapt()

    def _adapt(self) -> None:
        """Computes this gateway's part of the limits."""
        rate, per_minute = self._settings.rate, self._settings.tokens_per_minute
        self._rate = None if rate is None else rate / self._gateways
        self._burst_s = 0.0 if self._rate is None else max(0.0, 1 - 1 / self._rate)  # a second's worth may come at once
        self._per_minute = None if per_minute is None else per_minute / self._gateways

    @property
    def day(self) -> tuple[int, int]:
        """The day since the epoch, and the tokens used in it."""
        return self._day, self._day_tokens

    def use(self, day_gone: int = 0) -> ClientUse:
        """Returns what was used here; `day_gone`: today, by gateways that have left."""
        own = self._day_tokens - self._day_restored
        return ClientUse(self._calls, self._tokens, self._day, own, self._day_restored, day_gone, self.resets)

    def note_elsewhere(self, calls: int, tokens: int, now: float) -> None:
        """Notes what other gateways have used since this was last called."""
        unexpected = self._others.note(self._calls, max(0, calls), now)
        if self._rate is not None:
            self._bucket.correct(min(unexpected / self._rate, _MOST_DEBT_S), now)
        if self._per_minute is not None:
            self._minute_tokens = max(0.0, self._minute_tokens + tokens)

    def note_day_elsewhere(self, day: int, tokens: int, wall: float) -> None:
        """Notes what other gateways have used on a day, in all."""
        self._roll(wall)
        if day == self._day:
            self._day_tokens_elsewhere = tokens

    def is_at_rate(self, now: float) -> bool:
        """Returns whether calls come faster than the rate allows for long."""
        return self._bucket.next_at > now

    def take_denied(self) -> int:
        """Returns the calls refused for want of a slot since this was last called."""
        denied, self._denied = self._denied, 0
        return denied

    def restore_day(self, day: int, tokens: int, wall: float) -> None:
        """Adds the sum of an earlier process, if it is of this day."""
        self._roll(wall)
        if day == self._day:
            self._day_tokens += max(0, tokens)
            self._day_restored += max(0, tokens)
        elif day == self._day + 1:
            self._day, self._day_tokens, self._day_restored = day, max(0, tokens), max(0, tokens)

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
        if without != "rate":
            self._take_rate(now)
        slots = int(without != "concurrency")
        self.in_flight += slots
        minute_tokens = tokens if self._per_minute is not None else 0
        self._minute_tokens += minute_tokens
        self._tokens += minute_tokens
        self._day_tokens += tokens
        return Reservation(self, tokens, self._day, minute_tokens, slots)

    def try_take_rate(self, now: float, wall: float) -> Exceeded | None:
        """Counts a call that uses neither a slot nor tokens; returns the rate if that is exceeded."""
        exceeded = [excess for excess in self._exceeded(0, now, wall) if excess.limit == "rate"]
        if exceeded:
            self._note_refused(exceeded, now)
            return exceeded[0]
        self._take_rate(now)
        return None

    def leave(self, reservation: Reservation, tokens: int) -> None:
        """Notes that the call is over, and has used so many tokens: as if the latest call had entered after them, and
        of the day on which this one entered."""
        self.in_flight -= reservation.slots
        if self._per_minute is not None:
            self._minute_tokens = max(0.0, self._minute_tokens + tokens - reservation.minute_tokens)
            self._tokens += tokens - reservation.minute_tokens
        if reservation.day == self._day:
            self._day_tokens = max(0, self._day_tokens + tokens - reservation.tokens)

    def reset(self, now: float, wall: float) -> None:
        """Forgets what was used, but not the calls that are running: an operator's reset."""
        self._roll(wall)
        self._bucket = Bucket()
        self._minute_tokens, self._minute_at = 0.0, now
        self._day_tokens = self._day_restored = self._day_tokens_before = self._day_tokens_elsewhere = 0
        self.resets += 1
        self._refusing.clear()

    def left(self, now: float, wall: float) -> tuple[LimitLeft, ...]:
        """Returns the state of each limit that is set. Changes nothing."""
        settings = self._settings
        found: list[LimitLeft] = []
        if settings.rate is not None and (rate := self._rate) is not None:
            wait_s = max(0.0, self._bucket.next_at - now)
            burst = max(1.0, rate)
            found.append(LimitLeft("rate", settings.rate, max(0.0, burst - wait_s * rate), wait_s))
        if settings.concurrency is not None and (most := self._slots) is not None:
            found.append(LimitLeft("concurrency", settings.concurrency, max(0, most - self.in_flight), 0.0))
        if settings.tokens_per_minute is not None and (per_minute := self._per_minute) is not None:
            used = max(0.0, self._minute_tokens - (now - self._minute_at) * per_minute / _PER_MINUTE_S)
            left, reset_s = max(0.0, per_minute - used), used * _PER_MINUTE_S / per_minute
            found.append(LimitLeft("tokens_per_minute", settings.tokens_per_minute, left, reset_s))
        if (per_day := settings.tokens_per_day) is not None:
            left_today = per_day // self._gateways if self._is_over(_day_of(wall)) else self._left_today(per_day)
            found.append(LimitLeft("tokens_per_day", per_day, max(0, left_today), DAY_S - wall % DAY_S))
        return tuple(found)

    @property
    def _slots(self) -> int | None:
        most = self._settings.concurrency
        if most is None or self.slots is None:
            return most
        return min(most, self.slots if most >= self._others.gateways else max(1, self.slots))

    def _left_today(self, per_day: int) -> int:
        """Returns the tokens of the day that this gateway may use; below 0 if more were used."""
        before, used = self._day_tokens_before, self._day_tokens
        if self._gateways == 1:
            return per_day - self._day_tokens_elsewhere - used
        return max(0, per_day - self._day_tokens_elsewhere - before) // self._gateways - (used - before)

    def _take_rate(self, now: float) -> None:
        self._calls += 1
        if self._rate is not None:
            self._bucket.take(self._rate / self._others.take(), now)

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
        found: list[Exceeded] = []  # `list[Exceeded]()` takes a microsecond
        if self._rate is not None:
            wait_s = self._bucket.next_at - self._burst_s - now
            if self._gateways == 1:
                wait_s = max(wait_s, self._others.burst_wait_s(self._calls, self._rate, now))
            if wait_s > _ROUNDING_S:
                found.append(Exceeded("rate", wait_s))
        if (most := self._slots) is not None and self.in_flight >= most:
            self._denied += 1
            found.append(Exceeded("concurrency", _SLOT_WAIT_S))
        if (allowed := self._per_minute) is not None:
            used = self._minute_tokens - (now - self._minute_at) * allowed / _PER_MINUTE_S
            self._minute_tokens, self._minute_at = used if used > 0 else 0.0, now
            # A call larger than a minute's tokens goes when nothing is used, and the calls after it wait for longer.
            wait_s = (self._minute_tokens + min(tokens, allowed) - allowed) * _PER_MINUTE_S / allowed
            if wait_s > _ROUNDING_S:
                found.append(Exceeded("tokens_per_minute", wait_s))
        if (per_day := self._settings.tokens_per_day) is not None:
            left = self._left_today(per_day)
            if tokens > per_day:
                found.append(Exceeded("tokens_per_day", None))
            elif tokens > left or left <= 0:
                found.append(Exceeded("tokens_per_day", DAY_S - wall % DAY_S))
        return found

    def _roll(self, wall: float) -> None:
        day = _day_of(wall)
        if self._is_over(day):
            self._day, self._day_tokens = day, 0
            self._day_restored = self._day_tokens_elsewhere = self._day_tokens_before = 0

    def _is_over(self, day: int) -> bool:
        """Returns whether the sum is of another day. A clock that is set back over midnight does not reset it."""
        return day != self._day and day != self._day - 1


def _wait_s(exceeded: Exceeded) -> float:
    return inf if exceeded.retry_after_s is None else exceeded.retry_after_s


def _day_of(wall: float) -> int:
    return int(wall // DAY_S)
