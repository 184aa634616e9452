"""Pace of calls to a deployment: how fast they may follow one another, so that a provider has no reason to answer 429.

Combines the rate learned from 429s (`resilience.capacity.learned_rate`), the rate that headers allow
(`resilience.capacity.header_rate`) and a hold: a wait that a provider requests of all calls (Retry-After), which a
single call ends as a probe. Calls that have waited for either return slowly. `resilience.capacity.throttled_callers`
decides which callers a pace applies to, `resilience.capacity.wait_queue` which call goes next, and
`proxy.attempts.admission` has the cap of a hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from llm_guard.resilience.capacity.arrival_rate import DeniedCalls
from llm_guard.resilience.capacity.header_rate import HeaderRate
from llm_guard.resilience.capacity.learned_rate import LearnedRate
from llm_guard.resilience.capacity.rate_limit_headers import RateHint
from llm_guard.resilience.capacity.settings import CapacitySettings
from llm_guard.resilience.throttling.gcra import Bucket

Cause = Literal["rate_limits", "headers"]


@dataclass(frozen=True, slots=True)
class PacerSnapshot:
    rate: float | None
    """Calls a second, the lower of the rates of 429s and of headers; None: no known limit."""
    next_at: float
    """Earliest instant of the next call; one in the past means now."""
    cause: Cause | None
    """Source of the rate; None: there is no rate."""
    since: float | None
    """When calls began to be paced for that cause; None: there is no rate."""
    is_probing: bool
    """True if nothing is accepted: single calls probe whether that has changed."""


class Pacer:
    """A token bucket that is filled at the lower of two rates, each of which may be unknown."""

    __slots__ = ("_bucket", "_header", "_learned")

    def __init__(self, now: float, late_s: float = 0.0) -> None:
        self._bucket = Bucket()
        self._learned = LearnedRate(self._bucket, now, late_s)
        self._header = HeaderRate(now)

    @property
    def is_learning(self) -> bool:
        """True if there is a rate that was learned from 429s."""
        return self._learned.rate is not None

    @property
    def has_rate(self) -> bool:
        """True if there is a rate, from 429s or headers."""
        return self._learned.rate is not None or self._header.rate is not None

    @property
    def is_stopped(self) -> bool:
        """True if nothing is accepted: single calls probe whether that has changed."""
        return self._learned.rate is not None and self._learned.is_stopped

    def opens_at(self, now: float) -> float:
        """Returns the earliest instant of the next call; one in the past means now. Counts as demand: the learned rate
        grows while calls wait for it."""
        learned = self._learned
        if learned.rate is None and self._header.rate is None:
            return -inf
        self._expire(now)
        learned.begin_due_opening(now)
        if self._rate() is None:
            return -inf
        at = self._bucket.opens_at()
        if at > now and self._is_learned():
            learned.grow(at, now)
        return at

    def take(self, now: float) -> None:
        """Notes that a call goes."""
        learned = self._learned
        learned.take(now)
        if learned.rate is None and self._header.rate is None:
            return
        rate = self._rate()
        if rate is not None:
            self._bucket.take(rate, now)

    def reserve(self, now: float) -> None:
        """Like `take`, but the call does not count before `note_entered`."""
        rate = self._rate()
        if rate is not None:
            self._bucket.take(rate, now)

    def note_entered(self, now: float) -> None:
        """Counts a call that goes with a reservation, or without any."""
        self._learned.take(now)

    def cancel_reservation(self, now: float) -> None:
        rate = self._rate()
        if rate is not None:
            self._bucket.put_back(rate, now)

    def put_back(self, entered_at: float, now: float) -> None:
        """Notes that the call that `take` let go at `entered_at` did not go after all."""
        self._learned.put_back(entered_at)
        self.cancel_reservation(now)

    def note_rate_limited(self, entered_at: float, now: float) -> None:
        """Notes a 429 for the call that went at `entered_at`."""
        self._learned.note_rate_limited(entered_at, now)

    def note_accepted(self, entered_at: float, now: float) -> bool:
        """Notes any other response than a 429 to the call that went at `entered_at`. Returns whether this begins a slow
        start."""
        return self._learned.note_accepted(entered_at, now)

    def open_slowly(self, now: float, ceiling: float, calls: int) -> None:
        """Begins a slow start for calls that have waited for something else and would all go at once: up to `ceiling`
        calls a second, then, after so many calls, the usual growth. Does nothing during a quota or a stop, or if a
        lower rate is already learned, unless it is in a slow start."""
        self._learned.open_slowly(now, ceiling, calls)

    def note_hint(self, hint: RateHint, waiting: int, in_flight: int, sent_at: float, now: float) -> None:
        """Notes rate-limit headers of the response to a request sent at `sent_at`, with the numbers of calls that wait
        and are in flight."""
        self._header.note(hint, waiting + in_flight, in_flight, self._learned.accepted, sent_at, now)
        self._shorten_wait(now)
        self._bucket.pause(self._header.closed_until)

    def begin_at(self, rate: float, now: float, *, is_stopped: bool, is_part: bool) -> None:
        """Continues with a rate that was learned elsewhere (`LearnedRate.begin_at`)."""
        self._learned.begin_at(rate, now, is_stopped=is_stopped, is_part=is_part)

    def note_renewal(self, until: float, now: float) -> None:
        """Notes that the latest 429s name one instant, `until`, at which their quota is renewed."""
        self._learned.known_quota.note_renewal(until, now)

    def is_at_known_quota(self, now: float) -> bool:
        """Returns whether the latest 429s came after as many accepted calls as a known quota allows."""
        return self._learned.known_quota.is_spent(now)

    def release(self, now: float) -> None:
        """Forgets both rates and the recent 429s."""
        self._learned.release(now)
        self._header.forget()

    def snapshot(self, now: float) -> PacerSnapshot:
        self._expire(now)
        rate = self._rate()
        if rate is None:
            return PacerSnapshot(None, -inf, None, None, is_probing=False)
        is_learned = self._is_learned()
        return PacerSnapshot(
            rate,
            self._bucket.opens_at(),
            "rate_limits" if is_learned else "headers",
            self._learned.since if is_learned else self._header.since,
            is_probing=is_learned and self._learned.is_stopped,
        )

    def wait_s(self, ahead: int, now: float) -> float:
        """Returns the estimated seconds until `ahead` calls have gone, and one more may."""
        self._expire(now)
        rate = self._rate()
        if rate is None:
            return 0.0
        begin_s = max(0.0, self._bucket.opens_at() - now)
        return begin_s + (self._learned.drain_s(ahead, rate) if self._is_learned() else ahead / rate)

    def _rate(self) -> float | None:
        """Returns the lower of both rates."""
        learned, header = self._learned.rate, self._header.rate
        if learned is None or header is None:
            return header if learned is None else learned
        return min(learned, header)

    def _is_learned(self) -> bool:
        """Returns whether the lower rate is the learned one."""
        learned, header = self._learned.rate, self._header.rate
        return learned is not None and (header is None or learned <= header)

    def _expire(self, now: float) -> None:
        self._learned.expire(now)
        if self._header.expire(now):
            self._shorten_wait(now)

    def _shorten_wait(self, now: float) -> None:
        """Shortens the next call's wait to that at the present rate, after the rate of headers has changed."""
        rate = self._rate()
        if rate is not None:
            self._bucket.shorten(rate, now)


