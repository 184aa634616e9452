"""Concurrency limit of one deployment: a fixed number, none, or one that adapts to how the deployment copes.

Includes the ramp after an outage. The adaptive limit is in `resilience.capacity.adaptive_limit`, the wait queue in
`resilience.capacity.wait_queue`; which failures are overload is defined by `outcome.FailureKind`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from llm_guard.resilience.capacity.adaptive_limit import AdaptiveLimit
from llm_guard.resilience.capacity.settings import LimiterSettings

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
