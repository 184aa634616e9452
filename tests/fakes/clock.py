"""A clock that moves only when it is told to, or when someone sleeps on it."""

from __future__ import annotations

import asyncio

from llm_guard.clock import TimeLimit


class ManualClock:
    """Has the surface of `llm_guard.clock.Clock`."""

    def __init__(self, now: float = 1000.0, wall: float = 1_800_000_000.0) -> None:
        self._now = now
        self._wall_offset_s = wall - now
        self.slept: list[float] = []
        """Every sleep asked for, in seconds."""
        self.limits: list[ManualLimit] = []
        """Every scope handed out, oldest first."""

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self._wall_offset_s

    def advance(self, seconds: float) -> None:
        """Moves on; fires no limit."""
        assert seconds >= 0, "time does not run backwards"
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        """Notes the sleep, moves on by it at once, and lets others run once."""
        self.slept.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)

    def limit(self) -> ManualLimit:
        limit = ManualLimit(self)
        self.limits.append(limit)
        return limit


class ManualLimit(TimeLimit):
    """A scope that ends when `fire` is called, never by itself."""

    __slots__ = ()

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock.now)

    @property
    def at(self) -> float | None:
        """The instant it was last set to."""
        return self._at

    @property
    def idle_s(self) -> float | None:
        """The longest silence it was last set to; None when it has none."""
        return self._idle_s

    @property
    def touched_at(self) -> float:
        return self._touched_at

    def fire(self, name: str | None = None) -> None:
        """The deadline passes now: the body is cancelled, TimeoutError leaves the scope.

        `name` replaces the limit's name.
        """
        if name is not None:
            self.name = name
        self._scope.reschedule(self._loop.time())

    def _arm(self, at: float) -> None:
        """No timer."""
