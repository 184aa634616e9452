"""Adaptive concurrency limit, learned from a deployment's overloads and from the latency of its responses.

The bounds and a configured limit are in `resilience.capacity.gate`.
"""

from __future__ import annotations

from math import inf

_FIRST_LIMIT = 20.0

# Weight of one call in the moving share of overloads.
_WEIGHT = 1 / 20
_LARGEST_CUT = 0.5
# A limit that was too high is exceeded again after this long, and twice as long each time that it is still too high.
_FIRST_RETRY_S = 5.0
_LONGEST_RETRY_S = 60.0
# Above the ceiling the limit grows by one per this many seconds.
_STEP_S = 1.0
# If the limit has fallen to this share, and overloads are still at least this share of what they were, the load is not
# what causes them. They are then ignored for a while, twice as long each time.
_FALLEN = 0.5
_LEFT = 0.6
_LEAST_CALLS = 40
_FIRST_DEAF_S = 10.0
_LONGEST_DEAF_S = 120.0

_TOLERANCE = 1.5
_SMOOTHING = 0.2
_LONG_S = 600.0
# The usual latency starts as the plain mean of the first responses.
_FIRST_ANSWERS = 100


class AdaptiveLimit:
    """Additive increase and multiplicative decrease, with a memory of where the last increase ended.

    - An overload cuts the limit by the recent share of overloads, at least 5 % and at most half. The limit from before
      becomes the ceiling: growth ends below it, and passes it by one call after 5 s, then after 10 s, and so on.
    - A response while at least half of the limit is in use raises it by one.
    - If recent responses take more than 1.5 times the usual, the limit takes a fifth of the step to gradient * limit,
      gradient = max(0.5, 1.5 * usual / recent): 10 % at most (Netflix concurrency-limits, `Gradient2Limit`).

    As TCP treats the losses of one window as one, only a call that entered after the last decrease can cause another.
    Overloads that do not become fewer with the load are random, and are ignored for a while: a lower limit would cost
    throughput and cure nothing.
    """

    __slots__ = (
        "_answered_at", "_answers", "_ceiling", "_deaf_s", "_deaf_until", "_decreased_at", "_fallen_calls",
        "_fallen_overloads", "_highest", "_limit", "_long_s", "_lowest", "_retry_at", "_retry_s", "_share", "_short_s",
        "_top", "_top_share",
    )  # fmt: skip

    def __init__(self) -> None:
        self._lowest, self._highest = 1.0, inf
        self._limit = _FIRST_LIMIT
        self._decreased_at = -inf
        self._ceiling = inf
        self._retry_at = -inf
        self._retry_s = _FIRST_RETRY_S
        self._share = 0.0
        """Moving share of overloads."""
        self._top = 0.0
        """The limit before it began to fall; 0: it is not falling."""
        self._top_share = 0.0
        """Share of overloads when the limit began to fall."""
        self._fallen_calls = self._fallen_overloads = 0
        """Calls, and overloads among them, since the limit fell to half."""
        self._deaf_s = _FIRST_DEAF_S
        self._deaf_until = -inf
        self._short_s = self._long_s = 0.0
        self._answers = 0
        self._answered_at = 0.0

    @property
    def limit(self) -> int:
        """Calls that may be in flight, >= 1, within the bounds."""
        return int(self._bounded(self._limit))

    def keep_within(self, lowest: float, highest: float) -> None:
        """Sets the bounds, in calls, lowest <= highest; the limit obeys them at once."""
        self._lowest, self._highest = lowest, highest

    def note_answer(self, entered_at: float, now: float, latency_s: float | None, in_flight: int) -> None:
        """Notes a success; `in_flight` still includes the call. `latency_s`: None if latency is not to be judged."""
        self._note_share(entered_at, False)
        gradient = 1.0 if latency_s is None else self._gradient(latency_s, now)
        if gradient < 1:
            if entered_at >= self._decreased_at:
                self._limit = self._bounded(self._limit * (1 - _SMOOTHING + _SMOOTHING * gradient))
                self._decreased_at = now
        elif in_flight * 2 >= self._limit:
            self._grow(now)

    def note_overload(self, entered_at: float, now: float, in_flight: int) -> None:
        """Notes that a call was refused because of overload, or too slow; `in_flight` still includes it."""
        self._note_share(entered_at, True)
        if now < self._deaf_until or entered_at < self._decreased_at:
            return
        if self._top and self._is_in_vain():
            self._restore(now)
            return
        self._fall(in_flight, now)

    @property
    def latencies_s(self) -> tuple[float | None, float | None]:
        """Latencies smoothed over a few responses, and over ten minutes; None before the first."""
        return (self._short_s, self._long_s) if self._answers else (None, None)

    # The law

    def _grow(self, now: float) -> None:
        if self._limit + 1 < self._ceiling:
            self._limit = self._bounded(self._limit + 1)
        elif now >= self._retry_at:
            self._limit = self._bounded(self._limit + 1)
            self._ceiling = max(self._ceiling, self._limit + 1)
            self._retry_at = now + _STEP_S
        if self._top and self._limit >= self._top:
            self._top = 0.0

    def _fall(self, in_flight: int, now: float) -> None:
        is_in_use = in_flight * 2 >= self._limit
        before = min(self._limit, max(in_flight, self._lowest)) if is_in_use else self._limit
        if before >= self._ceiling - 1:
            self._retry_s = min(_LONGEST_RETRY_S, 2 * self._retry_s)
        else:
            self._retry_s = _FIRST_RETRY_S
        if is_in_use:  # otherwise the deployment is busy with calls of others, and the limit is not what was exceeded
            self._ceiling = before
            self._retry_at = now + self._retry_s
        if not self._top:
            self._top, self._top_share = self._limit, self._share
            self._fallen_calls = self._fallen_overloads = 0
        self._top_share = max(self._top_share, self._share) if self._limit > self._top * _FALLEN else self._top_share
        self._limit = self._bounded(before * (1 - min(_LARGEST_CUT, max(_WEIGHT, self._share))))
        self._decreased_at = now

    def _is_in_vain(self) -> bool:
        """Returns whether a much lower limit has not made overloads fewer."""
        calls = self._fallen_calls
        return calls >= _LEAST_CALLS and self._fallen_overloads / calls > self._top_share * _LEFT

    def _restore(self, now: float) -> None:
        self._limit, self._top = self._bounded(self._top), 0.0
        self._ceiling = inf
        self._deaf_until = now + self._deaf_s
        self._deaf_s = min(_LONGEST_DEAF_S, 2 * self._deaf_s)

    def _note_share(self, entered_at: float, is_overload: bool) -> None:
        self._share += _WEIGHT * (is_overload - self._share)
        is_under_limit = entered_at >= self._decreased_at
        if is_under_limit and self._top and self._limit <= max(self._lowest, self._top * _FALLEN):
            self._fallen_calls += 1
            self._fallen_overloads += is_overload

    def _bounded(self, limit: float) -> float:
        return min(self._highest, max(self._lowest, limit))

    # Latency

    def _gradient(self, latency_s: float, now: float) -> float:
        """Returns the gradient, from 0.5 to 1; 1: responses take no longer than usual."""
        self._learn(latency_s, now)
        return max(0.5, min(1.0, _TOLERANCE * self._long_s / self._short_s)) if self._short_s > 0 else 1.0

    def _learn(self, latency_s: float, now: float) -> None:
        self._answers += 1
        share = 1 / self._answers if self._answers <= _FIRST_ANSWERS else 0.0
        self._short_s += max(_SMOOTHING, share) * (latency_s - self._short_s)
        # Weighted by time, not by count: a busy deployment's own overload would become the usual within seconds.
        passed = min(1.0, (now - self._answered_at) / _LONG_S)
        self._long_s += max(passed, share) * (latency_s - self._long_s)
        self._answered_at = now
        # After a long overload the usual latency must not stay high (`Gradient2Limit` does the same).
        if self._long_s > 2 * self._short_s:
            self._long_s *= 0.9
