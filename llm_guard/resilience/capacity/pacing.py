"""Pace of calls to a deployment: the rate set by a provider's 429s and rate-limit headers, and holds for Retry-After.

Combines the rate (`resilience.capacity.pacer`) and the hold (`resilience.capacity.retry_after_hold`), and lets calls
that have waited for either return slowly. `resilience.capacity.throttled_callers` decides which callers the pace
applies to, `resilience.capacity.wait_queue` which call goes next.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from llm_guard.resilience.capacity.arrival_rate import DeniedCalls
from llm_guard.resilience.capacity.pacer import Pacer, PacerSnapshot
from llm_guard.resilience.capacity.rate_limit_headers import RateHint
from llm_guard.resilience.capacity.retry_after_hold import RetryAfterEvidence, RetryAfterHold
from llm_guard.resilience.capacity.settings import CapacitySettings

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
