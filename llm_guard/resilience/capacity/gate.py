"""Admission to one deployment: whether it can take another call now, and which calls wait until it can.

Counts the slots, and combines wait queue, concurrency limit and paces. The limit is a fixed number, none, or one that
adapts to how the deployment copes (`resilience.capacity.adaptive_limit`), with a ramp after an outage. Which failures
are overload is defined by `outcome.FailureKind`, and `proxy.attempts.candidate_selection` decides how long a call can
afford to wait.

A limit that one caller's 429s have begun applies to this caller alone until others are refused too. When another one
calls, the refused callers keep the limited pace (`resilience.capacity.throttled_callers`), and the other one begins
with a fresh pace. If its own 429s limit that pace, it joins them: the limit is that of the whole account, and they
share it. If many calls of other callers are refused, all callers join, including those that call too seldom to learn a
pace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from llm_guard.resilience.bounded_map import BoundedMap
from llm_guard.resilience.capacity.adaptive_limit import AdaptiveLimit
from llm_guard.resilience.capacity.fair_queue import ANONYMOUS, Caller, Slot, SourceFilter, Ticket
from llm_guard.resilience.capacity.gate_snapshot import Forecast, GateSnapshot
from llm_guard.resilience.capacity.pacing import Pace, PaceSnapshot
from llm_guard.resilience.capacity.rate_limit_headers import RateHint
from llm_guard.resilience.capacity.settings import CapacitySettings, LimiterSettings
from llm_guard.resilience.capacity.throttled_callers import MOST_CALLERS, ThrottledCallers
from llm_guard.resilience.capacity.wait_queue import WaitQueue
from llm_guard.resilience.throttling.adaptive_throttle import Throttle

Ending = Literal["ok", "overloaded", "rate_limited", "failed", "ignored"]
"""How the use of a slot ended; `ignored`: the client disconnected, which is not evidence of anything."""

RAMP_START = 4
"""Least number of calls in flight with which a ramp begins: as many packets as TCP sends at first (RFC 3390). From 2 it
takes another round trip until a provider that has just recovered is busy, and all waiting clients are served later."""
RAMP_SHARE = 1 / 2
"""Share of the usual number of calls in flight with which a ramp begins. With responses of 2 s a ramp takes seconds to
reach the number that carries the load: from 2, at 200 calls/s, 16 s. The more calls wait meanwhile, the more go at once
in the end, beyond the rate that the provider accepts: from a quarter 5 % of them got a 429, from half none."""

# Memory of the usual number of calls in flight. A pause, such as an outage, counts as one second.
_USUAL_S = 10.0
_LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class LimiterSnapshot:
    limit: int | None
    """The limit in force now, the ramp included; None: no limit."""
    ramp_until: float | None
    latency_s: float | None
    usual_latency_s: float | None
    """Latencies smoothed over a few responses, and over ten minutes; None before the first."""


class Limiter:
    """A configured or adaptive (`resilience.capacity.adaptive_limit`) limit on the calls in flight, and the ramp after
    an outage. `settings` and `share` may be replaced at any moment."""

    __slots__ = (
        "_adaptive", "_ramp", "_ramp_began_at", "_ramp_until", "_succeeded_at", "_usual_in_flight",
        "expected_share", "settings", "share",
    )  # fmt: skip

    def __init__(self, settings: LimiterSettings) -> None:
        self.settings = settings
        self.share: int | None = None
        """This gateway's share of a configured limit, which may be 0; None: all of it."""
        self.expected_share = 1.0
        """Its share when all gateways need as many slots as they can get: forecasts assume no less. Below 1: it has a
        slot for a part of the time."""
        self._adaptive = AdaptiveLimit()
        self._ramp = RAMP_START
        self._ramp_began_at = -inf
        self._ramp_until = -inf
        self._usual_in_flight = 0.0
        self._succeeded_at = -inf

    def limit(self, now: float) -> int | None:
        """Returns the number of calls that may be in flight, >= 1 unless this gateway has no share; None: no limit."""
        own = self._own_limit()
        if now >= self._ramp_until:
            return own
        return self._ramp if own is None else min(own, self._ramp)

    def expected_limit(self, now: float) -> float | None:
        """Returns the number of calls that may be in flight on average in the next seconds, > 0; None: no limit."""
        limit = self.limit(now)
        return limit if limit is None or self.share is None else max(limit, self.expected_share)

    def opens_at(self, in_flight: int, now: float) -> float:
        """Returns the instant from which one more call may enter: in the past, the end of a ramp, or inf: once a call
        ends."""
        if self.settings.concurrency is not None:
            own = self._own_limit()
            if own is not None and in_flight >= own:
                return inf
        return self._ramp_until if now < self._ramp_until and in_flight >= self._ramp else -inf

    def ramp(self, now: float, seconds: float, in_flight: int) -> None:
        """Limits the calls in flight for `seconds`: to half of the usual number, at least `RAMP_START`, plus one for
        every success. That doubles once per round trip (RFC 5681, slow start), so that a deployment that has just
        recovered is not overloaded again. The `in_flight` calls from before do not count: they may hang until they time
        out."""
        self._ramp = in_flight + max(RAMP_START, int(self._usual_in_flight * RAMP_SHARE))
        self._ramp_began_at = now
        self._ramp_until = now + seconds

    def note(self, ending: Ending, entered_at: float, now: float, latency_s: float | None, in_flight: int) -> None:
        """Notes the end of a call that entered at `entered_at`; `in_flight` still includes it."""
        if now < self._ramp_until:
            if entered_at < self._ramp_began_at:
                self._ramp -= 1
            elif ending == "ok":
                self._ramp += 1
        elif ending == "ok":
            passed_s = min(_LONGEST_PAUSE_S, now - self._succeeded_at)
            self._usual_in_flight += passed_s / _USUAL_S * (in_flight - self._usual_in_flight)
            self._succeeded_at = now
        if self.settings.concurrency != "adaptive":
            return
        adaptive = self._bounded_adaptive()
        if ending == "overloaded" or (ending in ("ok", "failed") and self._is_slow(latency_s)):
            adaptive.note_overload(entered_at, now, in_flight)
        elif ending == "ok":
            has_threshold = self.settings.latency_threshold is not None
            adaptive.note_answer(entered_at, now, None if has_threshold else latency_s, in_flight)

    def snapshot(self, now: float) -> LimiterSnapshot:
        latency_s, usual_latency_s = self._adaptive.latencies_s
        return LimiterSnapshot(
            limit=self.limit(now),
            ramp_until=self._ramp_until if now < self._ramp_until else None,
            latency_s=latency_s,
            usual_latency_s=usual_latency_s,
        )

    def _own_limit(self) -> int | None:
        concurrency = self.settings.concurrency
        if concurrency == "adaptive":
            return self._bounded_adaptive().limit
        return concurrency if self.share is None or concurrency is None else min(concurrency, self.share)

    def _bounded_adaptive(self) -> AdaptiveLimit:
        settings = self.settings
        self._adaptive.keep_within(min(settings.min_concurrency, settings.max_concurrency), settings.max_concurrency)
        return self._adaptive

    def _is_slow(self, latency_s: float | None) -> bool:
        threshold_s = self.settings.latency_threshold
        return threshold_s is not None and latency_s is not None and latency_s > threshold_s