LOOK_S = 5.0
"""The hold ends if the probe has not returned for this long: a refusal is fast, a success may take minutes."""

_LOOK_AGAIN_S = 1.0

# One 429 may be about one large request. If calls were accepted in spite of a hint, more 429s must agree.
_ROW = 2
_ROW_OF_CONTRADICTED = 6
_CONTRADICTED_S = 60.0
# Waits that end within this time of each other end at one instant: a Retry-After is rounded to whole seconds.
_SAME_END_S = 1.0


class RetryAfterHold:
    """No call enters before `until`. Then one call enters as a probe, and the rest wait for its result:

    - any response but a 429: the gate opens;
    - a 429 with another hint: the hold begins again (`begin`); without one, another probe goes a second later;
    - it is ignored or never used: another probe goes at once;
    - it does not return within `LOOK_S`: the gate opens.
    """

    __slots__ = ("_first_look_at", "_look_at", "_next_look_at", "since", "until")

    def __init__(self) -> None:
        self.since: float | None = None
        self.until = self._next_look_at = -inf
        self._first_look_at = self._look_at = inf

    @property
    def is_active(self) -> bool:
        """True if a wait or the probe after it is in progress."""
        return self.since is not None

    def begin(self, until: float, now: float) -> None:
        """Begins a hold. A shorter one does not cut a longer one short."""
        if self.since is None:
            self.since = now
        if until > self.until:
            self.until = self._next_look_at = until
            self._first_look_at = self._look_at = inf

    def expire(self, now: float) -> None:
        """Ends the wait, not the probe after it."""
        if now < self.until:
            self.until = self._next_look_at = now

    def lift(self) -> None:
        """Ends the wait and the probe."""
        self.since = None
        self.until = self._next_look_at = -inf
        self._first_look_at = self._look_at = inf

    def opens_at(self) -> float:
        """Returns the instant from which the next call may enter; -inf: there is no hold."""
        return self._next_look_at

    def is_looking(self, now: float) -> bool:
        """Returns whether the wait is over, but no response has shown yet that calls are accepted."""
        return self.since is not None and now >= self.until

    def take(self, now: float) -> bool:
        """Notes that a call enters during the hold, as a probe. Returns whether that ends the hold instead, because the
        previous probe was not refused in time."""
        if now >= self._look_at + LOOK_S:
            self.lift()
            return True
        self._first_look_at = min(self._first_look_at, now)
        self._look_at = now
        self._next_look_at = now + LOOK_S
        return False

    def note_answer(self, entered_at: float) -> bool:
        """Notes any other response than a 429. Returns whether that ends the hold."""
        if self.since is None or entered_at < self._first_look_at:
            return False
        self.lift()
        return True

    def note_rate_limited(self, entered_at: float, now: float) -> None:
        """Notes a 429."""
        if entered_at == self._look_at:
            self._look_at = inf
            self._next_look_at = now + _LOOK_AGAIN_S

    def note_unused(self, entered_at: float) -> None:
        """Notes that a call was never sent, or that its client disconnected: it is not evidence of anything."""
        if entered_at == self._look_at:
            self._look_at = inf
            self._next_look_at = self.until


