"""Whether one deployment can take another call now, and who waits until it can.

Owns the slots, and joins limit, pace and line. Does not own the laws of the limit (`policy.limiter`) and the pace
(`policy.pacer`), nor how long a call can afford to wait (`gateway.way`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from llm_guard.policy.arrivals import DeniedCalls
from llm_guard.policy.capacity_settings import CapacitySettings
from llm_guard.policy.hold import Hold, RetryAfterEvidence
from llm_guard.policy.limiter import Ending, Limiter
from llm_guard.policy.line import ANONYMOUS, Caller, Line, Slot, Ticket
from llm_guard.policy.pacer import Cause, Pacer
from llm_guard.policy.rate_hints import RateHint
from llm_guard.policy.throttle import Throttle, ThrottleSnapshot

__all__ = ["CapacitySettings", "Ending", "Gate", "GateSnapshot", "Slot", "Ticket"]

NORMAL = 1
"""The priority of a call that names none; lower numbers go first."""

# How long a slot is used, until the first has come back.
_GUESSED_USE_S = 1.0
_USE_SHARE = 0.1
# After a hold so many that wait are let go at once.
_FEW = 4
# After a hold calls go so much faster than they came: the last of them still goes within `queue_wait`.
_CATCH_UP = 1.25
# So many calls go at that rate before it may double; after a stop nothing but the answers shows what is taken.
_CALLS_AFTER_HOLD = 15
_CALLS_AFTER_STOP = 60


@dataclass(frozen=True, slots=True)
class GateSnapshot:
    limit: int | None
    """Calls that may be in flight now; None: no limit."""
    in_flight: int
    waiting: Mapping[int, int]
    """How many wait, by priority."""
    rate: float | None
    """Calls a second; None: unlimited as far as is known."""
    held_until: float | None
    """Nothing passes before this instant; None: not held."""
    rate_cause: Cause | None
    """What the rate was learned from; None: there is no rate."""
    rate_since: float | None
    """When calls began to be paced for that cause; None: there is no rate."""
    held_since: float | None
    """When the hold began, or the first of a row of holds; None: neither held nor looking."""
    is_probing: bool
    """Single calls look whether the provider takes calls again."""
    throttle: ThrottleSnapshot


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a newcomer would meet."""

    is_free: bool
    wait_s: float
    """As estimated, if it waits."""
    has_place: bool
    """One more may wait."""


