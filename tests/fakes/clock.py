"""Clocks that move only when they are told to: one also when someone sleeps on it, one that wakes its sleepers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

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
        self.alarms: list[ManualAlarm] = []
        """Every alarm set, oldest first."""

    def now(self) -> float:
        return self._now

    def set_wall(self, by_s: float) -> None:
        """Somebody sets the wall clock: by so much it is later from now on, and the monotonic one is as before."""
        self._wall_offset_s += by_s

    def wall(self) -> float:
        return self._now + self._wall_offset_s

    def advance(self, seconds: float) -> None:
        """Moves on; fires no limit."""
        assert seconds >= 0, "time does not run backwards"
        self._now += seconds

    def ring_due(self) -> int:
        """Rings the alarms whose instant has come, in the order of their instants; how many rang."""
        due = sorted((each for each in self.alarms if each.is_due(self._now)), key=lambda each: each.at)
        for alarm in due:
            alarm.ring()
        return len(due)

    def call_at(self, at: float, act: Callable[[], None]) -> ManualAlarm:
        """Rings when a test says so."""
        alarm = ManualAlarm(at, act)
        self.alarms.append(alarm)
        return alarm

    async def sleep(self, seconds: float) -> None:
        """Notes the sleep, moves on by it at once, and lets others run once."""
        self.slept.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)

    def limit(self) -> ManualLimit:
        limit = ManualLimit(self)
        self.limits.append(limit)
        return limit


@dataclass
class ManualAlarm:
    """A call to come, at `at`."""

    at: float
    act: Callable[[], None]
    is_cancelled: bool = False
    has_rung: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def is_due(self, now: float) -> bool:
        return self.at <= now and not self.is_cancelled and not self.has_rung

    def ring(self) -> None:
        """Once, and not when an alarm before it has cancelled it."""
        if not self.is_cancelled and not self.has_rung:
            self.has_rung = True
            self.act()


class ManualLimit(TimeLimit):
    """A scope that ends when `fire` is called, never by itself."""

    __slots__ = ()

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock.now, clock.call_at)

    @property
    def at(self) -> float | None:
        """The instant it was last set to."""
        return self._at

    @property
    def idle_s(self) -> float | None:
        """The longest silence it was last set to; None when it has none."""
        return self._idle_s

    @property
    def stalls_at(self) -> float:
        """The instant at which it ends without progress; infinity when it has no stall limit."""
        return self._stall_at

    @property
    def touched_at(self) -> float:
        return self._touched_at

    def fire(self, name: str | None = None) -> None:
        """The deadline passes now: the body is cancelled, TimeoutError leaves the scope.

        `name` replaces the limit's name.
        """
        if name is not None:
            self.name = name
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_soon(self._end)

    def _arm(self, at: float) -> None:
        """No timer."""


class SteppedClock(ManualClock):
    """One on which sleepers sleep, and limits end, as soon as `pass_s` comes by their instants."""

    async def pass_s(self, seconds: float) -> None:
        """Moves on, from one instant at which something is due to the next, and lets everybody run at each."""
        until = self._now + seconds
        await let_run()
        while due := [each for each in self.alarms if each.is_due(until)]:
            self._now = max(self._now, min(each.at for each in due))
            self.ring_due()
            self.alarms = [each for each in self.alarms if not each.is_cancelled and not each.has_rung]
            await let_run()
        self._now = until

    async def sleep(self, seconds: float) -> None:
        """Returns when the clock was moved on so far; a sleep of 0 lets others run once."""
        self.slept.append(seconds)
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        is_over = asyncio.Event()
        alarm = self.call_at(self._now + seconds, is_over.set)
        try:
            await is_over.wait()
        finally:
            alarm.cancel()

    def limit(self) -> ManualLimit:
        limit = SteppedLimit(self)
        self.limits.append(limit)
        return limit


class SteppedLimit(ManualLimit):
    """A scope that ends when its clock comes by its instant."""

    __slots__ = ()

    def _arm(self, at: float) -> None:
        TimeLimit._arm(self, at)


async def let_run(turns: int = 20) -> None:
    """Lets everybody run until they wait for something else; a call through the whole gateway takes fewer turns."""
    for _ in range(turns):
        await asyncio.sleep(0)
