"""Statistics of 429s: how many of the recent calls get one, and how many get one however slowly calls go.

Counts and tests only; `resilience.capacity.pacing` acts on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

_DEVIATIONS = 3.0
# About eight calls, or two 429s at once, distinguish one share from another; over at least a second.
_TELLING_CALLS = 8
_TELLING_429S = 2
_STRETCH_S = 1.0
_STOPPED_SHARE = 0.8
_STALE_S = 60.0


_EPOCHS = 3
_HELPED_SHARE = 0.03
_HELPED_DEVIATIONS = 2.0
_TOO_FAST_SHARE = 0.6
_REFINED_OVER = 50
_KNOWN_S = 60.0
_MOST_KNOWN_S = 960.0
# If so many 429s were due and none came (chance: e^-9), the background is gone.
_DUE_429S = 9


def most_by_chance(calls: float, share: float) -> float:
    """Returns the most 429s to expect by chance if `share` of the calls gets one: mean and three Poisson standard
    deviations."""
    expected = share * calls
    return expected + _DEVIATIONS * sqrt(expected)


class ThrottleWindow:
    """Counts of the calls of the last one or two stretches, each of a second and eight calls, or of a minute.

    A 429 counts at the time its call went, not when it came back: successes may take a minute longer.
    """

    __slots__ = ("_first", "_last", "_previous", "calls", "due_at", "limited")

    def __init__(self, now: float) -> None:
        self.calls = 0
        self.limited = 0
        self.due_at = now
        self.restart(now)

    @property
    def accepted(self) -> int:
        """All calls ever that went and got no 429 so far."""
        return self.calls - self.limited

    def restart(self, now: float) -> None:
        """Begins the recent past now: earlier calls no longer count."""
        self._previous = self._last = _Mark(now, self.calls, self.limited)
        self._first: _Mark | None = None
        self.due_at = now + _STRETCH_S

    def turn(self, now: float) -> None:
        """Ends a stretch if it is long enough; to be called from `due_at` on."""
        passed_s = now - self._last.at
        if self.calls - self._last.calls < _TELLING_CALLS and passed_s < _STALE_S:
            return
        latest = _Mark(now, self.calls, self.limited)
        self._previous, self._last = (self._last if passed_s < _STALE_S else latest), latest
        self.due_at = now + _STRETCH_S
        if self._previous.limited == self.limited:
            self._first = None

    def note_limited(self, entered_at: float, now: float) -> None:
        self._shift(entered_at, 0, 1)
        if self._first is None:
            self._first = _Mark(now, self.calls, self.limited)

    def uncount(self, entered_at: float) -> None:
        """Removes a call that did not go after all."""
        self._shift(entered_at, -1, 0)
        # A mark set at the instant at which the call entered may have counted it.
        for mark in (self._previous, self._last, self._first):
            if mark is not None:
                mark.calls = min(mark.calls, self.calls)

    def is_more_than(self, share: float) -> bool:
        """Returns whether more calls got a 429 than chance explains at that share."""
        return self._is_more_since(self._previous, share)

    def is_spent(self, share: float) -> bool:
        """Returns whether nearly every call since the first 429 got one too, by more than chance: earlier calls say
        nothing about a quota that was spent then."""
        first = self._first
        return first is not None and self._is_stopped_since(first) and self._is_more_since(first, share)

    def is_telling(self) -> bool:
        """Returns whether there are enough calls or 429s to distinguish one share from another."""
        previous = self._previous
        return self.calls - previous.calls >= _TELLING_CALLS or self.limited - previous.limited >= _TELLING_429S

    def is_stopped(self) -> bool:
        """Returns whether nearly every call gets a 429."""
        return self._is_stopped_since(self._previous)

    def has_lasted(self, least_s: float, now: float) -> bool:
        """Returns whether the first 429 is at least so long ago."""
        return self._first is not None and now - self._first.at >= least_s

    def accepted_rate(self, now: float, least_s: float) -> float:
        """Returns the rate of calls that got no 429, plus one call as a margin, in calls a second."""
        return self._rate_since(self._previous, now, least_s)

    def accepted_rate_at_most(self, now: float, least_s: float) -> float:
        """Returns the same, or the rate since the first 429 if that is more: there may have been no calls before."""
        since_first = 0.0 if self._first is None else self._rate_since(self._first, now, least_s)
        return max(since_first, self.accepted_rate(now, least_s))

    def _is_stopped_since(self, mark: _Mark) -> bool:
        return self.limited - mark.limited >= _STOPPED_SHARE * (self.calls - mark.calls)

    def _is_more_since(self, mark: _Mark, share: float) -> bool:
        return self.limited - mark.limited > most_by_chance(self.calls - mark.calls, share)

    def _rate_since(self, mark: _Mark, now: float, least_s: float) -> float:
        return (self.accepted - mark.calls + mark.limited + 1) / max(least_s, now - mark.at)

    def _shift(self, entered_at: float, calls: int, limited: int) -> None:
        self.calls += calls
        self.limited += limited
        for mark in {self._previous, self._last, self._first}:
            if mark is not None and entered_at < mark.at:
                mark.calls += calls
                mark.limited += limited


class Background:
    """The share of calls that get a 429 at any rate, learned from the early calls of epochs.

    An epoch lies between two cuts; its calls are early while the rate is below that at the last 429. A provider that
    limits the rate hardly refuses those, one that answers 429 at random refuses as many as ever. If three epochs in a
    row were in vain, their share is the background: each had more than 3 % of 429s, more than the known background,
    and not clearly fewer than the epoch before. An epoch in which most calls get one says nothing: the rate is still
    far too high.

    The background is known for a minute, for longer if it proves right again, and as long as epochs confirm it.
    """

    __slots__ = (
        "_calls", "_known_s", "_known_until", "_limited", "_row", "_row_calls", "_row_limited", "_share",
        "_share_before", "_stray",
    )  # fmt: skip

    def __init__(self, stray: int = 0) -> None:
        """`stray`: so many 429s in an epoch do not show that it was in vain."""
        self._stray = stray
        self._calls = self._limited = 0
        self._row = self._row_limited = 0
        self._row_calls = 0.0
        self._share = 0.0
        self._share_before = 0.0
        self._known_s = _KNOWN_S
        self._known_until = -inf

    def share(self, now: float) -> float:
        """Returns the background share from 0 to 1; 0: none is known."""
        return self._share if now < self._known_until else 0.0

    def note_row(self, answers: int) -> None:
        """Notes so many responses in a row without a 429."""
        if self._share * answers >= _DUE_429S:
            self._share, self._known_until = 0.0, -inf

    def begin(self) -> None:
        """Begins with the first cut after a time without a pace: earlier epochs do not count."""
        self._calls = self._limited = 0
        self._share_before = 0.0
        self._begin_row()

    def note_call(self, count: int = 1) -> None:
        """Counts an early call that goes; -1: one that did not go after all."""
        self._calls += count

    def note_limited(self) -> None:
        """Counts a 429 for an early call."""
        self._limited += 1

    def is_in_vain(self, answered: float, now: float) -> bool:
        """Ends an epoch. `answered`: share (0 to 1) of its early calls that have had time to get a 429. True: three
        epochs were in vain, and the background is updated."""
        calls, limited = max(self._limited, self._calls * answered), self._limited
        as_before = self._share_before * calls
        self._calls = self._limited = 0
        self._share_before = limited / calls if calls else 0.0
        if self._share_before >= _TOO_FAST_SHARE:
            return False
        if limited <= most_by_chance(calls, self.share(now)):
            self._refine(calls, limited, now)
            self._begin_row()
            return False
        if limited <= max(self._stray, _HELPED_SHARE * calls, as_before - _HELPED_DEVIATIONS * sqrt(as_before)):
            self._begin_row()
            return False
        self._row += 1
        self._row_calls += calls
        self._row_limited += limited
        if self._row < _EPOCHS:
            return False
        self._learn(now)
        return True

    def _begin_row(self) -> None:
        self._row = self._row_limited = 0
        self._row_calls = 0.0

    def _learn(self, now: float) -> None:
        self._known_s = min(_MOST_KNOWN_S, 2 * self._known_s) if self._share else _KNOWN_S
        self._share = self._row_limited / self._row_calls
        self._known_until = now + self._known_s
        self._begin_row()

    def _refine(self, calls: float, limited: int, now: float) -> None:
        if calls and self.share(now):
            self._share += (limited - self._share * calls) / (calls + _REFINED_OVER)
            self._known_until = max(self._known_until, now + _KNOWN_S)


@dataclass(slots=True, eq=False)
class _Mark:
    at: float
    calls: int
    limited: int
