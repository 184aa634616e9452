"""Pacing: how fast calls may follow one another, so that a provider has no reason to answer 429.

Combines the rate learned from 429s (`resilience.capacity.learned_rate`) and the rate that headers allow
(`resilience.capacity.header_rate`). `resilience.capacity.gate` decides which call goes next.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from llm_guard.resilience.capacity.header_rate import HeaderRate
from llm_guard.resilience.capacity.learned_rate import LearnedRate
from llm_guard.resilience.capacity.rate_limit_headers import RateHint
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
