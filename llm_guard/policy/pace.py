"""How fast calls may go because of a provider's 429s and rate-limit headers, and holds for its Retry-After.

Joins the rate (`policy.pacer`) and the hold (`policy.hold`), and decides how calls that have waited for either return.
Does not own which callers the pace is for (`policy.apart`), nor which call goes next (`policy.line`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from llm_guard.policy.arrivals import DeniedCalls
from llm_guard.policy.capacity_settings import CapacitySettings
from llm_guard.policy.hold import Hold, RetryAfterEvidence
from llm_guard.policy.pacer import Pacer, PacerSnapshot
from llm_guard.policy.rate_hints import RateHint

# After a hold so many that wait are let go at once.
_FEW = 4
# After a hold calls go so much faster than they came: the last of them still goes within `queue_wait`.
_CATCH_UP = 1.25
# So many calls go at that rate before it may double; after a stop nothing but the answers shows what is taken.
_CALLS_AFTER_HOLD = 15
_CALLS_AFTER_STOP = 60


@dataclass(frozen=True, slots=True)
class PaceSnapshot:
    pacer: PacerSnapshot
    held_until: float | None
    """Nothing passes before this instant; None: not held."""
    held_since: float | None
    """When the hold began, or the first of a row of holds; None: neither held nor looking."""
    is_probing: bool
    """Single calls look whether the provider takes calls again."""


class Pace:
    """The rate and the hold that calls keep to. Methods take the line's length as `waiting` where it matters."""

    __slots__ = ("_denied", "_hold", "_pacer", "_retry_after")

    def __init__(self, now: float) -> None:
        self._pacer = Pacer(now)
        self._hold = Hold()
        self._denied = DeniedCalls(now)
        self._retry_after = RetryAfterEvidence()

    @property
    def is_limited(self) -> bool:
        """Whether 429s limit it: by a rate learned from them, or by a hold."""
        return self._hold.since is not None or self._pacer.is_learning

    @property
    def is_accepting(self) -> bool:
        """Whether there is a rate learned from 429s at which calls are accepted."""
        return self._hold.since is None and self._pacer.is_learning and not self._pacer.is_stopped

    def hold_opens_at(self) -> float:
        """When the hold lets the next call pass; -inf: there is no hold."""
        return -inf if self._hold.since is None else self._hold.opens_at()

    def rate_opens_at(self, now: float) -> float:
        """When the rate lets the next call pass; an instant in the past: now. Counts as demand, which may have the rate
        grow."""
        return self._pacer.opens_at(now)

    def forecast_at(self, now: float) -> float:
        """From when on the next may pass. Read-only."""
        return max(self._hold.opens_at(), self._pacer.snapshot(now).next_at)

    def wait_s(self, ahead: int, now: float) -> float:
        """Estimated seconds until `ahead` calls have gone, and one more may."""
        return max(self._hold.opens_at() - now, self._pacer.wait_s(ahead, now))

    def note_denied(self, now: float) -> None:
        """A call could not enter at once."""
        self._denied.note(now)

    def take(self, settings: CapacitySettings, waiting: int, now: float) -> None:
        """A call goes. If the hold is over with it, those that wait return slowly."""
        if (held_since := self._hold.since) is not None and self._hold.take(now):
            self._open_after_hold(now - held_since, settings, waiting, now)
        self._pacer.take(now)

    def put_back(self, entered_at: float, now: float) -> None:
        """The call that entered then did not go after all."""
        self._pacer.put_back(entered_at, now)
        self._hold.note_unused(entered_at)

    def note_unused(self, entered_at: float) -> None:
        """The client of the call that entered then left: it shows nothing."""
        self._hold.note_unused(entered_at)

    def note_rate_limited(self, entered_at: float, settings: CapacitySettings, now: float) -> None:
        """The call that entered then came back with a 429."""
        self._denied.take_back()
        self._retry_after.note_rate_limited()
        self._hold.note_rate_limited(entered_at, now)
        if settings.pacing:
            self._pacer.note_rate_limited(entered_at, now)

    def note_accepted(
        self, entered_at: float, settings: CapacitySettings, waiting: int, now: float, *, is_ok: bool
    ) -> None:  # fmt: skip
        """The call that entered then came back with anything but a 429: it may end a hold, a stop or both. `is_ok`: it
        was answered well."""
        if is_ok:
            self._retry_after.note_accepted(entered_at, now)
        held_since = self._hold.since
        if held_since is None and not settings.pacing:
            return
        opening = self._pacer.note_accepted(entered_at, now) if settings.pacing else None
        is_held_no_more = held_since is not None and self._hold.note_answer(entered_at)
        if opening is not None and (opening == "after_stop" or not is_held_no_more):
            # All calls could not enter at once, and most may have been refused without waiting.
            self._open_slowly(self._denied.per_s(now), _CALLS_AFTER_STOP, settings, waiting, now)
        elif is_held_no_more and held_since is not None:
            self._open_after_hold(now - held_since, settings, waiting, now)

    def note_hint(self, hint: RateHint, waiting: int, in_flight: int, sent_at: float, now: float) -> None:
        """The answer to a request that went at `sent_at` had these rate-limit headers."""
        self._pacer.note_hint(hint, waiting, in_flight, sent_at, now)

    def note_retry_after(self, until: float, since: float, now: float) -> None:
        """The call that came back last was refused with a hint: a hold from `since` on, if that is about all calls."""
        if self._retry_after.note_hint(until, now):
            self._hold.begin(until, since)

    def hold(self, until: float, since: float) -> None:
        self._hold.begin(until, since)

    def end_hold(self, now: float) -> None:
        self._hold.expire(now)

    def release(self, now: float) -> None:
        """Forgets the rate."""
        self._pacer.release(now)

    def reset(self, now: float) -> None:
        """Forgets the rate, a hold, and the look after it."""
        self._pacer.release(now)
        self._hold.lift()
        self._retry_after = RetryAfterEvidence()

    def open_for_backlog(self, settings: CapacitySettings, waiting: int, now: float) -> None:
        """Calls that have waited at another pace keep to this one from now on."""
        self._open_after_hold(settings.queue_wait, settings, waiting, now)

    def snapshot(self, now: float) -> PaceSnapshot:
        pacer, hold = self._pacer.snapshot(now), self._hold
        return PaceSnapshot(
            pacer,
            hold.until if now < hold.until else None,
            hold.since,
            is_probing=pacer.is_probing or hold.is_looking(now),
        )

    def _open_after_hold(self, held_s: float, settings: CapacitySettings, waiting: int, now: float) -> None:
        """Many calls that waited for the same instant must not all go at once, nor much faster than they came before
        half of them have gone."""
        queued_per_s = waiting / max(1.0, min(held_s, settings.queue_wait))
        self._open_slowly(queued_per_s, max(_CALLS_AFTER_HOLD, waiting // 2), settings, waiting, now)

    def _open_slowly(
        self, came_per_s: float, calls: int, settings: CapacitySettings, waiting: int, now: float
    ) -> None:  # fmt: skip
        if settings.pacing and waiting > _FEW:
            ceiling = inf if waiting + 1 >= settings.queue else _CATCH_UP * came_per_s
            self._pacer.open_slowly(now, ceiling, calls)
