"""Keeps the log lines of recent calls in bounded memory.

`proxy.telemetry.access_log` writes the lines, `admin.api.calls` shows them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

CallFate = Literal["well", "failed", "turned_away", "own_doing"]
"""Class of a finished call. turned_away: it failed without an attempt, as when a breaker is open: in an outage these
are many, and operators look for the failures before them. own_doing: neither the gateway nor an upstream could have
served it."""

_SHARES: dict[CallFate, float] = {"well": 0.25, "failed": 0.375, "turned_away": 0.125, "own_doing": 0.25}
_FAILED: tuple[CallFate, ...] = ("failed", "turned_away")
_BESIDE_BYTES = 120
"""Memory per line beyond its text: CPython 3.11, 64 bits."""


@dataclass(frozen=True, slots=True)
class BufferSize:
    """The number of lines, and how many of them are of failed calls."""

    calls: int
    failed: int


class RecentCalls:
    """Keeps a ring buffer for each fate, so that a flood of refused calls displaces only other refused calls."""

    def __init__(self, calls: int = 1000, memory: int = 1 << 24) -> None:
        """Keeps at most `calls` lines of each fate; `memory` is in bytes, for all lines together."""
        self._rings: dict[CallFate, _Ring] = {fate: _Ring() for fate in _SHARES}
        self.limit(calls, memory)

    def limit(self, calls: int, memory: int) -> None:
        """Changes the limits, and drops what exceeds them, the oldest first."""
        for fate, ring in self._rings.items():
            ring.most, ring.most_bytes = calls, int(memory * _SHARES[fate])
            ring.shrink()

    def keep(self, line: bytes, ended_at: float, fate: CallFate) -> None:
        """Adds the line of a finished call; `ended_at` must not decrease."""
        ring: _Ring = self._rings[fate]  # as a C struct in the compiled build
        ring.lines.append((ended_at, line))
        ring.bytes += len(line) + _BESIDE_BYTES
        if ring.bytes > ring.most_bytes or len(ring.lines) > ring.most:
            ring.shrink()

    def newest(self) -> Iterator[bytes]:
        """Returns all lines, that of the latest call first."""
        return _newest(self._rings.values())

    def newest_failed(self) -> Iterator[bytes]:
        """Returns the lines of failed calls, that of the latest call first."""
        return _newest([self._rings[fate] for fate in _FAILED])

    def try_find(self, beginning: bytes) -> bytes | None:
        """Returns the line that begins with `beginning`, if any."""
        for ring in self._rings.values():
            for _, line in ring.lines:
                if line.startswith(beginning):
                    return line
        return None

    def snapshot(self) -> BufferSize:
        failed = sum(len(self._rings[fate].lines) for fate in _FAILED)
        return BufferSize(sum(len(ring.lines) for ring in self._rings.values()), failed)


class _Ring:
    """The latest lines of one fate, and the memory that they take."""

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
    every = sorted((kept for ring in rings for kept in ring.lines), key=_ended_at, reverse=True)
    return (line for _, line in every)


def _ended_at(kept: tuple[float, bytes]) -> float:
    return kept[0]
