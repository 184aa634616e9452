"""Monotonic and wall time, sleeping, timers and time limits. No other module reads the time or sleeps."""

from __future__ import annotations

import asyncio
import time
from asyncio import get_running_loop
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from time import monotonic
from types import TracebackType
from typing import Protocol, Self

_UNSEEN_S = 1.0
"""For this long after progress, chunks are not inspected. A stall is found that much later, but never too early."""
_UNSEEN_SHARE = 0.05
"""Upper bound of that time, as a share of the stall limit."""


class Clock(Protocol):
    """The interface to time; tests use a manual clock."""

    def now(self) -> float:
        """Returns monotonic seconds."""

    def wall(self) -> float:
        """Returns seconds since the epoch, for display and headers; never to be used for durations."""

    async def sleep(self, seconds: float) -> None:
        """Sleeps for `seconds` (>= 0)."""

    def call_at(self, at: float, act: Callable[[], None]) -> Alarm:
        """Calls `act` at the instant `at`, or at once if that has passed."""

    def limit(self) -> TimeLimit:
        """Returns a scope that is cancelled when its deadline passes; it starts without one."""


class Alarm(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Prevents the callback."""


class TimeLimit:
    """A scope with a deadline that can be moved, as a context manager: one for a whole attempt.

    A deadline that passes cancels the body and raises TimeoutError from the scope; `name` is then the limit that
    passed. As with `asyncio.timeout`, a cancellation from elsewhere takes precedence, and scopes may be nested.
    `asyncio.timeout` with a timer for each deadline would cost three times as much: here the timer is only moved for an
    earlier deadline; a later one, and a `touch`, are checked when it fires (the stamp-and-check watchdog of mitmproxy).
    """

    __slots__ = (
        "_at", "_call_at", "_cancelling", "_held_at", "_idle_s", "_is_over", "_look_at", "_loop", "_now", "_stall_at",
        "_stall_s", "_task", "_timer", "_timer_at", "_touched_at", "name",
    )  # fmt: skip

    def __init__(
        self,
        now: Callable[[], float],
        call_at: Callable[[float, Callable[[], None]], Alarm],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`now` and `call_at` are methods of a clock. `loop` is the running loop, if the caller has it."""
        self._now = now
        self._loop = loop
        self._call_at = call_at
        self._timer: Alarm | None = None
        self._timer_at = 0.0
        self._at: float | None = None
        self._idle_s: float | None = None
        self._touched_at = 0.0
        self._stall_s = inf
        self._look_at = inf
        self._stall_at = inf
        self._held_at: float | None = None
        self._is_over = False
        self.name = ""

    def set(self, at: float, name: str) -> None:
        """Ends the scope at the instant `at`. Replaces all limits set before."""
        self._idle_s = None
        self._stall_s = self._look_at = self._stall_at = inf
        self._at = at
        self.name = name
        if self._timer is None or at < self._timer_at:
            self._arm(at)

    def set_idle(self, idle_s: float, at: float, name: str) -> None:
        """Ends the scope after `idle_s` without a `touch` (then `name` is "idle"), or at the instant `at`."""
        self._idle_s = idle_s
        self._at = at
        self.name = name
        self.touch()
        self._arm_earlier(min(at, self._touched_at + idle_s))

    def set_stall(self, stall_s: float) -> None:
        """Ends the scope also after `stall_s` without `progress` (then `name` is "stall"); use it after `set_idle`."""
        self._stall_s = stall_s
        self.progress()
        self._arm_earlier(self._stall_at)

    def touch(self) -> bool:
        """Notes that a chunk arrived. Returns True if it should be inspected for progress: shortly after progress that
        would cost too much, and any chunk counts as progress."""
        now = self._touched_at = self._now()
        return now > self._look_at

    def progress(self) -> None:
        """Notes that the last chunk showed progress."""
        self._look_at = self._touched_at + min(_UNSEEN_S, self._stall_s * _UNSEEN_SHARE)
        self._stall_at = self._look_at + self._stall_s

    def hold(self) -> None:
        """Suspends the stall limit while nothing is read. Ended by `go_on`, not by a `touch`."""
        self._held_at = self._now()

    def go_on(self) -> None:
        """Resumes the stall limit after `hold`; counts as a `touch`."""
        self.touch()
        if self._held_at is not None:
            self._stall_at += self._touched_at - self._held_at
            self._held_at = None
        self._arm_earlier(self._stall_at)

    def __enter__(self) -> Self:
        task = asyncio.current_task(self._loop)
        if task is None:
            raise RuntimeError("a limit is a task's")
        self._task = task
        self._cancelling = task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # If the task was also cancelled from elsewhere, that cancellation takes precedence.
        if self._is_over and self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error

    def _arm_earlier(self, at: float) -> None:
        if self._timer is None or at < self._timer_at:
            self._arm(at)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._call_at(at, self._check)

    def _check(self) -> None:
        self._timer = None
        at = self._at
        if at is None or self._is_over:  # pragma: no cover - a timer is only armed with a deadline, and before the end
            return
        due, name = at, self.name
        if self._idle_s is not None and self._touched_at + self._idle_s < due:
            due, name = self._touched_at + self._idle_s, "idle"
        if self._stall_at < due and self._held_at is None:
            due, name = self._stall_at, "stall"
        # The loop's clock may be up to a millisecond behind this one (uvloop caches it per iteration).
        if self._now() + 0.001 < due:
            self._arm(due)
            return
        self.name = name
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._task.cancel()


class _FarAlarm:
    """An alarm more than a second away: kept in the wheel slot of its second until that begins, then by the loop."""

    __slots__ = ("_act", "_at", "_handle", "_second")

    def __init__(self, at: float, act: Callable[[], None], second: dict[_FarAlarm, None]) -> None:
        self._at = at
        self._act = act
        self._second = second
        self._handle: asyncio.TimerHandle | None = None
        second[self] = None

    def arm(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        self._handle = loop.call_later(max(0.0, self._at - now), self._act)

    def cancel(self) -> None:
        self._act = _nothing  # breaks the reference cycle with an owner that holds the alarm
        if self._handle is None:
            self._second.pop(self, None)
        else:
            self._handle.cancel()


def _nothing() -> None:
    """Replaces the callback of a cancelled alarm."""


class SystemClock:
    """The real clock.

    Nearly all limits and hedges are cancelled long before they are due. An alarm that is more than a second away
    therefore has no event-loop timer: all alarms of one second share one, which arms them exactly when their second
    begins (a timing wheel, Varghese and Lauck, SOSP 1987).
    """

    # Called several times per call: without a Python frame they cost half.
    now = staticmethod(monotonic)
    wall = staticmethod(time.time)

    def __init__(self) -> None:
        self._seconds: dict[int, dict[_FarAlarm, None]] = {}
        """Alarms by the second in which they are due (the slots of the wheel)."""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_at(self, at: float, act: Callable[[], None]) -> Alarm:
        loop, now = self._running_loop(), monotonic()
        if at - now < 1.0:
            return loop.call_later(max(0.0, at - now), act)
        if at == inf:
            return _FarAlarm(at, act, {})  # never due
        number = int(at)
        second = self._seconds.get(number)
        if second is None:
            second = self._seconds[number] = {}
            loop.call_later(number - now, self._begin, number)
        return _FarAlarm(at, act, second)

    def limit(self) -> TimeLimit:
        return TimeLimit(self.now, self.call_at, self._running_loop())

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the loop, which is the same until it is closed: `get_running_loop` makes a system call each time."""
        loop = self._loop
        if loop is None or loop.is_closed():
            loop, self._seconds = get_running_loop(), {}
            self._loop = loop
        return loop

    def _begin(self, number: int) -> None:
        now, second = monotonic(), self._seconds.pop(number, {})
        for alarm in second:
            alarm.arm(get_running_loop(), now)
        second.clear()  # breaks the reference cycle between the slot and its alarms


def iso(wall: float) -> str:
    """Formats seconds since the epoch as ISO 8601."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
