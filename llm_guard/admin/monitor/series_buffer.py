"""Series of traffic figures at a fixed step, of models or of deployments: the sum of all, the busiest ones, and the sum
of the others.

Memory is bounded, however many models there are. `admin.api.history` counts, and has buffers for the last quarter of an
hour and for the last day.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from msgspec import Struct

from llm_guard.admin.monitor import rates as tally
from llm_guard.admin.monitor.rates import NOTHING, CallTally
from llm_guard.admin.schemas.history import Series

OTHERS = "(others)"

_FADING = 0.98
"""Factor by which a model's calls lose weight at each step, when the busiest models are chosen."""

_Figure = float | None
Point = tuple[_Figure, _Figure, _Figure, _Figure, _Figure, _Figure]
"""One value for each list of a `Series`, in its order."""
_SILENCE: Point = (0.0, None, None, None, None, None)
_UNKNOWN: Point = (None, None, None, None, None, None)


class SavedSeries(Struct, frozen=True):
    """The content of a buffer. Lists of models may begin later than `at`."""

    at: list[float] = []
    total: list[Point] = []
    models: dict[str, list[Point]] = {}
    others: list[Point] | None = None


class SeriesBuffer:
    """The latest `steps` points of each series."""

    def __init__(self, steps: int, models: int) -> None:
        """`models`: how many have a series of their own; the others share one."""
        self._steps = steps
        self._models = models
        self._ends: deque[float] = deque(maxlen=steps)
        self._total = _Line(steps)
        self._lines: dict[str, _Line] = {}
        self._others: _Line | None = None
        """Sum over models that have no line of their own; None: there never were any."""

    def add(self, at: float, news: Mapping[str, CallTally], seconds: float) -> None:
        """Adds a point that ends `at`, in seconds since the epoch. `news`: what happened in `seconds`, by model."""
        self._ends.append(round(at, 3))
        self._total.add(tally.total(news.values()), seconds)
        self._make_room(news)
        for name, line in self._lines.items():
            line.add(news.get(name, NOTHING), seconds)
        others = [counts for name, counts in news.items() if name not in self._lines]
        if others and self._others is None:
            self._others = _Line(self._steps)
        if self._others is not None:
            self._others.add(tally.total(others), seconds)

    @property
    def at(self) -> list[float]:
        """Ends of the steps in seconds since the epoch, oldest first."""
        return list(self._ends)

    @property
    def total(self) -> Series:
        return self._total.series(len(self._ends))

    @property
    def models(self) -> dict[str, Series]:
        """The series of the busiest models; `(others)` has the sum of the rest."""
        found = {name: line.series(len(self._ends)) for name, line in self._lines.items()}
        if self._others is not None:
            found[OTHERS] = self._others.series(len(self._ends))
        return found

    def of(self, name: str) -> Series | None:
        """Returns the series of one name; None if it is not among the busiest."""
        line = self._lines.get(name)
        return None if line is None else line.series(len(self._ends))

    def snapshot(self) -> SavedSeries:
        """Returns a copy of the content, to be written by another thread."""
        return SavedSeries(
            list(self._ends),
            list(self._total.points),
            {name: list(line.points) for name, line in self._lines.items()},
            None if self._others is None else list(self._others.points),
        )

    def restore(self, saved: SavedSeries, since: float) -> None:
        """Puts the points of an earlier process that end after `since` before those of this one."""
        ends = [at for at in saved.at if at > since]
        models = {name: saved.models.get(name, []) for name in {**saved.models, **self._lines}}
        for name, earlier in models.items():
            self._lines.setdefault(name, _Line(self._steps)).begin_with(earlier[-len(ends) :] if ends else [])
        if saved.others is not None or self._others is not None:
            self._others = self._others or _Line(self._steps)
            self._others.begin_with((saved.others or [])[-len(ends) :] if ends else [])
        self._total.begin_with(saved.total[-len(ends) :] if ends else [])
        self._ends = deque([*ends, *self._ends], maxlen=self._steps)

    def _make_room(self, news: Mapping[str, CallTally]) -> None:
        """Gives each model a line while there are few, and then the busiest; the others are summed in one line."""

        def weight(name: str) -> float:
            return self._lines[name].weight + news.get(name, NOTHING).calls

        for name in sorted(news.keys() - self._lines.keys(), key=lambda new_name: (-news[new_name].calls, new_name)):
            if len(self._lines) >= self._models:
                idlest = min(self._lines, key=weight)
                if weight(idlest) >= news[name].calls:
                    break
                del self._lines[idlest]
            self._lines[name] = _Line(self._steps)


class _Line:
    """Points of one name."""

    __slots__ = ("points", "weight")

    def __init__(self, steps: int) -> None:
        self.points: deque[Point] = deque(maxlen=steps)
        self.weight = 0.0
        """Recent calls, with exponential decay."""

    def add(self, news: CallTally, seconds: float) -> None:
        self.weight = self.weight * _FADING + news.calls
        self.points.append(_point(news, seconds) if news.calls else _SILENCE)

    def begin_with(self, earlier: list[Point]) -> None:
        self.points = deque([*earlier, *self.points], maxlen=self.points.maxlen)

    def series(self, length: int) -> Series:
        """Returns the series, with null for the steps before the line's first."""
        points = [*[_UNKNOWN] * (length - len(self.points)), *self.points]
        return Series(*(list(values) for values in zip(*points, strict=True))) if points else _EMPTY


_EMPTY = Series([], [], [], [], [], [])


def _point(news: CallTally, seconds: float) -> Point:
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
