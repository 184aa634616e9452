"""How many calls one deployment may have in flight: a fixed number, none, or one that follows how it copes.

Owns the ramp after an outage. Does not own how a limit is learned (`policy.adaptive_limit`), who waits for room
(`policy.line`), nor what counts as overload (`outcome.FailureKind`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from llm_guard.policy.adaptive_limit import AdaptiveLimit
from llm_guard.policy.units import Concurrency, Count, OptionalSeconds

Ending = Literal["ok", "overloaded", "rate_limited", "failed", "ignored"]
"""How the use of a slot ended; `ignored`: the client left, which is evidence of nothing."""

RAMP_START = 4
"""Calls in flight with which a ramp begins at least: as many as TCP sends at first (RFC 3390). From 2 it takes another
round trip until a provider that has just come back is busy, and all clients that wait for it are served later."""
RAMP_SHARE = 1 / 2
"""Share of the calls usually in flight with which a ramp begins. With answers of 2 s a ramp takes seconds to reach the
number that carries the load: from 2, at 200 calls/s, 16 s. The more calls wait meanwhile, the more go at once in the
end, beyond the rate that the provider takes: from a quarter 5 % of them met a 429, from half none."""

# Memory of how many calls are usually in flight. A pause, such as an outage, counts as a second.
_USUAL_S = 10.0
_LONGEST_PAUSE_S = 1.0


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
    """A number of calls in flight that is configured, or learned (`policy.adaptive_limit`), and the ramp after an
    outage. `settings` may be replaced at any moment."""

    __slots__ = (
        "_adaptive", "_ramp", "_ramp_began_at", "_ramp_until", "_succeeded_at", "_usual_in_flight", "settings",
    )  # fmt: skip

    def __init__(self, settings: LimiterSettings) -> None:
        self.settings = settings
        self._adaptive = AdaptiveLimit()
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
        """Limits the calls in flight for `seconds`: to half of the usual number, two at least, and one more for
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
        adaptive = self._bounded_adaptive()
        if ending == "overloaded" or (ending in ("ok", "failed") and self._is_slow(latency_s)):
            adaptive.note_overload(entered_at, now, in_flight)
        elif ending == "ok":
            adaptive.note_answer(entered_at, now, None if self.settings.slow is not None else latency_s, in_flight)

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
        return self._bounded_adaptive().limit if concurrency == "adaptive" else concurrency

    def _bounded_adaptive(self) -> AdaptiveLimit:
        settings = self.settings
        self._adaptive.keep_within(min(settings.min_concurrency, settings.max_concurrency), settings.max_concurrency)
        return self._adaptive

    def _is_slow(self, latency_s: float | None) -> bool:
        return self.settings.slow is not None and latency_s is not None and latency_s > self.settings.slow
