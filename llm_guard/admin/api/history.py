"""Past traffic: the last quarter of an hour in steps of five seconds, the last day in minutes, and the last minute as a
whole.

Takes snapshots of the counters, which only grow. `admin.monitor.series_buffer` keeps the series.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct, field

from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Endpoint, EndpointGroup, answer
from llm_guard.admin.monitor import rates as tally
from llm_guard.admin.monitor.rates import NOTHING, CallTally
from llm_guard.admin.monitor.series_buffer import SavedSeries, SeriesBuffer
from llm_guard.admin.schemas.history import HistoryView
from llm_guard.clock import Clock
from llm_guard.outcome import GATEWAYS_DOING, RefusedBy
from llm_guard.proxy.telemetry.recorder import CallCounters

STEP_S = 5.0
STEPS = 180
MODELS = 24
_MINUTE_STEPS = 12
_DAY_STEP_S = 60.0
_DAY_STEPS = 1440
_DAY_MODELS = 12
_DAY_S = _DAY_STEP_S * _DAY_STEPS


Span = Literal["15m", "24h"]


class HistoryQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Selects the period."""

    span: Span = "15m"
    """15m: steps of five seconds. 24h: steps of a minute, which survive a restart."""
    deployment: str | None = None
    """Label of a deployment; its attempts are added."""


class SavedHistory(Struct, frozen=True):
    """The last day: calls by model, and attempts by deployment at the same steps."""

    calls: SavedSeries = field(default_factory=SavedSeries)
    attempts: SavedSeries = field(default_factory=SavedSeries)


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
        self._recent = SeriesBuffer(STEPS, MODELS)
        self._recent_attempts = SeriesBuffer(STEPS, MODELS)
        self._day = SeriesBuffer(_DAY_STEPS, _DAY_MODELS)
        self._day_attempts = SeriesBuffer(_DAY_STEPS, _DAY_MODELS)
        self._minute_begun = self._minute[-1]

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET", "/admin/history", "Returns the traffic of the last 15 minutes, or 24 hours.", self._give,
                query=HistoryQuery, gives=HistoryView,
            ),
        ]  # fmt: skip

    def look(self, now: float) -> None:
        """Takes a snapshot, when the next step is due."""
        before = self._minute[-1]
        if now - before.at < STEP_S:
            return
        counted = self._count(now, before)
        self._minute.append(counted)
        self._add(self._recent, self._recent_attempts, before, counted)
        if now - self._minute_begun.at >= _DAY_STEP_S:
            self._add(self._day, self._day_attempts, self._minute_begun, counted)
            self._minute_begun = counted

    def snapshot(self) -> SavedHistory:
        """Returns a copy of the last day, to be written by another thread."""
        return SavedHistory(self._day.snapshot(), self._day_attempts.snapshot())

    def restore(self, saved: SavedHistory) -> None:
        """Restores the last day as an earlier process has saved it."""
        since = self._clock.wall() - _DAY_S
        self._day.restore(saved.calls, since)
        self._day_attempts.restore(saved.attempts, since)

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

    def view(self, span: Span = "15m", deployment: str | None = None) -> HistoryView:
        step_s, calls, attempts = STEP_S, self._recent, self._recent_attempts
        if span == "24h":
            step_s, calls, attempts = _DAY_STEP_S, self._day, self._day_attempts
        series = None if deployment is None else attempts.of(deployment)
        return HistoryView(step_s, calls.at, calls.total, calls.models, series)

    async def _give(self, asked: AdminRequest) -> AdminResponse:
        return answer(self.view(asked.wants.span, asked.wants.deployment))

    def _add(self, calls: SeriesBuffer, attempts: SeriesBuffer, before: _Counted, after: _Counted) -> None:
        wall, seconds = self._clock.wall(), after.at - before.at
        calls.add(wall, _news(before.models, after.models), seconds)
        attempts.add(wall, _news(before.deployments, after.deployments), seconds)

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


def _news(before: Mapping[str, CallTally], after: Mapping[str, CallTally]) -> dict[str, CallTally]:
    """Returns what happened between two snapshots, by name; names without calls are left out."""
    return {name: now.since(then) for name, now in after.items() if now is not (then := before.get(name, NOTHING))}
