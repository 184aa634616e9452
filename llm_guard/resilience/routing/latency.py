"""Latency of a deployment: quantiles of its recent exchanges, and one cost to compare deployments by.

Decisions from it are made in `resilience.retry.hedging`, `resilience.routing.load_balancing` and
`resilience.retry.deadline`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from math import ceil, exp, inf

CAPACITY = 512
WINDOW_S = 300.0
ENOUGH = 20
"""Least number of exchanges for a quantile to mean anything."""

DECAY_S = 10.0
"""Time constant of `PeakEwma`, as in finagle's balancer."""
FORGOTTEN_S = 30.0
"""After this long without a result a deployment counts as unknown: its cost has decayed to a twentieth, and would
attract all calls at once before the first response corrects it."""
PENALTY = 10.0
"""Factor by which a failure counts as longer than the usual response."""

# A product such as 0.95 * 20 may end slightly above the whole number that it is.
_HAIR = 1e-9


@dataclass(frozen=True, slots=True)
class LatencySnapshot:
    """Quantiles in seconds; None: too few exchanges, or so many were cut that the quantile is unknown."""

    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    count: int
    """Exchanges in the window, including those that were cut."""
    cut: int


class Latency:
    """Durations of a deployment's last 512 exchanges within five minutes: to the end, or to the first token.

    An exchange that was cut while unfinished (a timeout, the loser of a hedge) counts as longer than all that finished:
    without it the sample would only have survivors, and the quantiles of a deployment that hangs would fall. One that
    was cut before the median means nothing (the twin of a hedged call that was served at once) and is left out.
    """

    __slots__ = ("_finished", "_recent", "_unsorted", "longest_s")

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque()
        """Time and duration of each exchange, infinite for a cut one. Oldest first."""
        self._unsorted = 0
        """Number of the newest entries that are not sorted in yet: that is done when a quantile is read."""
        self._finished: list[float] = []
        """Finite durations of all other entries, sorted."""
        self.longest_s = 0.0
        """The longest finished exchange so far; it does not age."""

    @property
    def has_history(self) -> bool:
        """True if there may be enough exchanges for a quantile."""
        return len(self._recent) >= ENOUGH

    def note(self, duration_s: float, now: float) -> None:
        """Notes an exchange that ended by itself."""
        self._recent.append((now, duration_s))
        self._unsorted += 1
        if duration_s > self.longest_s:
            self.longest_s = duration_s
        if len(self._recent) > CAPACITY:
            self._drop_oldest()

    def note_cut(self, at_least_s: float, now: float) -> None:
        """Notes an exchange that was cut, unfinished, after `at_least_s`."""
        self._look(now)
        finished = self._finished
        if finished and at_least_s < finished[len(finished) // 2]:
            return
        self._recent.append((now, inf))
        if len(self._recent) > CAPACITY:
            self._drop_oldest()

    def quantile(self, q: float, now: float) -> float | None:
        """Returns the seconds within which a share `q`, in (0, 1], of the exchanges ended: the nearest rank, not
        interpolated.

        Infinite if it falls among those that were cut; None below 20 exchanges.
        """
        self._look(now)
        count = len(self._recent)
        if count < ENOUGH:
            return None
        rank = ceil(q * count - _HAIR) - 1
        return self._finished[rank] if rank < len(self._finished) else inf

    def snapshot(self, now: float) -> LatencySnapshot:
        p50_s, p95_s, p99_s = (known(self.quantile(q, now)) for q in (0.5, 0.95, 0.99))
        count = len(self._recent)
        return LatencySnapshot(p50_s, p95_s, p99_s, count, count - len(self._finished))

    def _look(self, now: float) -> None:
        """Drops entries that are too old, and sorts in new ones."""
        recent = self._recent
        while recent and recent[0][0] <= now - WINDOW_S:
            self._drop_oldest()
        while self._unsorted:
            _, duration_s = recent[-self._unsorted]
            self._unsorted -= 1
            insort(self._finished, duration_s)

    def _drop_oldest(self) -> None:
        _, duration_s = self._recent.popleft()
        if self._unsorted > len(self._recent):
            self._unsorted -= 1
        elif duration_s < inf:
            del self._finished[bisect_left(self._finished, duration_s)]


@dataclass(frozen=True, slots=True)
class PeakEwmaSnapshot:
    """Seconds; None: unknown."""

    cost_s: float | None
    usual_s: float | None
    """Mean of successes alone."""


class PeakEwma:
    """A mean latency that rises at once and falls slowly (after finagle's `PeakEwma`, decay 10 s).

    It decays while there are no results, so that a slow deployment is tried again; reading it changes nothing. A
    failure costs as much as a response ten times as long as usual: an error of 5 ms must not look fast. The penalty is
    relative, so that if all fail now and then the slow one still looks slow.
    """

    __slots__ = ("_answered_at", "_heard_at", "_peak_s", "_usual_s")

    def __init__(self) -> None:
        self._peak_s = 0.0
        self._heard_at = -inf
        self._usual_s = 0.0
        self._answered_at = -inf

    def note(self, duration_s: float, now: float) -> None:
        """Notes a success."""
        kept = _kept(now - self._answered_at)
        self._usual_s = self._usual_s * kept + duration_s * (1 - kept)
        if self._answered_at != self._heard_at:
            kept = _kept(now - self._heard_at)
        self._answered_at = now
        self._follow(duration_s, kept, now)

    def note_failure(self, duration_s: float, now: float) -> None:
        """Notes a failure after `duration_s`, a timeout included; it counts as at least 10 s until a first success."""
        self._follow(max(duration_s, PENALTY * (self._usual_s or 1.0)), _kept(now - self._heard_at), now)

    def note_cut(self, at_least_s: float, now: float) -> None:
        """Notes an exchange that was cut through no fault of its own, and would have taken longer: it can only raise
        the cost."""
        kept = _kept(now - self._heard_at)
        if at_least_s > self._peak_s * kept:
            self._follow(at_least_s, kept, now)

    def cost_s(self, now: float) -> float | None:
        """Returns a pessimistic estimate of a response's duration in seconds; None: no result for 30 s."""
        silent_s = now - self._heard_at
        return None if silent_s > FORGOTTEN_S else self._peak_s * _kept(silent_s)

    def snapshot(self, now: float) -> PeakEwmaSnapshot:
        return PeakEwmaSnapshot(self.cost_s(now), self._usual_s if self._answered_at > -inf else None)

    def _follow(self, duration_s: float, kept: float, now: float) -> None:
        rises = duration_s > self._peak_s
        self._peak_s = duration_s if rises else self._peak_s * kept + duration_s * (1 - kept)
        self._heard_at = now


def known(quantile_s: float | None) -> float | None:
    """Returns the quantile if it is known and finite, else None."""
    return None if quantile_s is None or quantile_s == inf else quantile_s


def _kept(passed_s: float) -> float:
    """Returns the share of an old value that is left; 0 if there was none (`passed_s` infinite)."""
    return exp(-passed_s / DECAY_S)
