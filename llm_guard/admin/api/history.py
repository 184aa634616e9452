"""Recent traffic: the last quarter of an hour in steps of five seconds, and the last minute as a whole.

Keeps snapshots of the counters, which only grow. Memory is bounded, however many models there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Endpoint, EndpointGroup, answer
from llm_guard.admin.monitor import rates as tally
from llm_guard.admin.monitor.rates import NOTHING, CallTally
from llm_guard.admin.schemas.history import HistoryView, Series
from llm_guard.clock import Clock
from llm_guard.outcome import GATEWAYS_DOING, RefusedBy
from llm_guard.proxy.telemetry.counters import CallCounters

STEP_S = 5.0
STEPS = 180
MODELS = 24
OTHERS = "(others)"

_MINUTE_STEPS = 12
_FADING = 0.98
"""Factor by which a model's calls lose weight at each step, when the busiest models are chosen."""

_Point = tuple[float | None, float | None, float | None, float | None, float | None, float | None]
_SILENCE: _Point = (0.0, None, None, None, None, None)
_UNKNOWN: _Point = (None, None, None, None, None, None)


@dataclass(frozen=True, slots=True)
class LastMinuteCounts:
    """Counts of one name in the last minute."""

    tally: CallTally
    seconds: float
    """Seconds covered: 60 to 65, and less just after the start."""

    @property
    def calls_per_second(self) -> float:
        return self.tally.calls / self.seconds


@dataclass(frozen=True, slots=True)
class _Counted:
    """Snapshot of all counters."""

    at: float
    models: Mapping[str, CallTally]
    deployments: Mapping[str, CallTally]