__all__ = ["CapacitySettings", "Ending", "Gate", "Slot", "Ticket"]

NORMAL = 1
"""The priority of a call that names none; lower numbers go first."""

# Assumed duration of a slot's use, until the first has been returned.
_GUESSED_USE_S = 1.0
_USE_SHARE = 0.1


class Gate:
    """Admission to one deployment. A call enters at once (`try_enter`), or joins the wait queue and is let in by
    `dispatch`. It returns its slot with `exit`, or unused with `dequeue`. `dispatch` must be called after each join,
    exit, leave, hint, hold, ramp or change of the settings or the share, and at the instant that it returns.
    """

    __slots__ = (
        "_exited_at", "_in_flight", "_limited_at", "_limiter", "_paces", "_queue", "_settings", "_throttle", "_use_s",
    )  # fmt: skip

    def __init__(self, settings: CapacitySettings, now: float) -> None:
        self._settings = settings
        self._limiter = Limiter(settings)
        self._paces = Paces(now)
        self._throttle = Throttle(now)
        self._exited_at = now
        """When a call last ended: a hold begins with the response that requested it."""
        self._limited_at = -inf
        """When the provider last refused a call for its rate."""
        self._queue = WaitQueue()
        self._in_flight = 0
        self._use_s: float | None = None
        """Average time that a slot is used; None until the first has been returned."""

    @property
    def settings(self) -> CapacitySettings:
        """Settings, which may be replaced at any moment; a smaller queue evicts no waiting call."""
        return self._settings

    @settings.setter
    def settings(self, settings: CapacitySettings) -> None:
        self._settings = self._limiter.settings = settings
        if not settings.pacing:
            self._paces.release(self._exited_at)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def share(self, slots: int | None, expected: float) -> None:
        """Sets this gateway's share of its concurrency limit, and the least that it may expect; None: all of it."""
        self._limiter.share, self._limiter.expected_share = slots, expected

    @property
    def waiting(self) -> int:
        """Number of waiting calls of all priorities."""
        return self._queue.length

    def try_enter(self, now: float, priority: int = NORMAL, source: str = "") -> Slot | None:
        """Returns a slot at once, or None if there is no room or a waiting call is next (`WaitQueue.may_pass`).
        `source`: the caller that a provider's refusal of the call would be attributed to."""
        queue, pace = self._queue, self._paces.of(source, now)
        must_wait = queue.length and not queue.may_pass(priority, self._scarce_slots(now), now)
        if must_wait or self._opens_at(pace, now) > now:
            pace.note_denied(now)
            return None
        slot = self._grant(pace, source, now)
        if queue.length:
            queue.note_turn(priority)
            slot.holder = queue.hold(priority, "", now)
        return slot

    def wait_s(
        self, now: float, priority: int = NORMAL, caller: Caller = ANONYMOUS, source: str = ""
    ) -> float | None:  # fmt: skip
        """Returns the estimated wait of a new call, 0 if it would not wait; None: the wait queue would not take it."""
        pace = self._paces.of(source, now)
        if self._opens_at(pace, now) <= now and self._queue.may_pass(priority, self._scarce_slots(now), now):
            return 0.0
        return self.estimated_wait_s(now, priority, caller, source) if self._has_place(priority, caller) else None

    def estimated_wait_s(
        self, now: float, priority: int = NORMAL, caller: Caller = ANONYMOUS, source: str = ""
    ) -> float:
        """Returns the estimated time until all calls before a new one have passed, even if the wait queue would not
        take it."""
        # Calls that wait for another pace do not block those that do not.
        only, newest_first = self._paces.beside(source), self._throttle.is_throttling
        ahead = self._queue.count_ahead(priority, caller, only, newest_first=newest_first)
        pace = self._paces.forecast_of(source)
        pace_wait_s = 0.0 if pace is None else pace.wait_s(ahead, now)
        return max(pace_wait_s, self._throttle.wait_s(ahead, now), self._limit_wait_s(ahead, now))

    def forecast(
        self, now: float, priority: int = NORMAL, caller: Caller = ANONYMOUS, source: str = ""
    ) -> Forecast:  # fmt: skip
        """Read-only forecast. Unlike `wait_s` it does not count as demand, which could raise the pace."""
        pace = self._paces.forecast_of(source)
        is_free = self._queue.may_pass(priority, self._scarce_slots(now), now) and (
            max(
                self._limiter.opens_at(self._in_flight, now),
                -inf if pace is None else pace.forecast_at(now),
                self._throttle.snapshot(now).next_at,
            )
            <= now
        )
        wait_s = 0.0 if is_free else self.estimated_wait_s(now, priority, caller, source)
        return Forecast(is_free, wait_s, self._has_place(priority, caller))

    def enqueue(
        self, priority: int, notify: Callable[[], None], caller: Caller = ANONYMOUS, source: str = ""
    ) -> Ticket | None:  # fmt: skip
        """Joins the wait queue; None: it is full, and no call in it is displaced (`WaitQueue.displaced_by`)."""
        if self._queue.length >= self._settings.max_queue:
            evicted = self._displaced_by(priority, caller)
            if evicted is None:
                return None
            self._queue.remove(evicted)
            evicted.is_evicted = True
            evicted.notify()
        ticket = Ticket(priority, notify, caller, source=source)
        self._queue.add(ticket)
        return ticket

    def dequeue(self, ticket: Ticket, now: float) -> None:
        """Gives up a ticket: it leaves the wait queue, or returns the slot it was granted unused. A second time does
        nothing."""
        if self._queue.remove(ticket) or ticket.slot is None or ticket.slot.is_back:
            return
        ticket.slot.is_back = True
        if ticket.slot.holder is not None:
            self._queue.release(ticket.slot.holder, now)
        self._in_flight -= 1
        self._paces.of_known(ticket.source).put_back(ticket.slot.entered_at, now)
        self._throttle.put_back(ticket.slot.entered_at, now)

    def dispatch(self, now: float) -> float | None:
        """Lets in the waiting calls that are next (sets their `slot`, then calls `notify`). Returns the instant, >
        `now`, at which it should be called again even if nothing else happens; None: only if something does."""
        while self._queue.length:
            if self._paces.apart is not None:
                return self._advance_selected(now)
            opens_at = self._opens_at(self._paces.free, now)
            if opens_at > now:
                return None if opens_at == inf else opens_at
            newest_first = self._throttle.is_throttling
            self._let_in(self._queue.take(self._scarce_slots(now), newest_first=newest_first, now=now), now)
        return None

    def exit(self, slot: Slot, now: float, outcome: Ending, latency_s: float | None) -> bool:
        """Returns a slot, with the outcome of the call; a second time does nothing. True if calls wait, which
        `dispatch` must let in.

        `latency_s`: time until the response, or its first token; None: unknown. A rate limit informs the pace, an
        overload and a success the concurrency limit, `ignored` (the client disconnected) neither.
        """
        is_waited_for = self._queue.length > 0
        if slot.is_back:
            return is_waited_for
        slot.is_back = True
        if slot.holder is not None:
            self._queue.release(slot.holder, now)
        self._exited_at = now
        in_flight = self._in_flight
        self._in_flight = in_flight - 1
        self._limiter.note(outcome, slot.entered_at, now, latency_s, in_flight)
        if outcome == "ignored":
            self._paces.of_known(slot.source).note_unused(slot.entered_at)
            return is_waited_for
        used_s = now - slot.entered_at
        self._use_s = used_s if self._use_s is None else self._use_s + _USE_SHARE * (used_s - self._use_s)
        if outcome == "rate_limited":
            self._limited_at = now
            has_waited = slot.holder is not None
            self._paces.note_rate_limited(slot.source, slot.entered_at, self._settings, now, has_waited=has_waited)
            return is_waited_for
        is_ok = outcome == "ok"
        if is_ok:
            self._throttle.note_ok(slot.entered_at, now)
        else:
            self._throttle.note_failure(slot.entered_at, now)
        self._paces.note_accepted(slot.source, slot.entered_at, self._settings, self._queue.length, now, is_ok=is_ok)
        return is_waited_for

    def note_hint(self, hint: RateHint, sent_at: float, now: float, source: str = "") -> None:
        """Notes rate-limit headers of the response to a request that was sent at `sent_at`."""
        if self._settings.pacing:
            pace = self._paces.of_known(source)
            pace.note_hint(hint, self._queue.length, self._in_flight, sent_at, now)

    def note_retry_after(self, until: float, now: float, source: str = "") -> None:
        """Notes a Retry-After on the call that ended last: it begins a hold, if it applies to all calls."""
        self._paces.of_known(source).note_retry_after(until, self._exited_at, now)
        self._paces.join_if_limited(now)

    def pause_until(self, until: float) -> None:
        """Lets no call pass before that instant, and then one as a probe: the provider requested it (Retry-After)."""
        self._paces.free.hold(until, self._exited_at)

    def end_hold(self, now: float) -> None:
        """Ends a hold early after a successful light probe: from now on one call may go first."""
        self._paces.end_holds(now)

    def reset_pace(self, now: float) -> None:
        """Forgets the rate of any source, a hold, and the probe after it: an operator's reset."""
        self._paces.reset(now)

    def reset_throttle(self, now: float) -> None:
        """Forgets what was learned about failures and load: an operator's reset."""
        self._throttle.reset(now)

    def ramp(self, now: float, seconds: float) -> None:
        """Begins a slow start of at most `seconds`, after the breaker has closed."""
        self._throttle.reset(now)  # a limit found during an outage is not the provider's
        self._limiter.ramp(now, seconds, self._in_flight)

    def end_ramp(self, now: float) -> None:
        self._limiter.ramp(now, 0.0, self._in_flight)

    def snapshot(self, now: float) -> GateSnapshot:
        shown, limited_callers = self._paces.shown()
        seen = shown.snapshot(now)
        pace = seen.pacer
        return GateSnapshot(
            limit=self._limiter.limit(now),
            in_flight=self._in_flight,
            waiting=self._queue.counts(),
            rate=pace.rate,
            held_until=seen.held_until,
            rate_cause=pace.cause,
            rate_since=pace.since,
            held_since=seen.held_since,
            is_probing=seen.is_probing,
            throttle=self._throttle.snapshot(now),
            limited_callers=limited_callers,
            share=self._limiter.share,
        )

    def _advance_selected(self, now: float) -> float | None:
        """Does what `dispatch` does where waiting calls keep to different paces."""
        next_at = inf
        for is_apart in (False, True):
            next_at = min(next_at, self._advance_pace(is_apart, now))
        return None if next_at == inf else next_at

    def _advance_pace(self, is_apart: bool, now: float) -> float:
        """Lets in the waiting calls of one pace; returns the instant at which to call again."""
        queue, paces = self._queue, self._paces
        only = paces.only(is_apart=is_apart)
        pace = paces.apart.pace if is_apart and paces.apart is not None else paces.free
        newest_first = self._throttle.is_throttling
        while queue.has_selected(only, newest_first=newest_first):
            opens_at = self._opens_at(pace, now)
            if opens_at > now:
                return opens_at
            ticket = queue.take_selected(only, self._scarce_slots(now), newest_first=newest_first, now=now)
            self._let_in(ticket, now)
        return inf

    def _let_in(self, ticket: Ticket, now: float) -> None:
        ticket.slot = self._grant(self._paces.of_known(ticket.source), ticket.source, now)
        ticket.slot.holder = self._queue.hold(ticket.priority, ticket.caller.name, now)
        ticket.notify()

    def _opens_at(self, pace: Pace, now: float) -> float:
        """Returns the instant from which the next call may pass; in the past: now; inf: once a call in flight has
        ended."""
        at = self._limiter.opens_at(self._in_flight, now)
        if at > now:
            return at
        if self._throttle.rate is not None and pace.hold_opens_at() <= now:
            at = self._throttle.opens_at(now)
        return at if at > now else pace.opens_at(now)

    def _scarce_slots(self, now: float) -> int | None:
        """Returns the number of slots, if calls wait for one; None: they wait for something else, such as the pace."""
        limit = self._limiter.limit(now) if self._queue.length else None
        return limit if limit is not None and self._in_flight + 1 >= limit else None

    def _grant(self, pace: Pace, source: str, now: float) -> Slot:
        self._in_flight += 1
        pace.take(self._settings, self._queue.length, now)
        if self._throttle.rate is not None:
            self._throttle.take(now)
        return Slot(now, source=source)

    def _has_place(self, priority: int, caller: Caller) -> bool:
        return self._queue.length < self._settings.max_queue or self._displaced_by(priority, caller) is not None

    def _displaced_by(self, priority: int, caller: Caller) -> Ticket | None:
        places, newest_first = self._settings.max_queue, self._throttle.is_throttling
        return self._queue.displaced_by(priority, caller, places, newest_first=newest_first)

    def _limit_wait_s(self, ahead: int, now: float) -> float:
        wait_s = self._turnover_s(ahead, self._limiter.expected_limit(now))
        ramp_until = self._limiter.snapshot(now).ramp_until
        if ramp_until is None:
            return wait_s
        # A ramp grows and ends: its first slots are not all that there will be.
        return min(wait_s, ramp_until - now + self._turnover_s(ahead, self._limiter.expected_limit(ramp_until)))

    def _turnover_s(self, ahead: int, limit: float | None) -> float:
        """Estimates the wait by Little's law: `limit` slots are returned once per mean use."""
        if limit is None or self._in_flight + ahead < int(limit):
            return 0.0
        return (self._in_flight + ahead - limit + 1) * (self._use_s or _GUESSED_USE_S) / limit