class RetryAfterEvidence:
    """Decides whether the Retry-After of a 429 applies to all calls, or only to the refused one.

    It applies to all calls if none was accepted between two 429s. A provider may send it with each 429 while it accepts
    half of the calls: an accepted call that entered before the hint's end contradicts it, and for a minute only a row
    of six 429s counts. If as many calls were accepted as a known quota allows, one 429 is enough.
    """

    __slots__ = (
        "_contradicted_until", "_hinted_at", "_hinted_until", "_latest_at", "_latest_until", "_row", "is_renewal",
    )  # fmt: skip

    def __init__(self) -> None:
        self._row = 0
        """429s since the last accepted call."""
        self._hinted_at = self._hinted_until = self._contradicted_until = -inf
        self._latest_at = self._latest_until = -inf
        self.is_renewal = False
        """True if the two latest hints, given at different times, end at one instant: that of a quota's renewal."""

    def note_rate_limited(self) -> None:
        """Notes a 429."""
        self._row += 1

    def note_accepted(self, entered_at: float, now: float) -> None:
        """Notes a success of the call that went at `entered_at`."""
        self._row = 0
        if self._hinted_at < entered_at < self._hinted_until:
            self._contradicted_until = now + _CONTRADICTED_S

    def note_hint(self, until: float, now: float, *, fits_quota: bool = False) -> bool:
        """Notes that the latest 429 requests a wait until `until`. Returns whether that applies to all calls.
        `fits_quota`: the 429 came after as many accepted calls as a known quota allows."""
        if now >= self._hinted_until:
            self._hinted_at = now
        self._hinted_until = max(self._hinted_until, until)
        self.is_renewal = abs(until - self._latest_until) <= min(_SAME_END_S, (now - self._latest_at) / 2)
        self._latest_at, self._latest_until = now, until
        if now < self._contradicted_until:
            return self._row >= _ROW_OF_CONTRADICTED
        return fits_quota or self._row >= _ROW


