"""Records what the mock has received: the last requests, counts, and clients that left before their response."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KEPT = 1000


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request byte for byte."""

    at: float
    """Monotonic seconds."""
    method: str
    target: str
    """Path and query as they were sent."""
    raw_headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    """The body as received: a compressed one is compressed here."""
    model: str
    """The requested model with its faults; empty if the request names none."""

    def header(self, name: str) -> str | None:
        """The first header of that name."""
        wanted = name.lower().encode()
        return next((value.decode() for key, value in self.raw_headers if key.lower() == wanted), None)


@dataclass(frozen=True, slots=True)
class Departure:
    """A client closed its connection before its response was complete."""

    at: float
    """Monotonic seconds when it was noticed."""
    target: str
    model: str


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the start."""

    requests: int
    by_model: Mapping[str, int]
    by_path: Mapping[str, int]
    output_tokens: int
    """Tokens of text that were generated, also for clients that left before their response."""
    in_flight: int
    open_connections: int
    departures: tuple[Departure, ...]
    arrivals: tuple[float, ...]
    """Monotonic seconds of the latest requests, oldest first, at most `KEPT`."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "requests": self.requests,
            "by_model": dict(self.by_model),
            "by_path": dict(self.by_path),
            "output_tokens": self.output_tokens,
            "in_flight": self.in_flight,
            "open_connections": self.open_connections,
            "departures": [{"at": d.at, "target": d.target, "model": d.model} for d in self.departures],
            "arrivals": list(self.arrivals),
        }


class Log:
    """Records requests and departures."""

    def __init__(self) -> None:
        self.seen: deque[RecordedRequest] = deque(maxlen=KEPT)
        self.in_flight = 0
        self._requests = 0
        self._by_model: Counter[str] = Counter()
        self._by_path: Counter[str] = Counter()
        self._output_tokens = 0
        self._departures: deque[Departure] = deque(maxlen=KEPT)

    def arrived(self, seen: RecordedRequest) -> None:
        self.seen.append(seen)
        self._requests += 1
        self._by_model[seen.model] += 1
        self._by_path[seen.target.partition("?")[0]] += 1

    def generated(self, tokens: int) -> None:
        self._output_tokens += tokens

    def left(self, departure: Departure) -> None:
        self._departures.append(departure)

    def snapshot(self, open_connections: int) -> Stats:
        return Stats(
            requests=self._requests,
            by_model=dict(self._by_model),
            by_path=dict(self._by_path),
            output_tokens=self._output_tokens,
            in_flight=self.in_flight,
            open_connections=open_connections,
            departures=tuple(self._departures),
            arrivals=tuple(seen.at for seen in self.seen),
        )
