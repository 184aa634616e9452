"""How providers fail: functions of time, of the request and of random draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from benchmarks.virtual import answers
from benchmarks.virtual.provider import Answer, Request

ANSWER_S = 0.2
"""Duration of a successful response."""
ERROR_S = 0.05
SLOW_ERROR_S = 2.0

_BURST_S = 0.05
_LEAST_BURST = 2.0
_PLACES = 10


class Regime(Protocol):
    """A provider's behaviour for a period of time."""

    def error_s(self, request: Request, draw: Random) -> float | None:
        """Seconds until a request fails; None: it succeeds."""


@dataclass(frozen=True, slots=True)
class RandomFailures:
    """Every request fails with the same probability."""

    share: float

    def error_s(self, _request: Request, draw: Random) -> float | None:
        return ERROR_S if draw.random() < self.share else None


@dataclass(slots=True)
class Overload:
    """Serves `capacity_per_s`, and fails the excess."""

    capacity_per_s: float
    failure_s: float = ERROR_S
    _tokens: float = field(default=0.0, repr=False)
    _at: float = field(default=0.0, repr=False)

    def error_s(self, request: Request, _draw: Random) -> float | None:
        most = max(_LEAST_BURST, self.capacity_per_s * _BURST_S)
        self._tokens = min(most, self._tokens + (request.at - self._at) * self.capacity_per_s)
        self._at = request.at
        if self._tokens < 1:
            return self.failure_s
        self._tokens -= 1
        return None


@dataclass(frozen=True, slots=True)
class BadShard:
    """Some calls always fail, whenever they are sent; the others never."""

    share: float

    def error_s(self, request: Request, _draw: Random) -> float | None:
        return ERROR_S if self.has(request.call) else None

    def has(self, call: int) -> bool:
        # A multiple of the golden ratio spreads the calls of the shard evenly.
        return call * 0.6180339887 % 1.0 < self.share


@dataclass(frozen=True, slots=True)
class Down:
    """Every request fails."""

    def error_s(self, _request: Request, _draw: Random) -> float | None:
        return ERROR_S


WELL = RandomFailures(0.0)
DOWN = Down()


@dataclass
class Course:
    """A provider that goes through regimes, each with its start in seconds. Other origins never fail."""

    regimes: Sequence[tuple[float, Regime]]
    origin: str = "provider.example"
    seed: int = 7
    _draw: Random = field(init=False)

    def __post_init__(self) -> None:
        self._draw = Random(f"provider {self.seed}")

    def answer(self, request: Request) -> Answer:
        failure_s = None
        if request.model == "model-a" and self.origin in request.origin:
            failure_s = self._now(request.at).error_s(request, self._draw)
        if failure_s is None:
            return answers.right("openai", request.model, ANSWER_S)
        return answers.error("openai", "503", request.model, None, failure_s)

    def _now(self, at: float) -> Regime:
        regime: Regime = WELL
        for since, each in self.regimes:
            if since <= at:
                regime = each
        return regime
