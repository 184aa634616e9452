"""Manual clocks: `ManualClock` also advances when code sleeps on it; `SteppedClock` wakes sleepers as it is
advanced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from llm_guard.clock import TimeLimit


class ManualClock:
    """Implements the interface of `llm_guard.clock.Clock`."""

    def __init__(self, now: float = 1000.0, wall: float = 1_800_000_000.0) -> None:
        self._now = now
        self._wall_offset_s = wall - now
        self.slept: list[float] = []
        """Every requested sleep, in seconds."""
        self.limits: list[ManualLimit] = []
        """Every time limit handed out, oldest first."""
        self.alarms: list[ManualAlarm] = []
        """Every alarm set, oldest first."""

    def now(self) -> float:
        return self._now

    def set_wall(self, by_s: float) -> None:
        """Shifts the wall clock by `by_s`; the monotonic clock is unaffected."""
        self._wall_offset_s += by_s

    def wall(self) -> float:
        return self._now + self._wall_offset_s

    def advance(self, seconds: float) -> None:
        """Advances the clock without firing limits."""
        assert seconds >= 0, "time does not run backwards"
        self._now += seconds

    def ring_due(self) -> int:
        """Rings the alarms that are due, in the order of their instants, and returns how many rang."""
        due = sorted((each for each in self.alarms if each.is_due(self._now)), key=lambda each: each.at)
        for alarm in due:
            alarm.ring()
        return len(due)

    def call_at(self, at: float, act: Callable[[], None]) -> ManualAlarm:
        """Registers an alarm, which rings only when the test calls for it."""
        alarm = ManualAlarm(at, act)
        self.alarms.append(alarm)
        return alarm

    async def sleep(self, seconds: float) -> None:
        """Records the sleep, advances the clock by it at once, and yields once to other tasks."""
        self.slept.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)

    def limit(self) -> ManualLimit:
        limit = ManualLimit(self)
        self.limits.append(limit)
        return limit


@dataclass
class ManualAlarm:
    """A callback scheduled for `at`."""

    at: float
    act: Callable[[], None]
    is_cancelled: bool = False
    has_rung: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def is_due(self, now: float) -> bool:
        return self.at <= now and not self.is_cancelled and not self.has_rung

    def ring(self) -> None:
        """Calls `act` once, unless an earlier alarm has cancelled it."""
        if not self.is_cancelled and not self.has_rung:
            self.has_rung = True
            self.act()


class ManualLimit(TimeLimit):
    """A time limit that ends only when `fire` is called."""

    __slots__ = ()

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock.now, clock.call_at)

    @property
    def at(self) -> float | None:
        """The instant it was last set to."""
        return self._at

    @property
    def idle_s(self) -> float | None:
        """The longest silence it was last set to; None if it has none."""
        return self._idle_s

    @property
    def stalls_at(self) -> float:
        """The instant at which it ends without progress; infinity if it has no stall limit."""
        return self._stall_at

    @property
    def touched_at(self) -> float:
        return self._touched_at

    def fire(self, name: str | None = None) -> None:
        """Makes the deadline pass now: cancels the body, and TimeoutError leaves the scope.

        `name` replaces the limit's name.
        """
        if name is not None:
            self.name = name
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_soon(self._end)

    def _arm(self, at: float) -> None:
        """Sets no timer."""


class SteppedClock(ManualClock):
    """A clock on which sleeps and limits end as soon as `pass_s` moves past their instants."""

    async def pass_s(self, seconds: float) -> None:
        """Advances the clock from one due instant to the next and lets all tasks run at each."""
        until = self._now + seconds
        await let_run()
        while due := [alarm for alarm in self.alarms if alarm.is_due(until)]:
            self._now = max(self._now, min(each.at for each in due))
            self.ring_due()
            self.alarms = [alarm for alarm in self.alarms if not alarm.is_cancelled and not alarm.has_rung]
            await let_run()
        self._now = until

    async def sleep(self, seconds: float) -> None:
        """Returns once the clock has advanced by that much; a sleep of 0 yields once to other tasks."""
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
    """A time limit that ends when its clock passes its instant."""

    __slots__ = ()

    def _arm(self, at: float) -> None:
        TimeLimit._arm(self, at)


async def let_run(turns: int = 20) -> None:
    """Lets all tasks run until they wait again; a call through the whole gateway takes fewer turns than the default."""
    for _ in range(turns):
        await asyncio.sleep(0)
