"""Spreads the calls that return after a provider's Retry-After.

Decides when such a call may be sent again. `resilience.retry.backoff` sets how long the hint is obeyed,
`resilience.capacity.pacing` the rate for a provider that answers 429.
"""

from __future__ import annotations

from math import exp, inf

WORTH_SPREADING_S = 2.0
"""Calls that wait for a shorter hint are too few to make a surge."""

# The same as at the opening of a gate after a hold: the provider gets a quarter more calls than arrive.
_CATCH_UP = 0.25
_LEAST_PER_S = 0.5
# Time constant of the rate of refusals.
_MEMORY_S = 2.0
# Arrivals are counted over one or two stretches of this length, and again from zero after a gap longer than any hint.
_STRETCH_S = 5.0
_STALE_S = 120.0


class ReturnSchedule:
    """Schedule of returning calls: each is assigned the instant at which it may go, without a queue.

    A provider that refuses some of its requests with a Retry-After builds up a backlog: each refused call returns when
    its hint ends, at the rate at which calls were refused then. If the provider has recovered by then, the backlog
    comes on top of all new calls, exceeds the limit and gets 429s, each of which sends one more call back. So calls
    return at the rate at which calls are refused now, and slightly faster.
    """

    __slots__ = (
        "_last_at", "_last_calls", "_next_at", "_previous_at", "_previous_calls", "_refused_at", "_refused_per_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self._next_at = -inf
        """When the next call may return."""
        self._refused_at = -inf
        self._refused_per_s = 0.0
        """Refusals a second, as of `_refused_at`."""
        self._last_at = self._previous_at = -inf
        self._last_calls = self._previous_calls = 0

    def note_refusal(self, calls: int, now: float) -> None:
        """Notes that a call was refused with a hint. `calls`: all that have arrived so far."""
        self._count_arrivals(calls, now)
        self._refused_per_s = self._refused_per_s * exp((self._refused_at - now) / _MEMORY_S) + 1 / _MEMORY_S
        self._refused_at = now

    def take(self, calls: int, now: float) -> float:
        """Returns the seconds until a call may go after its hint has ended. `calls`: all that have arrived so far."""
        self._count_arrivals(calls, now)
        at = max(now, self._next_at)
        self._next_at = at + 1 / self._per_s(calls, now)
        return at - now

    def _per_s(self, calls: int, now: float) -> float:
        arrived_per_s = (calls - self._previous_calls) / max(1.0, now - self._previous_at)
        refused_per_s = self._refused_per_s * exp((self._refused_at - now) / _MEMORY_S)
        return max(_LEAST_PER_S, refused_per_s + _CATCH_UP * arrived_per_s)

    def _count_arrivals(self, calls: int, now: float) -> None:
        passed_s = now - self._last_at
        if passed_s < _STRETCH_S:
            return
        if passed_s > _STALE_S:
            self._last_at, self._last_calls = now, calls
        self._previous_at, self._previous_calls = self._last_at, self._last_calls
        self._last_at, self._last_calls = now, calls