# Up to this many waiting calls may all go at once after a hold.
_FEW = 4
# After a hold calls go this much faster than they came: the last of them still goes within `queue_wait`.
_CATCH_UP = 1.25
# So many calls go at that rate before it may double: meanwhile the responses show what is accepted.
_CALLS_BEFORE_DOUBLING = 60


@dataclass(frozen=True, slots=True)
class PaceSnapshot:
    pacer: PacerSnapshot
    held_until: float | None
    """No call passes before this instant; None: not held."""
    held_since: float | None
    """When the hold began, or the first of several in a row; None: neither held nor probing."""
    is_probing: bool
    """True if single calls probe whether the provider takes calls again."""


class Pace:
    """The rate and the hold that calls keep to. Methods take the wait queue's length as `waiting` where needed."""

    __slots__ = ("_denied", "_hold", "_pacer", "_retry_after")

    def __init__(self, now: float, late_s: float = 0.0) -> None:
        """`late_s`: the rate changes for calls that enter so many seconds after it was set."""
        self._pacer = Pacer(now, late_s)
        self._hold = RetryAfterHold()
        self._denied = DeniedCalls(now)
        self._retry_after = RetryAfterEvidence()

    @property
    def is_limited(self) -> bool:
        """True if 429s limit the pace: by a rate learned from them, or by a hold."""
        return self._hold.since is not None or self._pacer.is_learning

    @property
    def is_paced(self) -> bool:
        """True if a hold, or a rate from any source, limits the pace."""
        return self._hold.since is not None or self._pacer.has_rate

    @property
    def is_accepting(self) -> bool:
        """True if there is a rate learned from 429s at which calls are accepted."""
        return self._hold.since is None and self._pacer.is_learning and not self._pacer.is_stopped

    def hold_opens_at(self) -> float:
        """Returns when the hold lets the next call pass; -inf: there is no hold."""
        return -inf if self._hold.since is None else self._hold.opens_at()

    def opens_at(self, now: float) -> float:
        """Returns when the hold and the rate let the next call pass; in the past: now. Counts as demand, which could
        raise the rate, unless a hold is in the way."""
        if self._hold.since is not None and (at := self._hold.opens_at()) > now:
            return at
        return self._pacer.opens_at(now)

    def forecast_at(self, now: float) -> float:
        """Returns the instant from which the next call may pass. Read-only."""
        return max(self._hold.opens_at(), self._pacer.snapshot(now).next_at)

    def wait_s(self, ahead: int, now: float) -> float:
        """Returns the estimated seconds until `ahead` calls have gone, and one more may."""
        return max(self._hold.opens_at() - now, self._pacer.wait_s(ahead, now))

    def note_denied(self, now: float) -> None:
        """Notes that a call could not enter at once."""
        self._denied.note(now)

    def take(self, settings: CapacitySettings, waiting: int, now: float) -> None:
        """Notes that a call goes. If that ends the hold, waiting calls return slowly."""
        if self._hold.since is not None and self._hold.take(now):
            self._open_slowly(self._denied.per_s_of_hold(now), settings, waiting, now)
        self._pacer.take(now)

    def grant(self, settings: CapacitySettings, waiting: int, now: float) -> None:
        """Notes that a call of another gateway may go; that it goes is known later (`note_entered`)."""
        if self._hold.since is not None and self._hold.take(now):
            self._open_slowly(self._denied.per_s_of_hold(now), settings, waiting, now)
        self._pacer.reserve(now)

    def note_entered(self, now: float) -> None:
        """Notes that a call of another gateway goes."""
        self._pacer.note_entered(now)

    def return_grant(self, granted_at: float, now: float) -> None:
        """Notes that a grant was not used."""
        self._pacer.cancel_reservation(now)
        self._hold.note_unused(granted_at)

    def put_back(self, entered_at: float, now: float) -> None:
        """Notes that the call that entered at `entered_at` did not go after all."""
        self._pacer.put_back(entered_at, now)
        self._hold.note_unused(entered_at)

    def note_unused(self, entered_at: float) -> None:
        """Notes that the client of that call disconnected: the call is not evidence of anything."""
        self._hold.note_unused(entered_at)

    def note_rate_limited(
        self, entered_at: float, settings: CapacitySettings, now: float, *, has_waited: bool
    ) -> None:  # fmt: skip
        """Notes a 429 for the call that entered at `entered_at`; `has_waited`: not at once."""
        if has_waited:
            self._denied.take_back()
        self._retry_after.note_rate_limited()
        self._hold.note_rate_limited(entered_at, now)
        if settings.pacing:
            self._pacer.note_rate_limited(entered_at, now)

    def note_accepted(
        self, entered_at: float, settings: CapacitySettings, waiting: int, now: float, *, is_ok: bool
    ) -> None:  # fmt: skip
        """Notes any other response than a 429 to that call: it may end a hold, a stop or both. `is_ok`: the call
        succeeded."""
        if is_ok:
            self._retry_after.note_accepted(entered_at, now)
        is_held = self._hold.since is not None
        if not is_held and not settings.pacing:
            return
        has_opened = settings.pacing and self._pacer.note_accepted(entered_at, now)
        if is_held and self._hold.note_answer(entered_at):
            self._open_slowly(self._denied.per_s_of_hold(now), settings, waiting, now)
        elif has_opened:
            self._open_slowly(self._denied.per_s(now), settings, waiting, now)

    def note_hint(self, hint: RateHint, waiting: int, in_flight: int, sent_at: float, now: float) -> None:
        """Notes rate-limit headers of the response to a request that was sent at `sent_at`."""
        self._pacer.note_hint(hint, waiting, in_flight, sent_at, now)

    def note_retry_after(self, until: float, since: float, now: float) -> None:
        """Notes a Retry-After on the call that ended last: it begins a hold at `since`, if it applies to all calls."""
        evidence, pacer = self._retry_after, self._pacer
        if not evidence.note_hint(until, now, fits_quota=pacer.is_at_known_quota(now)):
            return
        self.hold(until, since)
        if evidence.is_renewal:
            pacer.note_renewal(until, now)

    def hold(self, until: float, since: float) -> None:
        if self._hold.since is None:
            self._denied.begin_hold(since)
        self._hold.begin(until, since)

    def end_hold(self, now: float) -> None:
        self._hold.expire(now)

    def begin_at(self, state: PaceSnapshot, gateways: int, now: float) -> None:
        """Continues with an equal part, for one of `gateways`, of a pace that was learned elsewhere, in addition to the
        rate that there is."""
        pacer = state.pacer
        if pacer.rate is not None and pacer.cause == "rate_limits":
            self._pacer.begin_at(pacer.rate / gateways, now, is_stopped=pacer.is_probing, is_part=gateways > 1)
        if state.held_until is not None:
            self.hold(state.held_until, now)

    def release(self, now: float) -> None:
        """Forgets the rate."""
        self._pacer.release(now)

    def reset(self, now: float) -> None:
        """Forgets the rate, a hold, and the probe after it."""
        self._pacer.release(now)
        self._hold.lift()
        self._retry_after = RetryAfterEvidence()

    def open_for_backlog(self, settings: CapacitySettings, waiting: int, now: float) -> None:
        """Lets calls that have waited at another pace return slowly at this one."""
        self._open_slowly(waiting / max(1.0, settings.queue_timeout), settings, waiting, now)

    def snapshot(self, now: float) -> PaceSnapshot:
        pacer, hold = self._pacer.snapshot(now), self._hold
        return PaceSnapshot(
            pacer,
            hold.until if now < hold.until else None,
            hold.since,
            is_probing=pacer.is_probing or hold.is_looking(now),
        )

    def _open_slowly(self, came_per_s: float, settings: CapacitySettings, waiting: int, now: float) -> None:
        """Begins a slow start: many calls that waited for the same event must not all go at once, nor much faster than
        calls come. `came_per_s`: the rate of those that came meanwhile, most of which may have been refused."""
        if settings.pacing and waiting > _FEW:
            ceiling = inf if waiting + 1 >= settings.max_queue else _CATCH_UP * came_per_s
            self._pacer.open_slowly(now, ceiling, _CALLS_BEFORE_DOUBLING)
