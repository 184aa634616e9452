"""An event loop with virtual time: when nothing is ready, it jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from llm_guard.clock import Alarm, TimeLimit

_EPOCH_S = 1_800_000_000.0
"""Wall time at virtual time 0."""
_START_S = 1000.0
"""Virtual time of a new loop: not 0, which a condition could take for "not set"."""

T = TypeVar("T")


class WouldBlockError(RuntimeError):
    """Nothing is ready and no timer is set: a real loop would sleep for ever."""


class _Jump(selectors.SelectSelector):
    """Advances the time instead of waiting. Watches no file but the loop's own pipe, which stays silent."""

    def __init__(self) -> None:
        super().__init__()
        self.now = _START_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise WouldBlockError("all tasks wait, and no timer is set")
        if timeout > 0:
            self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Never sleeps. Threads cannot wake it, so `run_in_executor` and `call_soon_threadsafe` must not be used."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


class VirtualClock:
    """Implements `llm_guard.clock.Clock`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.now = loop.time

    def wall(self) -> float:
        return self._loop.time() - _START_S + _EPOCH_S

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_at(self, at: float, act: Callable[[], None]) -> Alarm:
        return self._loop.call_at(at, act)

    def limit(self) -> TimeLimit:
        return TimeLimit(self.now, self.call_at)


def run_virtual(main: Callable[[VirtualClock], Coroutine[Any, Any, T]]) -> T:
    """Runs `main` on a new loop, to its end. Raises WouldBlockError if it would never end."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(VirtualClock(loop)))
