"""How many calls one deployment may have in flight: a fixed number, none, or one that follows how it copes.

Owns the law of the limit and the ramp after an outage. Does not own who waits for room (`policy.line`), nor what
counts as overload (`outcome.FailureKind`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf
from typing import Literal

from llm_guard.policy.units import Concurrency, Count, OptionalSeconds

Ending = Literal["ok", "overloaded", "rate_limited", "failed", "ignored"]
"""How the use of a slot ended; `ignored`: the client left, which is evidence of nothing."""

RAMP_START = 2
"""Calls in flight with which a ramp begins at least."""
RAMP_SHARE = 1 / 4
"""Share of the calls usually in flight with which a ramp begins. From 2, answers of 2 s at 200 calls/s would need 16 s
to reach the 400 in flight that carry them, and the queue would overflow meanwhile."""

_FIRST_LIMIT = 20.0
_DROP = 0.9
_TOLERANCE = 1.5
_SMOOTHING = 0.2
_LONG_S = 600.0
# Memory of how many calls are usually in flight. A pause, such as an outage, counts as a second.
_USUAL_S = 10.0
_LONGEST_PAUSE_S = 1.0
# Their plain mean is the first idea of what is usual.
_FIRST_ANSWERS = 100


@dataclass(frozen=True, slots=True)
class LimiterSettings:
    """`slow` in seconds. A minimum above the maximum counts as the maximum."""

    concurrency: Concurrency = None
    """None: no limit; a number: that one; adaptive: learned, within the bounds below."""
    min_concurrency: Count = 4
    max_concurrency: Count = 1000
    slow: OptionalSeconds = None
    """An answer slower than this is a sign of overload; None: one slower than usual is."""


@dataclass(frozen=True, slots=True)
class LimiterSnapshot:
    limit: int | None
    """In force now, the ramp included; None: no limit."""
    ramp_until: float | None
    latency_s: float | None
    usual_latency_s: float | None
    """Smoothed over a few answers and over ten minutes; None before the first."""


class Limiter:
    """The adaptive law is additive increase, multiplicative decrease, with latency as one more reason to decrease.

    - An overload, or an answer slower than `slow`: limit = floor(0.9 * limit), and one more for an answer that
      finds at least half of the limit in use (Netflix concurrency-limits, `AIMDLimit`).
    - Without `slow`: when recent answers take more than 1.5 times the usual, the limit takes a fifth of the step
      to gradient * limit, gradient = max(0.5, 1.5 * usual / recent): 10 % at most (`Gradient2Limit`; its queue
      allowance is the one more of above).

    As TCP takes the losses of one window for one, only a call that entered after the last decrease can cause
    another: a burst of failures is one signal. `settings` may be replaced at any moment.
    """

    __slots__ = (
        "_answered_at", "_answers", "_decreased_at", "_limit", "_long_s", "_ramp", "_ramp_began_at", "_ramp_until",
        "_short_s", "_succeeded_at", "_usual_in_flight", "settings",
    )  # fmt: skip

    def __init__(self, settings: LimiterSettings) -> None:
        self.settings = settings
        self._limit = _FIRST_LIMIT
        self._decreased_at = -inf
        self._short_s = 0.0
        self._long_s = 0.0
        self._answers = 0
        self._answered_at = 0.0
        self._ramp = RAMP_START
        self._ramp_began_at = -inf
        self._ramp_until = -inf
        self._usual_in_flight = 0.0
        self._succeeded_at = -inf

    def limit(self, now: float) -> int | None:
        """Calls that may be in flight, >= 1; None: no limit."""
        own = self._own_limit()
        if now >= self._ramp_until:
            return own
        return self._ramp if own is None else min(own, self._ramp)

    def opens_at(self, in_flight: int, now: float) -> float:
        """From when on one more may enter: an instant in the past, the end of a ramp, or inf: when one leaves."""
        if self.settings.concurrency is not None:
            own = self._own_limit()
            if own is not None and in_flight >= own:
                return inf
        return self._ramp_until if now < self._ramp_until and in_flight >= self._ramp else -inf

    def ramp(self, now: float, seconds: float, in_flight: int) -> None:
        """Limits the calls in flight for `seconds`: to a quarter of the usual number, two at least, and one more for
        every success. That doubles once per round trip (RFC 5681, slow start), so that a deployment that has just come
        back is not knocked over. The `in_flight` calls from before do not count: they may hang until they time out."""
        self._ramp = in_flight + max(RAMP_START, int(self._usual_in_flight * RAMP_SHARE))
        self._ramp_began_at = now
        self._ramp_until = now + seconds

    def note(self, ending: Ending, entered_at: float, now: float, latency_s: float | None, in_flight: int) -> None:
        """A call ended that entered at `entered_at`; `in_flight` still counts it."""
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
        if ending == "overloaded" or (ending in ("ok", "failed") and self._is_slow(latency_s)):
            self._decrease(float(floor(self._limit * _DROP)), entered_at, now)
        elif ending == "ok":
            gradient = 1.0 if latency_s is None else self._gradient(latency_s, now)
            if gradient < 1:
                self._decrease(self._limit * (1 - _SMOOTHING + _SMOOTHING * gradient), entered_at, now)
            elif in_flight * 2 >= self._limit:
                self._limit = self._bounded(self._limit + 1)

    def snapshot(self, now: float) -> LimiterSnapshot:
        has_answers = self._answers > 0
        return LimiterSnapshot(
            limit=self.limit(now),
            ramp_until=self._ramp_until if now < self._ramp_until else None,
            latency_s=self._short_s if has_answers else None,
            usual_latency_s=self._long_s if has_answers else None,
        )

    def _own_limit(self) -> int | None:
        concurrency = self.settings.concurrency
        return int(self._bounded(self._limit)) if concurrency == "adaptive" else concurrency

    def _bounded(self, limit: float) -> float:
        return min(self.settings.max_concurrency, max(self.settings.min_concurrency, limit))

    def _is_slow(self, latency_s: float | None) -> bool:
        return self.settings.slow is not None and latency_s is not None and latency_s > self.settings.slow

    def _decrease(self, limit: float, entered_at: float, now: float) -> None:
        if entered_at >= self._decreased_at:
            self._limit = self._bounded(limit)
            self._decreased_at = now

    def _gradient(self, latency_s: float, now: float) -> float:
        """From 0.5 to 1; 1: answers take no longer than usual, or `slow` says what slow is."""
        if self.settings.slow is not None:
            return 1.0
        self._learn(latency_s, now)
        return max(0.5, min(1.0, _TOLERANCE * self._long_s / self._short_s)) if self._short_s > 0 else 1.0

    def _learn(self, latency_s: float, now: float) -> None:
        self._answers += 1
        share = 1 / self._answers if self._answers <= _FIRST_ANSWERS else 0.0
        self._short_s += max(_SMOOTHING, share) * (latency_s - self._short_s)
        # By time, not by count: a busy deployment would get used to its own overload within seconds.
        passed = min(1.0, (now - self._answered_at) / _LONG_S)
        self._long_s += max(passed, share) * (latency_s - self._long_s)
        self._answered_at = now
        # After a long overload the usual must not stay high (`Gradient2Limit` does the same).
        if self._long_s > 2 * self._short_s:
            self._long_s *= 0.9