class Gate:
    """The way in to one deployment. A call enters at once (`try_enter`), or joins the line and is let in by `advance`.
    It gives its slot back with `exit`, or with `leave` unused. `advance` must be called after each join, exit, leave,
    hint, hold, ramp or change of the settings, and at the instant that it returns.
    """

    __slots__ = (
        "_denied", "_exited_at", "_hold", "_in_flight", "_limiter", "_line", "_pacer", "_retry_after", "_settings",
        "_throttle", "_use_s",
    )  # fmt: skip

    def __init__(self, settings: CapacitySettings, now: float) -> None:
        self._settings = settings
        self._limiter = Limiter(settings)
        self._pacer = Pacer(now)
        self._throttle = Throttle(now)
        self._hold = Hold()
        self._exited_at = now
        """A hold begins with the answer that asked for it."""
        self._line = Line()
        self._denied = DeniedCalls(now)
        self._in_flight = 0
        self._use_s: float | None = None
        """How long a slot is used on average; None until the first has come back."""
        self._retry_after = RetryAfterEvidence()

    @property
    def settings(self) -> CapacitySettings:
        """May be replaced at any moment; a smaller queue evicts nobody."""
        return self._settings

    @settings.setter
    def settings(self, settings: CapacitySettings) -> None:
        self._settings = self._limiter.settings = settings
        if not settings.pacing:
            self._pacer.release(self._exited_at)

    @property
    def waiting(self) -> int:
        """How many wait, of all priorities."""
        return self._line.length

    def try_enter(self, now: float, priority: int = NORMAL) -> Slot | None:
        """A slot at once, unless there is no room, or the next turn is a waiting call's (`Line.may_pass`)."""
        line = self._line
        if (line.length and not line.may_pass(priority, self._scarce_slots(now))) or self._opens_at(now) > now:
            self._denied.note(now)
            return None
        slot = self._grant(now)
        if line.length:
            line.note_turn(priority)
            slot.holder = line.hold(priority)
        return slot

    def wait_s(self, now: float, priority: int = NORMAL, caller: Caller = ANONYMOUS) -> float | None:
        """About how long a newcomer would wait, 0 when not at all; None: it would not be let into the line."""
        if self._opens_at(now) <= now and self._line.may_pass(priority, self._scarce_slots(now)):
            return 0.0
        return self.drain_s(now, priority, caller) if self._has_place(priority, caller) else None

    def drain_s(self, now: float, priority: int = NORMAL, caller: Caller = ANONYMOUS) -> float:
        """About how long until all before a newcomer have passed, whether it would be let into the line or not."""
        ahead = self._line.count_ahead(priority, caller, newest_first=self._throttle.is_throttling)
        return max(self._pace_wait_s(ahead, now), self._limit_wait_s(ahead, now))

    def forecast(self, now: float, priority: int = NORMAL, caller: Caller = ANONYMOUS) -> Forecast:
        """Read-only: unlike `wait_s` it does not count as demand, which may have the pace grow."""
        is_free = self._line.may_pass(priority, self._scarce_slots(now)) and (
            max(
                self._limiter.opens_at(self._in_flight, now),
                self._hold.opens_at(),
                self._throttle.snapshot(now).next_at,
                self._pacer.snapshot(now).next_at,
            )
            <= now
        )
        wait_s = 0.0 if is_free else self.drain_s(now, priority, caller)
        return Forecast(is_free, wait_s, self._has_place(priority, caller))

    def join(self, priority: int, notify: Callable[[], None], caller: Caller = ANONYMOUS) -> Ticket | None:
        """A place in the line; None: it is full, and no call in it gives way (`Line.displaced_by`)."""
        if self._line.length >= self._settings.queue:
            evicted = self._displaced_by(priority, caller)
            if evicted is None:
                return None
            self._line.remove(evicted)
            evicted.is_evicted = True
            evicted.notify()
        ticket = Ticket(priority, notify, caller)
        self._line.add(ticket)
        return ticket

    def leave(self, ticket: Ticket, now: float) -> None:
        """Its holder will not use it: it leaves the line, or returns the slot that it was granted. A second time
        does nothing."""
        if self._line.remove(ticket) or ticket.slot is None or ticket.slot.is_back:
            return
        ticket.slot.is_back = True
        if ticket.slot.holder is not None:
            self._line.release(ticket.slot.holder)
        self._in_flight -= 1
        self._pacer.put_back(ticket.slot.entered_at, now)
        self._throttle.put_back(ticket.slot.entered_at, now)
        self._hold.note_unused(ticket.slot.entered_at)

    def advance(self, now: float) -> float | None:
        """Lets in whose turn it is (sets their `slot`, then calls `notify`); from when on it is worth calling again
        though nothing else happens, > `now`; None: only if something does."""
        while self._line.length:
            opens_at = self._opens_at(now)
            if opens_at > now:
                return None if opens_at == inf else opens_at
            ticket = self._line.take(self._scarce_slots(now), newest_first=self._throttle.is_throttling)
            ticket.slot = self._grant(now)
            ticket.slot.holder = self._line.hold(ticket.priority, ticket.caller.name)
            ticket.notify()
        return None

    def exit(self, slot: Slot, now: float, outcome: Ending, latency_s: float | None) -> bool:
        """Gives a slot back, with what became of the call; a second time does nothing. Whether anybody waits, who is
        to be let in by `advance`.

        `latency_s`: until the answer, or its first token; None: not known. A rate limit tells the pace, an overload
        and a success the limit, `ignored` (the client left) nothing.
        """
        is_waited_for = self._line.length > 0
        if slot.is_back:
            return is_waited_for
        slot.is_back = True
        if slot.holder is not None:
            self._line.release(slot.holder)
        self._exited_at = now
        in_flight = self._in_flight
        self._in_flight = in_flight - 1
        self._limiter.note(outcome, slot.entered_at, now, latency_s, in_flight)
        if outcome == "ignored":
            self._hold.note_unused(slot.entered_at)
            return is_waited_for
        used_s = now - slot.entered_at
        self._use_s = used_s if self._use_s is None else self._use_s + _USE_SHARE * (used_s - self._use_s)
        if outcome == "rate_limited":
            self._denied.take_back()
            self._retry_after.note_rate_limited()
            self._hold.note_rate_limited(slot.entered_at, now)
            if self._settings.pacing:
                self._pacer.note_rate_limited(slot.entered_at, now)
            return is_waited_for
        if outcome == "ok":
            self._retry_after.note_accepted(slot.entered_at, now)
            self._throttle.note_ok(slot.entered_at, now)
        else:
            self._throttle.note_failure(slot.entered_at, now)
        if self._settings.pacing or self._hold.is_active:
            self._note_accepted(slot.entered_at, now)
        return is_waited_for

    def note_hint(self, hint: RateHint, sent_at: float, now: float) -> None:
        """The answer to a request that went at `sent_at` had these rate-limit headers."""
        if self._settings.pacing:
            self._pacer.note_hint(hint, self._line.length, self._in_flight, sent_at, now)

    def note_retry_after(self, until: float, now: float) -> None:
        """The call that came back last was refused with a hint (Retry-After): a hold, if that is about all calls."""
        if self._retry_after.note_hint(until, now):
            self.hold(until)

    def hold(self, until: float) -> None:
        """Nothing passes before that instant, and then one call that looks: the provider asked for it (Retry-After)."""
        self._hold.begin(until, self._exited_at)

    def end_hold(self, now: float) -> None:
        """A light probe was well: from now on one call may look."""
        self._hold.expire(now)

    def reset_pace(self, now: float) -> None:
        """Forgets the rate, whatever it was learned from, a hold, and the look after it: an operator's reset."""
        self._pacer.release(now)
        self._hold.lift()
        self._retry_after = RetryAfterEvidence()

    def reset_throttle(self, now: float) -> None:
        """Forgets what was found out about failures and load: an operator's reset."""
        self._throttle.reset(now)

    def ramp(self, now: float, seconds: float) -> None:
        """Its breaker has just closed: a slow start, for so long at most."""
        self._throttle.reset(now)  # what an outage has let it find out is no limit of the provider's
        self._limiter.ramp(now, seconds, self._in_flight)

    def end_ramp(self, now: float) -> None:
        self._limiter.ramp(now, 0.0, self._in_flight)

    def snapshot(self, now: float) -> GateSnapshot:
        pace, hold = self._pacer.snapshot(now), self._hold
        return GateSnapshot(
            limit=self._limiter.limit(now),
            in_flight=self._in_flight,
            waiting=self._line.counts(),
            rate=pace.rate,
            held_until=hold.until if now < hold.until else None,
            rate_cause=pace.cause,
            rate_since=pace.since,
            held_since=hold.since,
            is_probing=pace.is_probing or hold.is_looking(now),
            throttle=self._throttle.snapshot(now),
        )

    def _opens_at(self, now: float) -> float:
        """From when on the next may pass; an instant in the past: now; inf: when somebody is out."""
        at = self._limiter.opens_at(self._in_flight, now)
        if at > now:
            return at
        if self._hold.since is not None and (at := self._hold.opens_at()) > now:
            return at
        if self._throttle.rate is not None and (at := self._throttle.opens_at(now)) > now:
            return at
        return self._pacer.opens_at(now)

    def _scarce_slots(self, now: float) -> int | None:
        """How many slots there are, if calls wait for one; None: they wait for something else, such as the pace."""
        limit = self._limiter.limit(now) if self._line.length else None
        return limit if limit is not None and self._in_flight + 1 >= limit else None

    def _grant(self, now: float) -> Slot:
        self._in_flight += 1
        if (held_since := self._hold.since) is not None and self._hold.take(now):
            self._open_after_hold(now - held_since, now)
        if self._throttle.rate is not None:
            self._throttle.take(now)
        self._pacer.take(now)
        return Slot(now)

    def _note_accepted(self, entered_at: float, now: float) -> None:
        """The call that entered then came back with anything but a 429: it may end a hold, a stop or both."""
        held_since = self._hold.since
        opening = self._pacer.note_accepted(entered_at, now) if self._settings.pacing else None
        is_held_no_more = held_since is not None and self._hold.note_answer(entered_at)
        if opening is not None and (opening == "after_stop" or not is_held_no_more):
            # All calls could not enter at once, and most may have been refused without waiting.
            self._open_slowly(self._denied.per_s(now), _CALLS_AFTER_STOP, now)
        elif is_held_no_more and held_since is not None:
            self._open_after_hold(now - held_since, now)

    def _open_after_hold(self, held_s: float, now: float) -> None:
        """Many calls that waited for the same instant must not all go at once, nor much faster than they came before
        half of them have gone."""
        count = self._line.length
        queued_per_s = count / max(1.0, min(held_s, self._settings.queue_wait))
        self._open_slowly(queued_per_s, max(_CALLS_AFTER_HOLD, count // 2), now)

    def _open_slowly(self, came_per_s: float, calls: int, now: float) -> None:
        count = self._line.length
        if self._settings.pacing and count > _FEW:
            ceiling = inf if count + 1 >= self._settings.queue else _CATCH_UP * came_per_s
            self._pacer.open_slowly(now, ceiling, calls)

    def _has_place(self, priority: int, caller: Caller) -> bool:
        return self._line.length < self._settings.queue or self._displaced_by(priority, caller) is not None

    def _displaced_by(self, priority: int, caller: Caller) -> Ticket | None:
        places, newest_first = self._settings.queue, self._throttle.is_throttling
        return self._line.displaced_by(priority, caller, places, newest_first=newest_first)

    def _pace_wait_s(self, ahead: int, now: float) -> float:
        return max(self._hold.opens_at() - now, self._pacer.wait_s(ahead, now), self._throttle.wait_s(ahead, now))

    def _limit_wait_s(self, ahead: int, now: float) -> float:
        wait_s = self._turnover_s(ahead, self._limiter.limit(now))
        ramp_until = self._limiter.snapshot(now).ramp_until
        if ramp_until is None:
            return wait_s
        # A ramp grows, and ends: its two slots of the beginning are not all that there will be.
        return min(wait_s, ramp_until - now + self._turnover_s(ahead, self._limiter.limit(ramp_until)))

    def _turnover_s(self, ahead: int, limit: int | None) -> float:
        """By Little's law: `limit` slots come back once per mean use."""
        if limit is None or self._in_flight + ahead < limit:
            return 0.0
        return (self._in_flight + ahead - limit + 1) * (self._use_s or _GUESSED_USE_S) / limit