class Paces:
    """The paces of one gate."""

    __slots__ = ("_late_s", "_refused", "apart", "free")

    def __init__(self, now: float, late_s: float = 0.0) -> None:
        """`late_s`: see `Pace`."""
        self._late_s = late_s
        self.free = Pace(now, late_s)
        """The pace of all callers that are not apart."""
        self.apart: ThrottledCallers | None = None
        self._refused = BoundedMap[str, None](MOST_CALLERS)
        """Callers at `free` that were refused and not accepted since; once a limit has begun, all that were refused."""

    def of(self, caller: str, now: float) -> Pace:
        """Returns the pace of a new call. Separates a caller that was not refused from those that were."""
        apart = self.apart
        if apart is not None and apart.has(caller):
            return apart.pace
        if self._refused and caller not in self._refused and self.free.is_limited:
            self._part(now)
        return self.free

    def of_known(self, caller: str) -> Pace:
        """Returns the pace of a call that waits or has gone."""
        apart = self.apart
        return apart.pace if apart is not None and apart.has(caller) else self.free

    def forecast_of(self, caller: str) -> Pace | None:
        """Returns the pace that `of` would find; None: a fresh one. Read-only."""
        pace = self.of_known(caller)
        parts = pace is self.free and self._refused and caller not in self._refused and pace.is_limited
        return None if parts else pace

    def note_rate_limited(
        self, caller: str, entered_at: float, settings: CapacitySettings, now: float, *, has_waited: bool
    ) -> None:
        """Notes a 429 for a caller's call that entered at `entered_at`; `has_waited`: not at once."""
        pace, apart = self.of_known(caller), self.apart
        pace.note_rate_limited(entered_at, settings, now, has_waited=has_waited)
        if apart is not None and pace is apart.pace:
            apart.note_refused(caller, entered_at, now)
            return
        self._refused[caller] = None
        self._refused.move_to_end(caller)
        if apart is not None:
            apart.note_other_refused()
            if apart.has_all:
                self._refused.clear()
                self.free = Pace(now, self._late_s)
        self.join_if_limited(now)

    def note_accepted(
        self, caller: str, entered_at: float, settings: CapacitySettings, waiting: int, now: float, *, is_ok: bool
    ) -> None:
        """Notes any other response than a 429 to a caller's call; `is_ok`: the call succeeded."""
        apart = self.apart
        if apart is None or not apart.has(caller):
            self.free.note_accepted(entered_at, settings, waiting, now, is_ok=is_ok)
            if apart is not None:
                apart.note_other_accepted()
            if self._refused and not self.free.is_limited:
                self._refused.pop(caller, None)
            return
        apart.pace.note_accepted(entered_at, settings, waiting, now, is_ok=is_ok)
        if apart.note_accepted(caller, entered_at):
            apart.leave(caller)
            if not self.free.is_limited:
                self.free.open_for_backlog(settings, waiting, now)
        if apart.is_over(now):
            self.apart = None

    def join_if_limited(self, now: float) -> None:
        """Adds the callers of the other pace to those apart once 429s limit that pace too."""
        apart = self.apart
        if apart is not None and self._refused and self.free.is_limited:
            apart.join(list(self._refused))
            self._refused.clear()
            self.free = Pace(now, self._late_s)

    def reset(self, now: float) -> None:
        """Forgets what was learned from 429s: an operator's reset."""
        self.apart = None
        self._refused.clear()
        self.free.reset(now)

    def begin_at(self, state: PaceSnapshot, gateways: int, callers: Sequence[str], now: float) -> None:
        """Continues with an equal part, for one of `gateways`, of a pace that was learned elsewhere, in addition to the
        rate that there is. `callers`: those that it applies to; none: it applies to all."""
        if callers and self.apart is None:
            self.apart = ThrottledCallers(Pace(now, self._late_s), list(callers), now)
        pace = self.free if self.apart is None or not callers else self.apart.pace
        pace.begin_at(state, gateways, now)

    def release(self, now: float) -> None:
        """Forgets rates but keeps holds: pacing is off."""
        self.free.release(now)
        if self.apart is not None:
            self.apart.pace.release(now)

    def end_holds(self, now: float) -> None:
        self.free.end_hold(now)
        if self.apart is not None:
            self.apart.pace.end_hold(now)

    def shown(self) -> tuple[Pace, tuple[str, ...] | None]:
        """Returns the pace that is limited, and the callers that keep to it; None: all do."""
        if self.apart is None or self.free.is_limited:
            return self.free, None
        return self.apart.pace, None if self.apart.has_all else self.apart.callers

    def only(self, *, is_apart: bool) -> SourceFilter:
        """Selects the waiting calls of one pace."""
        apart = self.apart
        if apart is not None and apart.has_all:
            return SourceFilter((), is_among=not is_apart)
        return SourceFilter(() if apart is None else apart.callers, is_among=is_apart)

    def beside(self, caller: str) -> SourceFilter | None:
        """Selects the waiting calls that keep to the same pace as this caller's; None: all do."""
        apart = self.apart
        return None if apart is None else self.only(is_apart=apart.has(caller))

    def _part(self, now: float) -> None:
        refused = list(self._refused)
        self._refused.clear()
        if self.apart is None:
            self.apart = ThrottledCallers(self.free, refused, now)
        else:
            self.apart.join(refused)
        self.free = Pace(now, self._late_s)
