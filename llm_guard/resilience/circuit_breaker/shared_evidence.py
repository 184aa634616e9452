"""Evidence of several gateways about one deployment.

Each gateway publishes a `BreakerSummary` and adds up those of the others with its own: `PooledRun` and `PooledWindow`
stand for the run of failures and the window of one gateway that has made all their calls. Openings as such are not
shared: one gateway with trouble of its own would take the deployment away from all others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

from llm_guard.resilience.circuit_breaker.caller_evidence import NO_CALLERS, CallersSummary, lone_callers
from llm_guard.resilience.circuit_breaker.history import BreakerState

MOST_AGES = 16
"""A summary has the ages of at most so many calls of a kind."""

_YOUNG_S = 1.0
# Memories of the two averages, in calls, as those of one gateway (`failure_statistics`).
_MEMORIES = (20, 100)
_NEGLIGIBLE = 1e-4
"""A share of failed calls that no rule would notice."""
NO_FAILURES = (0.0, 0.0)
"""The parts of both averages where they are negligible. Compared by identity, once a call."""


@dataclass(frozen=True, slots=True)
class BreakerSummary:
    """One gateway's evidence about a deployment. Times are ages in seconds, as clocks of several machines differ."""

    state: BreakerState
    calls: int
    failures: int
    slow_calls: int
    """These three within the window."""
    window_s: float
    """Age of the oldest call in the window; 0: it is empty."""
    counted: int
    """Failures in a row of calls that were sent after every call that succeeded."""
    first_sent_s: float
    """Age of the first of these calls. Meaningless while there is none, as are the next two."""
    latest_sent_s: tuple[float, ...]
    """Ages of the latest of them, the newest first; at most `MOST_AGES`."""
    takes_s: float
    """How long they took to fail, on average."""
    slowest_s: float
    """How long the slowest of them took."""
    ok_sent_s: float | None
    """Age of the call that succeeded and was sent last; None: none has succeeded."""
    ok_takes_s: float
    """Average duration of a success; 0: unknown."""
    rates: tuple[float, float]
    """This gateway's parts of two averages: the share of failures of all gateways, without the counted ones."""
    in_flight_s: tuple[float, ...]
    """Ages of calls in flight, at most `MOST_AGES`: a sample."""
    recovered_s: float | None
    """Time since its probes last closed the breaker; None: they never have."""
    callers: CallersSummary = NO_CALLERS

    def aged(self, by_s: float) -> BreakerSummary:
        """Returns the summary as it is after so many seconds."""
        return replace(
            self,
            window_s=self.window_s + by_s,
            first_sent_s=self.first_sent_s + by_s,
            latest_sent_s=tuple(sent_s + by_s for sent_s in self.latest_sent_s),
            ok_sent_s=None if self.ok_sent_s is None else self.ok_sent_s + by_s,
            in_flight_s=tuple(age_s + by_s for age_s in self.in_flight_s),
            recovered_s=None if self.recovered_s is None else self.recovered_s + by_s,
            callers=self.callers.aged(by_s),
        )

    def without(self, callers: Collection[str]) -> BreakerSummary:
        """Returns the summary without the failures of these callers. Of calls in the window, and of ages, the callers
        are not known: their part of the failures is."""
        gone = [one for one in self.callers.failing if one.caller in callers]
        if not gone:
            return self
        counted = max(0, self.counted - sum(one.in_run for one in gone))
        share = sum(one.failures for one in gone) / max(self.callers.failures, _NEGLIGIBLE)
        failures = min(self.failures, round(self.failures * share))
        return replace(
            self,
            calls=self.calls - failures,
            failures=self.failures - failures,
            counted=counted,
            latest_sent_s=self.latest_sent_s[:counted],
        )

    def counted_within(self, ago_s: float) -> int:
        """Returns how many of the counted failures are of calls that were sent in the last `ago_s` seconds. If these
        are more than `MOST_AGES`, but not all, only as many are known."""
        if self.counted and self.first_sent_s < ago_s:
            return self.counted
        return sum(sent_s < ago_s for sent_s in self.latest_sent_s)


def without_lone_callers(summaries: Sequence[BreakerSummary]) -> Sequence[BreakerSummary]:
    """Returns the summaries without the failures of callers that fail alone."""
    lone = lone_callers([each.callers for each in summaries])
    return [each.without(lone) for each in summaries] if lone else summaries


