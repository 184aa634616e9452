"""Limits of one client key: calls a second, concurrent calls, tokens a minute and tokens a day.

Keeps the sums, reserves tokens for a call when it enters, and corrects them when it ends. Gateways of a fleet have the
limits together: each notes what the others have used, or allows a part of the limits while it cannot know.

The arithmetic costs several per cent of a call. When a busy key's call is let in, it is computed how many more could
enter at that instant: so many may do so in the next 20 ms. They are then charged together, as if they had come at the
end of that time, so that never more enter than if each had been charged as it came.

`proxy.caller_identity` finds the key of a call, `proxy.client_keys.quotas` counts what it has used.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf

from llm_guard.resilience.client_keys.anticipated_calls import AnticipatedCalls
from llm_guard.resilience.client_keys.limit_states import (
    ClientUse,
    Exceeded,
    LimitLeft,
    LimitName,
    Refusing,
    RefusingLimits,
    wait_s_of,
)
from llm_guard.resilience.client_keys.settings import ClientLimitSettings
from llm_guard.resilience.client_keys.token_sums import DayTokens, MinuteTokens, left_of_day_s
from llm_guard.resilience.throttling.gcra import Bucket

# It is not known when another call of the key will end.
_SLOT_WAIT_S = 1.0
_ROUNDING_S = 1e-9
_SURE_S = 0.02
"""For this long calls are let in that would have been let in at the beginning of it."""
_MOST_DEBT_S = 60.0
"""Calls at other gateways make those here wait for no longer: what is published may be nonsense."""


@dataclass(slots=True, eq=False)
class Reservation:
    """Resources held by an admitted call; to be returned once, to its owner."""

    owner: ClientLimits
    tokens: int
    """Estimated tokens."""
    period: int
    """The owner's period when the call entered."""
    slots: int = 1
    """Concurrent calls that it counts as."""
    streamed_tokens: int = 0
    """Output of its stream, one per event: providers send no usage in a stream unless the client requests it."""


