"""The lines of the calls that are over, as long as there is room for them.

Owns how many are kept, and who makes room for whom. Does not own what a line says (`gateway.call_line`), nor how it is
shown (`ops.calls`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Fate = Literal["well", "failed", "turned_away", "own_doing"]
"""turned_away: it failed, and nobody was asked, as when a breaker is open: in an outage there is a flood of these, and
what is looked for is the failures before it. own_doing: neither the gateway nor an upstream could have made a success
of it."""

_SHARES: dict[Fate, float] = {"well": 0.25, "failed": 0.375, "turned_away": 0.125, "own_doing": 0.25}
_FAILED: tuple[Fate, ...] = ("failed", "turned_away")
_BESIDE_BYTES = 120
"""What it takes to keep a line, beyond its text: CPython 3.11, 64 bits."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How many lines there are, and how many of them are of failed calls."""

    calls: int
    failed: int


class Timelines:
    """A ring for each fate: whoever floods the gateway with calls that it must refuse pushes out nothing else."""

    def __init__(self, calls: int = 1000, memory: int = 1 << 24) -> None:
        """`calls` lines of each fate at most; `memory` in bytes, for all lines together."""
        self._rings: dict[Fate, _Ring] = {fate: _Ring() for fate in _SHARES}
        self.limit(calls, memory)

    def limit(self, calls: int, memory: int) -> None:
        """From now on; what has no room any more is forgotten, the oldest first."""
        for fate, ring in self._rings.items():
            ring.most, ring.most_bytes = calls, int(memory * _SHARES[fate])
            ring.shrink()

    def keep(self, line: bytes, ended_at: float, fate: Fate) -> None:
        """A call is over. Later calls do not end earlier."""
        ring = self._rings[fate]
        ring.lines.append((ended_at, line))
        ring.bytes += len(line) + _BESIDE_BYTES
        if ring.bytes > ring.most_bytes or len(ring.lines) > ring.most:
            ring.shrink()

    def newest(self) -> Iterator[bytes]:
        """All lines, that of the latest call first."""
        return _newest(self._rings.values())

    def newest_failed(self) -> Iterator[bytes]:
        """Those of failed calls, likewise."""
        return _newest([self._rings[fate] for fate in _FAILED])

    def try_find(self, beginning: bytes) -> bytes | None:
        """The line that begins so."""
        for ring in self._rings.values():
            for _, line in ring.lines:
                if line.startswith(beginning):
                    return line
        return None

    def snapshot(self) -> Kept:
        failed = sum(len(self._rings[fate].lines) for fate in _FAILED)
        return Kept(sum(len(ring.lines) for ring in self._rings.values()), failed)


class _Ring:
    """The latest lines of one fate, and what they take."""

    __slots__ = ("bytes", "lines", "most", "most_bytes")

    def __init__(self) -> None:
        self.lines: deque[tuple[float, bytes]] = deque()
        self.bytes = 0
        self.most = self.most_bytes = 0

    def shrink(self) -> None:
        while self.lines and (self.bytes > self.most_bytes or len(self.lines) > self.most):
            _, line = self.lines.popleft()
            self.bytes -= len(line) + _BESIDE_BYTES


def _newest(rings: Iterable[_Ring]) -> Iterator[bytes]:
    every = sorted((each for ring in rings for each in ring.lines), key=_ended_at, reverse=True)
    return (line for _, line in every)


def _ended_at(kept: tuple[float, bytes]) -> float:
    return kept[0]