class SharedRate:
    """One gateway's part of the share of calls that failed lately, of the calls of all gateways together.

    Each of two moving averages gives a call less weight with every later one, at whichever gateway. A gateway knows
    only its own calls, so it lets each stand for as many as all gateways make in the same time. The parts add up to
    the average.
    """

    __slots__ = ("calls_per_own", "parts")

    def __init__(self, whole: float = 0.0, calls_per_own: float = 1.0) -> None:
        """`whole`: the share that is assumed at first."""
        self.calls_per_own = calls_per_own
        """Calls of all gateways for each of this one, at least 1."""
        self.parts = (whole / calls_per_own, whole / calls_per_own) if whole else NO_FAILURES

    def note_success(self, failures: int) -> None:
        """Notes a success, and so many failures in a row before it."""
        recent, lasting = self.parts
        if not failures and recent < _NEGLIGIBLE and lasting < _NEGLIGIBLE:
            self.parts = NO_FAILURES
            return
        self.parts = (self._after(recent, failures, _MEMORIES[0]), self._after(lasting, failures, _MEMORIES[1]))

    def _after(self, part: float, failures: int, memory: int) -> float:
        kept: float = (1 - 1 / memory) ** self.calls_per_own
        if not failures:
            return part * kept
        kept_in_run: float = kept**failures
        # Half of the calls that one of its own stands for come after it.
        return part * kept_in_run * kept + (1 - kept_in_run) / (1 - kept) / memory * sqrt(kept)


class PooledRun:
    """The run of failures since the last success anywhere, as `ConsecutiveFailures` has it for one gateway."""

    __slots__ = ("_failing", "_now", "_ok_sent_s", "_summaries", "began_at", "counted", "first_sent_at", "takes_s")

    def __init__(self, summaries: Sequence[BreakerSummary], now: float) -> None:
        self._summaries = summaries
        self._now = now
        self._ok_sent_s = min((each.ok_sent_s for each in summaries if each.ok_sent_s is not None), default=inf)
        self._failing = [each for each in summaries if each.counted_within(self._ok_sent_s)]
        self.counted = sum(each.counted_within(self._ok_sent_s) for each in self._failing)
        first, first_sent_s = None, 0.0
        for each in self._failing:
            sent_s = max(sent_s for sent_s in (each.first_sent_s, *each.latest_sent_s) if sent_s < self._ok_sent_s)
            if first is None or sent_s > first_sent_s:
                first, first_sent_s = each, sent_s
        self.first_sent_at = now - first_sent_s
        self.began_at = self.first_sent_at + (0.0 if first is None else first.takes_s)
        self.takes_s = 0.0 if first is None else max(each.takes_s for each in self._failing)

    @property
    def length(self) -> int:
        return self.counted

    @property
    def gateways(self) -> int:
        """Number of gateways with failures in this run."""
        return len(self._failing)

    def lately(self) -> float:
        """Returns the share of failures without the counted ones: the worse of both averages."""
        recent = sum(each.rates[0] for each in self._summaries)
        lasting = sum(each.rates[1] for each in self._summaries)
        return min(1.0, max(recent, lasting))

    def count_sent_by(self, at: float) -> int:
        """Returns the number of counted failures of calls sent at or before `at`."""
        within_s = self._now - at
        return self.counted - sum(each.counted_within(min(within_s, self._ok_sent_s)) for each in self._failing)

    def is_survived(self, now: float) -> bool:
        """Returns whether a call sent since the first failure is in flight for longer than the slowest failure took."""
        first_sent_s, slowest_s = now - self.first_sent_at, max((each.slowest_s for each in self._failing), default=0.0)
        return any(slowest_s < age_s <= first_sent_s for each in self._summaries for age_s in each.in_flight_s)


class PooledWindow:
    """The calls in the windows of several gateways, as `SlidingWindow` has them for one."""

    __slots__ = ("_summaries", "calls", "failures", "slow_calls")

    def __init__(self, summaries: Sequence[BreakerSummary]) -> None:
        self._summaries = summaries
        self.calls = sum(each.calls for each in summaries)
        self.failures = sum(each.failures for each in summaries)
        self.slow_calls = sum(each.slow_calls for each in summaries)

    def is_young(self, _now: float) -> bool:
        return max((each.window_s for each in self._summaries), default=0.0) < _YOUNG_S

    def calls_per_s(self, _now: float) -> float:
        return sum(each.calls / max(_YOUNG_S, each.window_s) for each in self._summaries)


def ok_takes_s(summaries: Sequence[BreakerSummary]) -> float:
    """Returns the average duration of a success where it is longest; 0: unknown."""
    return max((each.ok_takes_s for each in summaries), default=0.0)