class ClientLimits:
    """The limits of one key. `now` is monotonic, `wall` in seconds since the epoch."""

    __slots__ = (
        "_bucket", "_burst_s", "_calls", "_charged_calls", "_charged_tokens", "_day", "_day_period", "_denied",
        "_gateways", "_minute", "_minute_period", "_most", "_others", "_per_minute", "_period", "_rate", "_refusing",
        "_settings", "_slots", "_sure_calls", "_sure_tokens", "_sure_until", "_tokens", "in_flight", "resets",
    )  # fmt: skip

    def __init__(self, settings: ClientLimitSettings, now: float, wall: float) -> None:
        self._slots: int | None = None
        self._gateways = 1
        """Gateways that have the limits together, but do not know what the others use."""
        self._settings = settings
        self._bucket = Bucket()
        self._others = AnticipatedCalls(now)
        self.in_flight = 0
        self.resets = 0
        """Resets of these limits, at any gateway."""
        self._denied = 0
        """Calls refused for want of a slot, until `take_denied`."""
        self._calls = self._tokens = 0
        """Calls that count for the rate, and tokens, since the start."""
        self._charged_calls = self._charged_tokens = 0
        """Those of them that were charged to the rate and the minute."""
        self._minute = MinuteTokens(now)
        self._day = DayTokens(wall)
        self._period = self._day_period = self._minute_period = 0
        """Number of days, resets and beginnings of the minute's limit so far; that in which the day, and the minute's
        limit, began."""
        self._sure_until = now
        """Until this instant calls enter without further checks, up to these numbers of calls and tokens."""
        self._sure_calls: float = 0
        self._sure_tokens: float = 0
        self._refusing = RefusingLimits()
        self._adapt()

    @property
    def settings(self) -> ClientLimitSettings:
        """May be replaced at any moment: what was used stays used."""
        return self._settings

    @settings.setter
    def settings(self, settings: ClientLimitSettings) -> None:
        if self._per_minute is None and settings.tokens_per_minute is not None:
            self._period += 1
            self._minute_period = self._period
            self._charged_tokens = self._tokens
        self._settings = settings
        self._adapt()

    @property
    def slots(self) -> int | None:
        """This gateway's share of `concurrency`; None: all of it. One call may always enter if there are fewer slots
        than gateways: a client that makes one call at a time may send each to another gateway."""
        return self._slots

    @slots.setter
    def slots(self, slots: int | None) -> None:
        self._slots = slots
        self._adapt()

    def share(self, gateways: int, *, knows_others: bool) -> None:
        """Shares the limits with other gateways: `gateways` is their number, this one included. Either
        `note_elsewhere` is called (`knows_others`), or each gateway uses an equal part of the limits."""
        alone = 1 if knows_others else gateways
        if alone != self._gateways:
            self._day.divide(self._tokens)
            self._others.forget()
        self._gateways, self._others.gateways = alone, gateways
        self._adapt()

    def _adapt(self) -> None:
        """Computes this gateway's part of the limits, which the next call is checked against."""
        rate, per_minute = self._settings.rate, self._settings.tokens_per_minute
        self._rate = None if rate is None else rate / self._gateways
        self._burst_s = 0.0 if self._rate is None else max(0.0, 1 - 1 / self._rate)  # a second's worth may come at once
        self._per_minute = None if per_minute is None else per_minute / self._gateways
        self._most = self._most_at_once()
        self._sure_calls = 0

    def _most_at_once(self) -> float:
        most = self._settings.concurrency
        if most is None or self._slots is None:
            return inf if most is None else most
        return min(most, self._slots if most >= self._others.gateways else max(1, self._slots))

    @property
    def day(self) -> tuple[int, int]:
        """The day since the epoch, and the tokens used in it."""
        return self._day.day, self._day.used(self._tokens)

    def use(self, day_gone: int = 0) -> ClientUse:
        """Returns what was used here; `day_gone`: today, by gateways that have left."""
        day = self._day
        own = day.used(self._tokens) - day.restored
        return ClientUse(self._calls, self._tokens, day.day, own, day.restored, day_gone, self.resets)

    def note_elsewhere(self, calls: int, tokens: int, now: float) -> None:
        """Notes what other gateways have used since this was last called."""
        self._catch_up(now)
        unexpected = self._others.note(self._calls, max(0, calls), now)
        if self._rate is not None:
            self._bucket.correct(min(unexpected / self._rate, _MOST_DEBT_S), now)
        if self._per_minute is not None:
            self._minute.charge(tokens, self._per_minute, now)

    def note_day_elsewhere(self, day: int, tokens: int, wall: float) -> None:
        """Notes what other gateways have used on a day, in all."""
        self._begin_day(wall)
        if day == self._day.day:
            self._day.elsewhere = tokens
            self._sure_calls = 0

    def is_at_rate(self, now: float) -> bool:
        """Returns whether calls come faster than the rate allows for long."""
        self._catch_up(now)
        return self._bucket.next_at > now

    def take_denied(self) -> int:
        """Returns the calls refused for want of a slot since this was last called."""
        denied, self._denied = self._denied, 0
        return denied

    def restore_day(self, day: int, tokens: int, wall: float) -> None:
        """Adds the sum of an earlier process, if it is of this day."""
        self._begin_day(wall)
        self._day.restore(day, tokens, self._tokens)
        self._sure_calls = 0

    def try_enter(
        self, tokens: int, now: float, wall: float, without: LimitName | None = None
    ) -> Reservation | Exceeded:  # fmt: skip
        """Lets in a call of so many estimated tokens, or returns the exceeded limit with the longest wait. A refused
        call uses nothing. `without`: a limit that the call neither respects nor uses."""
        total = self._tokens + tokens
        if (
            now >= self._sure_until
            or self._calls >= self._sure_calls
            or total >= self._sure_tokens
            or self.in_flight >= self._most
            or without is not None
        ):
            return self._check(tokens, now, wall, without)
        self._tokens = total
        self._calls += 1
        self.in_flight += 1
        return Reservation(self, tokens, self._period)

    def _check(self, tokens: int, now: float, wall: float, without: LimitName | None) -> Reservation | Exceeded:
        is_busy = now < self._sure_until + _SURE_S
        self._begin_day(wall)
        self._catch_up(now)
        exceeded = self._exceeded(tokens, now, wall)
        if without is not None:
            exceeded = [excess for excess in exceeded if excess.limit != without]
        if exceeded:
            self._refusing.note(exceeded, now)
            return max(exceeded, key=wait_s_of)
        self._refusing.clear()
        calls, slots = int(without != "rate"), int(without != "concurrency")
        self._calls += calls
        self._tokens += tokens
        self.in_flight += slots
        self._charge(calls, tokens, now)
        if is_busy:
            self._make_sure(now, wall)
        return Reservation(self, tokens, self._period, slots)

    def try_take_rate(self, now: float, wall: float) -> Exceeded | None:
        """Counts a call that uses neither a slot nor tokens; returns the rate if that is exceeded."""
        self._begin_day(wall)
        self._catch_up(now)
        exceeded = [excess for excess in self._exceeded(0, now, wall) if excess.limit == "rate"]
        if exceeded:
            self._refusing.note(exceeded, now)
            return exceeded[0]
        self._calls += 1
        self._charge(1, 0, now)
        return None

    def leave(self, reservation: Reservation, tokens: int) -> None:
        """Notes that the call is over, and has used so many tokens: as if the latest call had entered after them, and
        of the day on which this one entered."""
        self.in_flight -= reservation.slots
        self._tokens += tokens - reservation.tokens
        if reservation.period != self._period:
            self._correct(reservation, tokens)

    def _correct(self, reservation: Reservation, tokens: int) -> None:
        """Corrects the sums for a call that was let in before one of them began."""
        if reservation.period < self._day_period:
            self._day.leave_out(tokens - reservation.tokens)
        if reservation.period < self._minute_period:
            self._charged_tokens -= reservation.tokens
        self._sure_calls = 0

    def reset(self, now: float, wall: float) -> None:
        """Forgets what was used, but not the calls that are running: an operator's reset."""
        self._begin_day(wall)
        self._catch_up(now)
        self._bucket = Bucket()
        self._minute.clear()
        self._day.clear(self._tokens)
        self._period += 1
        self._day_period = self._period
        self.resets += 1
        self._refusing.clear()

    def left(self, now: float, wall: float) -> tuple[LimitLeft, ...]:
        """Returns the state of each limit that is set."""
        self._begin_day(wall)
        self._catch_up(now)
        settings = self._settings
        found: list[LimitLeft] = []
        if settings.rate is not None and (rate := self._rate) is not None:
            wait_s = max(0.0, self._bucket.next_at - now)
            burst = max(1.0, rate)
            found.append(LimitLeft("rate", settings.rate, max(0.0, burst - wait_s * rate), wait_s))
        if settings.concurrency is not None:
            found.append(LimitLeft("concurrency", settings.concurrency, max(0, self._most - self.in_flight), 0.0))
        if settings.tokens_per_minute is not None and (per_minute := self._per_minute) is not None:
            left = max(0.0, per_minute - self._minute.used(per_minute, now))
            reset_s = self._minute.reset_s(per_minute, now)
            found.append(LimitLeft("tokens_per_minute", settings.tokens_per_minute, left, reset_s))
        if (per_day := settings.tokens_per_day) is not None:
            left_today = max(0, self._day.left(per_day, self._gateways, self._tokens))
            found.append(LimitLeft("tokens_per_day", per_day, left_today, left_of_day_s(wall)))
        return tuple(found)

    def refusing(self, now: float) -> tuple[Refusing, ...]:
        """Returns the limits that refuse calls now."""
        return self._refusing.now(now)

    def _exceeded(self, tokens: int, now: float, wall: float) -> list[Exceeded]:
        """Returns the limits that a call of so many tokens exceeds; all calls so far are counted, up to now."""
        found: list[Exceeded] = []  # `list[Exceeded]()` takes a microsecond
        if self._rate is not None and (wait_s := self._rate_wait_s(self._rate, now)) > _ROUNDING_S:
            found.append(Exceeded("rate", wait_s))
        if self.in_flight >= self._most:
            self._denied += 1
            found.append(Exceeded("concurrency", _SLOT_WAIT_S))
        if self._per_minute is not None:
            wait_s = self._minute.wait_s(tokens, self._per_minute, now)
            if wait_s > _ROUNDING_S:
                found.append(Exceeded("tokens_per_minute", wait_s))
        if (per_day := self._settings.tokens_per_day) is not None:
            left = self._day.left(per_day, self._gateways, self._tokens)
            if tokens > per_day:
                found.append(Exceeded("tokens_per_day", None))
            elif tokens > left or left <= 0:
                found.append(Exceeded("tokens_per_day", left_of_day_s(wall)))
        return found

    def _rate_wait_s(self, rate: float, now: float) -> float:
        """Returns the seconds until the rate lets one more call in; below 0 if it would do so already."""
        wait_s = self._bucket.next_at - self._burst_s - now
        return max(wait_s, self._others.burst_wait_s(self._calls, rate, now)) if self._gateways == 1 else wait_s

    def _make_sure(self, now: float, wall: float) -> None:
        """Lets in for a moment as many calls and tokens as could enter now."""
        calls: float = inf
        tokens: float = inf
        if (rate := self._rate) is not None:
            calls = max(0, 1 + floor((_ROUNDING_S - self._rate_wait_s(rate, now)) * rate / self._others.weight))
        if self._per_minute is not None:
            tokens = self._per_minute - self._minute.used(self._per_minute, now)
        if (per_day := self._settings.tokens_per_day) is not None:
            tokens = min(tokens, self._day.left(per_day, self._gateways, self._tokens))
        self._sure_calls, self._sure_tokens = self._calls + calls, self._tokens + tokens
        self._sure_until = now + min(_SURE_S, left_of_day_s(wall))

    def _catch_up(self, now: float) -> None:
        """Charges what was let in since the last time, as late as it may have come. After that no call enters without
        a check."""
        at, self._sure_until = min(now, self._sure_until), now
        if self._calls != self._charged_calls or self._tokens != self._charged_tokens:
            self._charge(self._calls - self._charged_calls, self._tokens - self._charged_tokens, at)

    def _charge(self, calls: int, tokens: int, at: float) -> None:
        """Charges the rate and the minute with what was let in, or corrected; `at` is not before the last time."""
        self._charged_calls += calls
        self._charged_tokens += tokens
        if calls and self._rate is not None:
            self._bucket.take(self._rate / self._others.take(calls), at)
        if self._per_minute is not None:
            self._minute.charge(tokens, self._per_minute, at)

    def _begin_day(self, wall: float) -> None:
        if self._day.begin(wall, self._tokens):
            self._period += 1
            self._day_period = self._period
