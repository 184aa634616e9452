"""Measures one cell of the storm matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from benchmarks.storm_matrix.cells import (
    BEFORE_S,
    GRACE_S,
    HINT_CAP_S,
    NEIGHBOUR,
    STORMY,
    WINDOW_S,
    Cell,
    StormyProvider,
)
from benchmarks.virtual.clients import ClientCall
from benchmarks.virtual.world import Played, play

PROMISED_SERVED = 0.95
PROMISED_REFUSED = 0.05
"""Maximum share of the requests after the storm that are answered with 429."""
PROMISED_NEIGHBOUR = 0.99

_REASON_CHARS = 60


@dataclass(slots=True)
class Storm:
    """One cell, measured: counts over its rounds."""

    cell: Cell
    calls: int = 0
    """Calls that arrived in the window after the storm."""
    served: int = 0
    storm_calls: int = 0
    """Calls to the stormy model during the storm."""
    storm_requests: int = 0
    """Requests for the stormy model that reached the provider during the storm."""
    after_requests: int = 0
    """Requests for the stormy model since the end of the storm."""
    after_refused: int = 0
    """Requests of `after_requests` that were answered with 429."""
    neighbour_calls: int = 0
    """Calls to the other model during the storm and after it."""
    neighbour_served: int = 0
    latencies_s: list[float] = field(default_factory=list)
    """Latencies of the calls served in the window."""
    lost_to: Counter[str] = field(default_factory=Counter)
    """Outcomes of the calls in the window that were not served."""

    @property
    def served_share(self) -> float:
        return self.served / self.calls if self.calls else 1.0

    @property
    def requests_per_call(self) -> float:
        """Requests that reached the provider during the storm, per call."""
        return self.storm_requests / self.storm_calls if self.storm_calls else 0.0

    @property
    def refused_share(self) -> float:
        return self.after_refused / self.after_requests if self.after_requests else 0.0

    @property
    def neighbour_share(self) -> float | None:
        """Share of the other model's calls that were served; None without another model."""
        return self.neighbour_served / self.neighbour_calls if self.neighbour_calls else None

    @property
    def p99_s(self) -> float | None:
        """99th percentile of `latencies_s`; None without any."""
        return percentile(self.latencies_s, 0.99)

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        found = []
        if self.served_share < PROMISED_SERVED:
            found.append(f"{self.cell.name}: {self.served_share:.1%} served after it")
        if self.refused_share > PROMISED_REFUSED:
            found.append(f"{self.cell.name}: {self.refused_share:.1%} of the requests after it answered 429")
        if self.neighbour_share is not None and self.neighbour_share < PROMISED_NEIGHBOUR:
            found.append(f"{self.cell.name}: {self.neighbour_share:.1%} of the other model's calls served")
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.cell),
            "calls": self.calls,
            "served": round(self.served_share, 4),
            "p99_s": None if self.p99_s is None else round(self.p99_s, 3),
            "requests_per_storm_call": round(self.requests_per_call, 4),
            "refused_after": round(self.refused_share, 4),
            "neighbour_served": None if self.neighbour_share is None else round(self.neighbour_share, 4),
            "lost_to": dict(self.lost_to.most_common(3)),
        }


def measure(cell: Cell, seed: int = 7) -> Storm:
    """Plays all rounds of a cell."""
    storm = Storm(cell)
    for turn in range(cell.rounds):
        draw = Random(f"provider {seed} {turn}")
        provider = StormyProvider(cell, iter(draw.random, 2.0))
        played = play(cell.config, provider, cell.loads, seed=seed + turn)
        count(storm, played, window_of(cell, provider.last_hint_at))
    return storm


def window_of(cell: Cell, last_hint_at: float) -> tuple[float, float]:
    """Begin and end of the arrivals that count, in seconds from the beginning of the run."""
    begins_at = max(cell.well_at, last_hint_at + min(cell.hint_s or 0.0, HINT_CAP_S)) + GRACE_S
    return begins_at, begins_at + WINDOW_S


def count(storm: Storm, played: Played, window: tuple[float, float]) -> None:
    """Adds one round."""
    cell = storm.cell
    stormy = [call for call in played.calls if call.model == STORMY]
    counted = list(_between(stormy, *window))
    served = [call for call in counted if call.outcome == "served"]
    storm.calls += len(counted)
    storm.served += len(served)
    storm.latencies_s += [call.took_s for call in served]
    storm.lost_to.update(reason(call) for call in counted if call.outcome != "served")
    storm.storm_calls += sum(1 for _ in _between(stormy, BEFORE_S, cell.well_at))
    requests = [request for request in played.requests if request.model == STORMY]
    storm.storm_requests += sum(BEFORE_S <= each.at < cell.well_at for each in requests)
    after = [request for request in requests if request.at >= cell.well_at]
    storm.after_requests += len(after)
    storm.after_refused += sum(request.status == 429 for request in after)
    others = [call for call in played.calls if call.model == NEIGHBOUR and call.arrived_at >= BEFORE_S]
    storm.neighbour_calls += len(others)
    storm.neighbour_served += sum(call.outcome == "served" for call in others)


def reason(call: ClientCall) -> str:
    """The error that a call got, without the figures in it."""
    text = call.code.partition('"message":')[2].strip(' "') or call.code
    words = ["#" if any(map(str.isdigit, word)) else word for word in text.split()]
    return f"{call.outcome} {call.status or ''}: {' '.join(words)}"[:_REASON_CHARS]


def percentile(values: list[float], share: float) -> float | None:
    """The smallest value that at least `share` of all do not exceed; None without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def _between(calls: Iterable[ClientCall], begins_at: float, ends_at: float) -> Iterator[ClientCall]:
    return (call for call in calls if begins_at <= call.arrived_at < ends_at)
