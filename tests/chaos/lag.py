"""Measures how late the event loop runs, and how much of that the process caused itself.

Tests stretch their time bounds by the lag of the loop, which they share with the gateway. A gateway that blocks this
loop would stretch them too, so the part of the lag that the process causes is measured and bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

LONGEST_BLOCK_S = 0.1
"""Longest time in seconds that the process itself may keep the loop busy or blocked."""
_EVERY_S = 0.005


class Lag:
    """The lag of the running loop between `start` and `stop`."""

    def __init__(self) -> None:
        self.is_used = False
        """True once a test has stretched a bound by it."""
        self.longest_block_s = 0.0
        """The longest lag between two ticks that neither the machine nor a garbage collection caused."""
        self._total_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._collected_s = 0.0
        self._collecting_since = 0.0

    @property
    def total_s(self) -> float:
        """Sum of all lags above 5 ms."""
        self.is_used = True
        return self._total_s

    def start(self) -> None:
        gc.callbacks.append(self._on_collection)
        self._task = asyncio.create_task(self._tick())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._on_collection)

    def check(self) -> None:
        """Raises AssertionError if a stretched bound might hide that the gateway has blocked its loop."""
        if self.is_used:
            assert self.longest_block_s <= LONGEST_BLOCK_S, f"the loop was blocked for {self.longest_block_s:.3f} s"

    async def _tick(self) -> None:
        while True:
            before, queued_s, collected_s = time.monotonic(), queued(), self._collected_s
            await asyncio.sleep(_EVERY_S)
            late_s = time.monotonic() - before - _EVERY_S
            if late_s > _EVERY_S:
                self._total_s += late_s
                excused_s = min(late_s, queued() - queued_s) + self._collected_s - collected_s
                self.longest_block_s = max(self.longest_block_s, late_s - excused_s)

    def _on_collection(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting_since = time.monotonic()
        else:
            self._collected_s += time.monotonic() - self._collecting_since


@contextlib.contextmanager
def measured() -> Iterator[Lag]:
    """Measures the lag of the running loop inside the block, and fails where a bound was stretched by a block of it."""
    lag = Lag()
    lag.start()
    try:
        yield lag
        lag.check()
    finally:
        lag.stop()


def queued() -> float:
    """Seconds for which this thread was runnable but waited for a processor. Where the system does not report that,
    returns all elapsed time, so that all lag is excused."""
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return time.monotonic()