class HistoryApi(EndpointGroup):
    """Takes snapshots of the counters in `look`, and answers queries about them."""

    def __init__(self, counters: CallCounters, clock: Clock) -> None:
        self._counters = counters
        self._clock = clock
        self._minute: deque[_Counted] = deque([_Counted(clock.now(), {}, {})], maxlen=_MINUTE_STEPS + 1)
        self._ends: deque[float] = deque(maxlen=STEPS)
        self._total = _Line()
        self._lines: dict[str, _Line] = {}
        self._others: _Line | None = None
        """Sum over models that have no line of their own; None: there never were any."""

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET", "/admin/history", "Returns the traffic of the last 15 minutes.", self._give,
                gives=HistoryView,
            ),
        ]  # fmt: skip

    def look(self, now: float) -> None:
        """Takes a snapshot, when the next step is due."""
        before = self._minute[-1]
        if now - before.at < STEP_S:
            return
        counted = self._count(now, before)
        self._minute.append(counted)
        self._step(before, counted)

    def model(self, name: str) -> LastMinuteCounts:
        """Returns the last minute's calls of a model."""
        then, counts = self._minute[0], self._counters.models.get(name)
        now = tally.of_model(counts) if counts is not None else NOTHING
        return self.lately(now.since(then.models.get(name, NOTHING)))

    def deployment(self, label: str) -> LastMinuteCounts:
        """Returns the last minute's attempts on a deployment."""
        then, counts = self._minute[0], self._counters.deployments.get(label)
        now = tally.of_deployment(counts) if counts is not None else NOTHING
        return self.lately(now.since(then.deployments.get(label, NOTHING)))

    def lately(self, news: CallTally) -> LastMinuteCounts:
        """Relates counts to the seconds of the last minute."""
        return LastMinuteCounts(news, max(STEP_S, self._clock.now() - self._minute[0].at))

    def refusals(self, name: str) -> tuple[int, dict[str, int]]:
        """Returns a model's calls in the last minute, and how many of them the gateway refused, by reason. Costs a
        fraction of `model`."""
        then, counts = self._minute[0].models.get(name, NOTHING), self._counters.models.get(name)
        if counts is None:
            return 0, {}
        before = then.refused or (0,) * len(GATEWAYS_DOING)
        found = {by: counts.refusals.get(by, 0) - was for by, was in zip(GATEWAYS_DOING, before, strict=True)}
        return sum(counts.calls.values()) - then.calls, {by: count for by, count in found.items() if count}

    def refused_since(self, name: str, by: RefusedBy) -> float:
        """Returns when the last snapshot before the model's first refusal of the last minute was taken."""
        place, marks = GATEWAYS_DOING.index(by), list(self._minute)
        counts = [counted.models.get(name, NOTHING).refused or (0,) * len(GATEWAYS_DOING) for counted in marks]
        return max(mark.at for mark, count in zip(marks, counts, strict=True) if count[place] == counts[0][place])

    def view(self) -> HistoryView:
        lines = {name: line.series(len(self._ends)) for name, line in self._lines.items()}
        if self._others is not None:
            lines[OTHERS] = self._others.series(len(self._ends))
        return HistoryView(STEP_S, list(self._ends), self._total.series(len(self._ends)), lines)

    async def _give(self, _asked: AdminRequest) -> AdminResponse:
        return answer(self.view())

    def _count(self, now: float, before: _Counted) -> _Counted:
        """Takes a snapshot. Unchanged tallies are reused, so that idle models cost nothing."""
        models, deployments = self._counters.models, self._counters.deployments
        return _Counted(
            now,
            {name: tally.of_model(counts, before.models.get(name, NOTHING)) for name, counts in models.items()},
            {
                name: tally.of_deployment(counts, before.deployments.get(name, NOTHING))
                for name, counts in deployments.items()
            },
        )

    def _step(self, before: _Counted, after: _Counted) -> None:
        seconds = after.at - before.at
        self._ends.append(round(self._clock.wall(), 3))
        news = {
            name: now.since(then)
            for name, now in after.models.items()
            if now is not (then := before.models.get(name, NOTHING))
        }
        self._total.add(tally.total(news.values()), seconds)
        self._make_room(news)
        for name, line in self._lines.items():
            line.add(news.get(name, NOTHING), seconds)
        others = [counts for name, counts in news.items() if name not in self._lines]
        if others and self._others is None:
            self._others = _Line()
        if self._others is not None:
            self._others.add(tally.total(others), seconds)

    def _make_room(self, news: Mapping[str, CallTally]) -> None:
        """Gives each model a line while there are few, and then the busiest; the others are summed in one line."""

        def weight(name: str) -> float:
            return self._lines[name].weight + news.get(name, NOTHING).calls

        for name in sorted(news.keys() - self._lines.keys(), key=lambda new_name: (-news[new_name].calls, new_name)):
            if len(self._lines) >= MODELS:
                idlest = min(self._lines, key=weight)
                if weight(idlest) >= news[name].calls:
                    break
                del self._lines[idlest]
            self._lines[name] = _Line()


class _Line:
    """Steps of one name."""

    __slots__ = ("_points", "weight")

    def __init__(self) -> None:
        self._points: deque[_Point] = deque(maxlen=STEPS)
        self.weight = 0.0
        """Recent calls, with exponential decay."""

    def add(self, news: CallTally, seconds: float) -> None:
        self.weight = self.weight * _FADING + news.calls
        self._points.append(_point(news, seconds) if news.calls else _SILENCE)

    def series(self, length: int) -> Series:
        """Returns the series, with null for the steps before the line's first."""
        points = [*[_UNKNOWN] * (length - len(self._points)), *self._points]
        return Series(*(list(values) for values in zip(*points, strict=True))) if points else _EMPTY


_EMPTY = Series([], [], [], [], [], [])


def _point(news: CallTally, seconds: float) -> _Point:
    durations, first_tokens = news.durations, news.first_tokens
    return (
        round(news.calls / seconds, 3),
        _rounded(news.success_rate),
        _rounded(tally.quantile(tally.DURATION_BOUNDS, durations, 0.5)),
        _rounded(tally.quantile(tally.DURATION_BOUNDS, durations, 0.95)),
        _rounded(tally.quantile(tally.FIRST_TOKEN_BOUNDS, first_tokens, 0.5)),
        _rounded(tally.quantile(tally.FIRST_TOKEN_BOUNDS, first_tokens, 0.95)),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
