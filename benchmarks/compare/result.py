"""Results as medians over rounds, and the promises about them.

A difference or a ratio is taken within each round, so that changes of the machine between rounds do not affect it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.compare.ways import COMPILED, DIRECT, ENVOY, GUARDED, PLAIN

CALLS_PER_S, CPU_S_PER_CALL = "calls_per_s", "cpu_s_per_call"
"""At 64 connections."""
ALONE_P50_S, ALONE_P99_S = "alone_p50_s", "alone_p99_s"
"""Latency at one connection."""
BUSY_P50_S, BUSY_P99_S = "busy_p50_s", "busy_p99_s"
"""Latency at a thousand calls a second, from the time at which a call was due."""
REST_BYTES, BYTES_PER_STREAM = "rest_bytes", "bytes_per_idle_stream"
LATENCIES = (ALONE_P50_S, ALONE_P99_S, BUSY_P50_S, BUSY_P99_S)


def cpu_s_per_chunk(streams: int) -> str:
    """Name of the figure."""
    return f"cpu_s_per_chunk_{streams}_streams"


@dataclass(frozen=True, slots=True)
class Spread:
    """Spread over rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise about the gateway."""

    text: str
    limit: float
    found: float | None
    """None: not measured, because the other target was missing or calls failed."""
    is_least: bool = False
    """True if the limit is a minimum."""
    is_within: bool = True
    """True if the limit itself still holds."""

    @property
    def holds(self) -> bool | None:
        """None: not measured."""
        if self.found is None:
            return None
        if self.found == self.limit:
            return self.is_within
        return (self.found > self.limit) == self.is_least

    @property
    def verdict(self) -> str:
        """The result in words."""
        return {True: "holds", False: "does not hold", None: "not measured"}[self.holds]


@dataclass(frozen=True, slots=True)
class Compared:
    """A finished run."""

    ways: tuple[str, ...]
    idle_streams: int
    sizes: tuple[tuple[int, float], ...]
    """Concurrent streams, and seconds between a stream's chunks."""
    versions: Mapping[str, str]
    values: Mapping[str, Mapping[str, tuple[float, ...]]]
    """For each figure and target: one value a round; nan if calls failed or the process is unknown."""
    errors: tuple[str, ...]

    def spread(self, figure: str, way: str) -> Spread | None:
        """None if it was not measured in every round."""
        return _spread(self.values.get(figure, {}).get(way, ()))

    def added(self, figure: str, way: str) -> Spread | None:
        """The difference to calls without a proxy in the same round."""
        return self._beside(figure, way, DIRECT, lambda own, direct: own - direct)

    def ratio(self, figure: str, way: str, other: str) -> Spread | None:
        """Ratio to `other` in the same round."""
        return self._beside(figure, way, other, lambda own, others: own / others)

    def _beside(self, figure: str, way: str, other: str, how: Callable[[float, float], float]) -> Spread | None:
        by_way = self.values.get(figure, {})
        # Lengths differ where a target was not measured again after a failure.
        pairs = zip(by_way.get(way, ()), by_way.get(other, ()), strict=False)
        return _spread(tuple(how(*pair) for pair in pairs))

    @property
    def judged(self) -> str:
        """The build that the promises are about: the compiled one if it was measured."""
        return COMPILED if COMPILED in self.ways else GUARDED

    @property
    def promises(self) -> tuple[Promise, ...]:
        """All promises, whether they hold or not."""
        judged = self.judged
        p50_s, idle = self.added(ALONE_P50_S, judged), self.spread(BYTES_PER_STREAM, judged)
        of_envoys, of_plain = (_median(self.ratio(CALLS_PER_S, judged, other)) for other in (ENVOY, PLAIN))
        return (
            Promise("calls a second, of Envoy's", 0.6, of_envoys, is_least=True),
            Promise("calls a second, of the plain aiohttp proxy's", 2.0, of_plain, is_least=True),
            *(
                Promise(
                    f"CPU per chunk at {streams} streams, of Envoy's", 1.2,
                    _median(self.ratio(cpu_s_per_chunk(streams), judged, ENVOY)),
                )
                for streams, _ in self.sizes
            ),
            Promise(
                "added latency at one connection, p50, in ms", 0.2, None if p50_s is None else p50_s.median * 1e3,
                is_within=False,
            ),
            Promise(
                f"kB per idle stream, at {self.idle_streams}", 40.0, None if idle is None else idle.median / 1e3,
                is_within=False,
            ),
        )  # fmt: skip

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold, and errors."""
        kept = [promise for promise in self.promises if promise.holds is False]
        return [f"{each.text}: {each.found:.3g} against {each.limit:g}" for each in kept] + list(self.errors)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which has no nan."""
        rounds = {
            figure: {way: [None if math.isnan(value) else value for value in values] for way, values in by_way.items()}
            for figure, by_way in self.values.items()
        }
        medians = {figure: {way: _plain(self.spread(figure, way)) for way in rounds[figure]} for figure in rounds}
        added = {figure: {way: _plain(self.added(figure, way)) for way in self.ways[1:]} for figure in LATENCIES}
        promises = [asdict(promise) | {"verdict": promise.verdict} for promise in self.promises]
        return {
            "ways": self.ways, "versions": dict(self.versions), "promises": promises, "errors": self.errors,
            "figures": medians, "added": added, "rounds": rounds,
        }  # fmt: skip


def _spread(values: tuple[float, ...]) -> Spread | None:
    if not values or any(math.isnan(value) for value in values):
        return None
    return Spread(statistics.median(values), min(values), max(values))


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def _plain(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)
