"""Growth of a learned rate while calls wait for it.

Contains the recovery after a cut, slow start, and the doubling after a limit is gone. The cuts and the phases are in
`resilience.capacity.learned_rate`.
"""

from __future__ import annotations

from math import inf, log, log2

CUT = 0.9
"""A cut sets the rate to this share of what the provider accepted."""
PROBE_RATE = 1.0
"""Calls a second of probes while nothing is accepted, and at the beginning of a slow start."""

_MOST_RATE = 1e6
_SLOW_START_DOUBLE_S = 0.5
_LN2 = log(2)

# The rate is back at its value before a cut after two seconds of waiting calls, or after 28 calls if it is below
# 14 a second: a provider at its limit then answers fewer than 5 % of them with 429.
_RECOVER_S = 2.0
_CUBIC = (1 - CUT) / _RECOVER_S**3
_FULL_SPEED_RATE = 14.0
_FULL_SPEED_RATE_BELOW_PROBE = 30.0
_EARLY_S = 1.0
# The ceiling of a slow start is above the rate at which calls come: there the rate stays for a while, and then doubles
# no faster than once in so many calls, so that a provider which accepts little more refuses few.
_RECOVERED_AT_CEILING_S = 1.25
_CALLS_TO_DOUBLE = 20
# At one call a second these would be minutes, in which new calls find no place.
_MOST_AT_CEILING_S = 30.0
_MOST_TO_DOUBLE_S = 10.0

# Calls that wait this long without any 429 show that the limit is gone: the rate begins to double, and has doubled
# after two seconds. Each time that this was wrong, the next attempt takes four times as long.
_DOUBLE_AFTER_S = 1.3
_DOUBLE_S = 0.7
_MOST_DOUBLE_AFTER_S = 8.0
_BACKOFF = 4

_PART_DOUBLES_S = 300.0


class RateGrowth:
    """Growth over the time in which calls wait; a rate that no call waits for does not grow.

    After a cut, as in CUBIC (RFC 9438; botocore's adaptive mode): the rate is back at its target within
    `_RECOVER_S`, stays there for as long and then grows ever faster.
    """

    __slots__ = (
        "_calls_at_ceiling",
        "_double_after_s",
        "_early_s",
        "_most",
        "_part",
        "_part_since",
        "_recovered_s",
        "_target",
        "_without_429_s",
        "ceiling",
        "counted_until",
    )

    def __init__(self, late_s: float = 0.0) -> None:
        """`late_s`: see `resilience.capacity.learned_rate.CutEpoch`."""
        self._early_s = _EARLY_S + late_s
        self.counted_until = -inf
        """The instant up to which waiting has been counted."""
        self.ceiling = _MOST_RATE
        """The rate at which a slow start ends."""
        self._calls_at_ceiling = 0
        self._target = 0.0
        self._recovered_s = 0.0
        """Seconds since the rate was cut; grows more slowly than time at low rates."""
        self._without_429_s = 0.0
        self._double_after_s = _DOUBLE_AFTER_S
        self._part: float | None = None
        self._part_since = -inf
        self._most = _MOST_RATE
        """The rate does not grow above this."""

    @property
    def is_part(self) -> bool:
        """True if it began at a part of a rate that several have together."""
        return self._part is not None

    @property
    def is_early(self) -> bool:
        """True if the rate is still clearly below its target."""
        return self._recovered_s < self._early_s

    def begin_slow_start(self, now: float) -> None:
        self.counted_until = now
        self.ceiling = _MOST_RATE

    def begin_recovery(self, target: float, now: float) -> None:
        """Begins the recovery to `target` after a cut."""
        self.counted_until = now
        self.recover_to(target)

    def recover_to(self, target: float) -> None:
        """Like `begin_recovery`, but waiting that was counted ahead stays counted."""
        self._target = target
        self._recovered_s = 0.0

    def limit_slow_start(self, ceiling: float, calls: int) -> None:
        """Sets the ceiling of a slow start; at the ceiling, at least so many calls go before the rate may double."""
        self.ceiling = min(_MOST_RATE, max(PROBE_RATE, ceiling))
        self._calls_at_ceiling = calls

    def begin_at(self, rate: float, now: float, *, is_part: bool) -> None:
        """Begins the growth from a rate that was right a moment ago: it doubles late. `is_part`: others use the rest of
        the limit, so that waiting calls without a 429 show nothing. Then it grows by a tenth in half a minute at
        most."""
        self._target = rate
        self._double_after_s = _MOST_DOUBLE_AFTER_S
        self._part, self._part_since = (rate if is_part else None), now
        self._most = rate if is_part else _MOST_RATE

    def end_slow_start(self, rate: float) -> None:
        """Begins the growth from a rate at the ceiling. It is more than callers need, so it doubles late."""
        self._target = rate
        self._without_429_s = 0.0
        self._recovered_s = _RECOVERED_AT_CEILING_S
        self._double_after_s = max(_MOST_DOUBLE_AFTER_S, min(_MOST_AT_CEILING_S, self._calls_at_ceiling / rate))

    def note_rate_limited(self, *, is_due_to_rate: bool) -> None:
        """Notes a 429. `is_due_to_rate` False: a part of the calls is refused at any rate."""
        if not is_due_to_rate:
            self.forget_wrong_doublings()
        elif self._without_429_s > self._double_after_s:
            self._double_after_s = min(_MOST_DOUBLE_AFTER_S, _BACKOFF * self._double_after_s)
        self._without_429_s = 0.0

    def forget_wrong_doublings(self) -> None:
        self._double_after_s = _DOUBLE_AFTER_S

    def forget(self) -> None:
        """Forgets how fast calls came and which doublings were wrong, with the rate."""
        self.forget_wrong_doublings()
        self.ceiling = self._most = _MOST_RATE
        self._part = None

    def count(self, until: float, now: float) -> float:
        """Counts the wait of a call from `now` until `until`. Returns the seconds not counted for another call."""
        waited_s = max(0.0, until - max(now, self.counted_until))
        self.counted_until = max(self.counted_until, until)
        if self._part is not None:
            self._most = self._part * (1 + (now - self._part_since) / _PART_DOUBLES_S)
        return waited_s

    def slow_start(self, rate: float, waited_s: float) -> float:
        return min(self.ceiling, self._most, rate * 2 ** (waited_s / _SLOW_START_DOUBLE_S))

    def recover(self, rate: float, waited_s: float, *, can_double: bool) -> float:
        """Returns the rate after so many more seconds in which calls waited for `rate`."""
        full_speed_rate = _FULL_SPEED_RATE if rate >= PROBE_RATE else _FULL_SPEED_RATE_BELOW_PROBE
        self._recovered_s += waited_s * min(1.0, rate / full_speed_rate)
        self._without_429_s += waited_s
        if can_double and self._without_429_s > self._double_after_s:
            double_s = _DOUBLE_S
            if rate >= self.ceiling:
                double_s = max(_DOUBLE_S, min(_MOST_TO_DOUBLE_S, _CALLS_TO_DOUBLE / rate))
            self._target = min(self._most, rate * 2 ** (waited_s / double_s))
            return self._target
        grown = self._target * (1 + _CUBIC * (self._recovered_s - _RECOVER_S) ** 3)
        return max(rate, min(self._most, grown))


def slow_start_s(calls: int, rate: float) -> float:
    """Returns the seconds until so many calls have gone in a slow start that is at `rate` now."""
    return _SLOW_START_DOUBLE_S * log2(1 + calls * _LN2 / (rate * _SLOW_START_DOUBLE_S))
