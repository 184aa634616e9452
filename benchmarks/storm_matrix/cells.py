"""The cells of the storm matrix, and the provider that storms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from benchmarks.virtual import answers
from benchmarks.virtual.answers import ErrorName
from benchmarks.virtual.clients import Load
from benchmarks.virtual.provider import Answer, Request
from llm_guard.dialects import DialectName

LENGTHS_S = (5.0, 16.0, 60.0, 600.0)
RATES_PER_S = (0.5, 1.0, 2.0, 5.0, 50.0, 200.0)
ERRORS: tuple[ErrorName, ...] = ("429", "503", "529", "quota")
HINTS_S = (None, 2, 30, 86400)
"""Values of Retry-After."""
ANSWER_S = 0.2
"""Duration of a successful response."""
SLOW_ANSWER_S = 2.0

HINT_CAP_S = 60.0
"""Longest time for which the gateway has to obey a Retry-After."""
BEFORE_S = 20.0
"""Time of good service before the storm."""
GRACE_S = 10.0
"""Time from the end of the storm and of its last hint to the first call that counts."""
WINDOW_S = 60.0
"""Length of the window in which arrivals count."""

STORMY, NEIGHBOUR = "model-a", "model-b"
_ERROR_TAKES_S = 0.05
_HEADROOM = 1.5
_BURST_S = 2.0
_LEAST_BURST = 20.0

_CONFIG = """
upstreams:
  provider: {{dialect: {dialect}, base_url: "https://provider.example/{base}", api_key: sk-provider}}
models:
  model-a: {{deployments: [{{upstream: provider}}]}}
  model-b: {{deployments: [{{upstream: provider}}]}}
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One storm."""

    length_s: float
    rate_per_s: float
    error: ErrorName
    hint_s: int | None
    """Retry-After of the storm's errors; None: they have none."""
    answer_s: float = ANSWER_S
    share: float = 1.0
    """Share of the requests that fail during the storm."""

    @property
    def name(self) -> str:
        hint = "no hint" if self.hint_s is None else f"retry-after {self.hint_s}"
        slow = "" if self.answer_s == ANSWER_S else f", answers of {self.answer_s:g} s"
        part = "" if self.share == 1.0 else f", {self.share:.0%} of the requests"
        return f"{self.error}, {hint}, {self.length_s:g} s, {self.rate_per_s:g}/s{slow}{part}"

    @property
    def dialect(self) -> DialectName:
        """The dialect of providers that send this error: 529 is Anthropic's."""
        return "anthropic" if self.error == "529" else "openai"

    @property
    def config(self) -> str:
        """The gateway's config: shipped defaults."""
        return _CONFIG.format(dialect=self.dialect, base="" if self.dialect == "anthropic" else "v1")

    @property
    def has_neighbour(self) -> bool:
        """True if a second model of the same key is called too."""
        return self.error == "quota"

    @property
    def well_at(self) -> float:
        """End of the storm, in seconds from the beginning of the run."""
        return BEFORE_S + self.length_s

    @property
    def loads(self) -> list[Load]:
        """Calls until every window has ended."""
        ends_at = self.well_at + min(self.hint_s or 0.0, HINT_CAP_S) + self.answer_s + GRACE_S + WINDOW_S
        models = (STORMY, NEIGHBOUR) if self.has_neighbour else (STORMY,)
        return [Load(model, self.rate_per_s, ends_at, dialect=self.dialect) for model in models]

    @property
    def rounds(self) -> int:
        """Number of runs, with different seeds, that are counted together: at low rates 60 s have too few calls."""
        return 6 if self.rate_per_s < 1 else 3 if self.rate_per_s < 5 else 2 if self.rate_per_s < 20 else 1


def cells() -> Iterator[Cell]:
    """The matrix, then some cells with slow answers, and some with a storm that hits a part of the requests."""
    for error, hint_s, length_s, rate in product(ERRORS, HINTS_S, LENGTHS_S, RATES_PER_S):
        yield Cell(length_s, rate, error, hint_s)
    for error, hint_s, length_s, rate in product(ERRORS, (None, 30), (16.0, 60.0), (5.0, 50.0)):
        yield Cell(length_s, rate, error, hint_s, answer_s=SLOW_ANSWER_S)
    for error, hint_s, rate in product(ERRORS[:2], (None, 30), (5.0, 50.0)):
        yield Cell(60.0, rate, error, hint_s, share=0.5)
    for error, hint_s, share in product(ERRORS[:2], (None, 2, 30), (0.1, 0.3, 0.7, 0.9)):
        yield Cell(60.0, 5.0, error, hint_s, share=share)
    for hint_s, rate, share in product((None, 2), (0.5, 1.0, 2.0, 5.0, 50.0), (0.3, 0.5, 0.7, 0.9)):
        yield Cell(600.0, rate, "429", hint_s, share=share)


class StormyProvider:
    """Fails during its storm; before and after it accepts one and a half times the offered rate, and responds with 429
    beyond that."""

    def __init__(self, cell: Cell, draw: Iterator[float]) -> None:
        self._cell = cell
        self._draw = draw
        self._limits = {model: _Limit(cell.rate_per_s) for model in (STORMY, NEIGHBOUR)}
        self.last_hint_at = 0.0
        """Time of the last error of the storm."""

    def answer(self, request: Request) -> Answer:
        cell, model = self._cell, request.model
        is_hit = model == STORMY and BEFORE_S <= request.at < cell.well_at
        if is_hit and (cell.share == 1.0 or next(self._draw) < cell.share):
            self.last_hint_at = request.at + _ERROR_TAKES_S
            hint = None if cell.hint_s is None else str(cell.hint_s)
            return answers.error(cell.dialect, cell.error, model, hint, _ERROR_TAKES_S)
        if not self._limits[model].takes(request.at):
            return answers.error(cell.dialect, "429", model, None if cell.hint_s is None else "1", _ERROR_TAKES_S)
        return answers.right(cell.dialect, model, cell.answer_s)


class _Limit:
    """A token bucket, as providers limit requests."""

    def __init__(self, offered_per_s: float) -> None:
        self._rate_per_s = offered_per_s * _HEADROOM
        self._most = self._tokens = max(_LEAST_BURST, offered_per_s * _BURST_S)
        self._at = 0.0

    def takes(self, at: float) -> bool:
        self._tokens = min(self._most, self._tokens + (at - self._at) * self._rate_per_s)
        self._at = at
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
