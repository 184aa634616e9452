"""A model that fails at random, with a fallback to another model: how often does the other one answer?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from random import Random
from typing import Any

from benchmarks.storm_matrix.measure import percentile
from benchmarks.virtual import answers
from benchmarks.virtual.answers import ErrorName
from benchmarks.virtual.clients import Load
from benchmarks.virtual.provider import Answer, Request
from benchmarks.virtual.world import play
from llm_guard.dialects import DialectName

PROMISED_BY_FALLBACK = 0.05
PROMISED_SERVED = 0.99
PROMISED_P99_S = 4.0

FAILING_SHARE = 0.1
RATES_PER_S = (5.0, 20.0, 50.0)
ANSWER_S = 0.5
SECONDS = 300.0

_WANTED, _CHEAP = "good", "cheap"
_ERROR_TAKES_S = 0.05
_CONFIG = """
upstreams:
  provider: {{dialect: {dialect}, base_url: "https://provider.example/{base}", api_key: sk-provider}}
models:
  good: {{deployments: [{{upstream: provider}}], fallbacks: [cheap]}}
  cheap: {{deployments: [{{upstream: provider}}]}}
"""


@dataclass(frozen=True, slots=True)
class Flaw:
    """An error that the wanted model answers at random."""

    error: ErrorName
    hint_s: int | None
    rate_per_s: float

    @property
    def dialect(self) -> DialectName:
        """The dialect of providers that send this error: 529 is Anthropic's."""
        return "anthropic" if self.error == "529" else "openai"

    @property
    def name(self) -> str:
        hint = "no hint" if self.hint_s is None else f"retry-after {self.hint_s}"
        return f"{FAILING_SHARE:.0%} {self.error}, {hint}, {self.rate_per_s:g}/s"


@dataclass(frozen=True, slots=True)
class Substitution:
    """One measurement."""

    flaw: Flaw
    calls: int
    served: float
    """Share of calls served by either model."""
    by_fallback: float
    """Share of calls answered by the other model."""
    p99_s: float
    requests_per_call: float

    @property
    def in_words(self) -> str:
        return (
            f"served {self.served:.2%} of {self.calls}, {self.by_fallback:.1%} by the fallback, "
            f"p99 {self.p99_s:.1f} s, {self.requests_per_call:.2f} requests a call"
        )

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        found = []
        if self.by_fallback > PROMISED_BY_FALLBACK:
            found.append(f"{self.flaw.name}: {self.by_fallback:.1%} answered by the fallback")
        if self.served < PROMISED_SERVED:
            found.append(f"{self.flaw.name}: {self.served:.2%} served")
        if self.p99_s > PROMISED_P99_S:
            found.append(f"{self.flaw.name}: p99 {self.p99_s:.1f} s")
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.flaw),
            "calls": self.calls,
            "served": round(self.served, 4),
            "by_fallback": round(self.by_fallback, 4),
            "p99_s": round(self.p99_s, 3),
            "requests_per_call": round(self.requests_per_call, 3),
        }


def flaws() -> Iterator[Flaw]:
    """Every error, hint and rate that is measured."""
    errors: tuple[ErrorName, ...] = ("429", "529", "503")
    for error, hint_s, rate in product(errors, (1, None), RATES_PER_S):
        yield Flaw(error, hint_s, rate)


def measure(flaw: Flaw, seed: int = 7) -> Substitution:
    """Plays five minutes of calls."""
    config = _CONFIG.format(dialect=flaw.dialect, base="" if flaw.dialect == "anthropic" else "v1")
    load = Load(_WANTED, flaw.rate_per_s, SECONDS, dialect=flaw.dialect)
    played = play(config, _Flawed(flaw, Random(f"provider {seed}")), [load], seed=seed)
    served = [call for call in played.calls if call.outcome == "served"]
    count = len(played.calls)
    return Substitution(
        flaw,
        count,
        len(served) / count,
        sum(call.deployment.endswith(_CHEAP) for call in served) / count,
        percentile([call.took_s for call in played.calls], 0.99) or 0.0,
        len(played.requests) / count,
    )


class _Flawed:
    """Fails some requests for the wanted model, independently of each other."""

    def __init__(self, flaw: Flaw, random: Random) -> None:
        self._flaw = flaw
        self._random = random

    def answer(self, request: Request) -> Answer:
        flaw, model = self._flaw, request.model
        if model == _WANTED and self._random.random() < FAILING_SHARE:
            hint = None if flaw.hint_s is None else str(flaw.hint_s)
            return answers.error(flaw.dialect, flaw.error, model, hint, _ERROR_TAKES_S)
        return answers.right(flaw.dialect, model, ANSWER_S)
