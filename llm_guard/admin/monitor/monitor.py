"""Calls the admin API's periodic functions four times a second, and measures the event loop's lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from llm_guard.clock import Alarm, Clock

_log = structlog.get_logger("llm_guard.admin.monitor.monitor")

PERIOD_S = 0.25
_MINUTE_S = 60.0

PeriodicCheck = Callable[[float], None]
"""Takes the monotonic time; must not block."""


class LoopLag:
    """The event loop's lag: by how many seconds periodic checks come late, because the loop was blocked."""

    def __init__(self) -> None:
        self.latest_s = 0.0
        """Lag of the latest run."""
        self._longest_s = [0.0, 0.0]
        """Largest lag of the previous minute, and of the current one so far."""
        self._minute_at = 0.0

    @property
    def max_s(self) -> float:
        """Largest lag of the last one to two minutes."""
        return max(self._longest_s)

    def start(self, now: float) -> None:
        """Begins the first minute."""
        self._minute_at = now

    def note(self, lag_s: float, now: float) -> None:
        """Records the lag of one run."""
        self.latest_s = lag_s
        if now - self._minute_at >= _MINUTE_S:
            self._minute_at = now
            self._longest_s = [self._longest_s[1], 0.0]
        self._longest_s[1] = max(self._longest_s[1], lag_s)


class Monitor:
    """Runs until it is stopped. A function that fails does not stop the others."""

    def __init__(self, looks: Iterable[PeriodicCheck], lag: LoopLag, clock: Clock) -> None:
        self._looks = tuple(looks)
        self._lag = lag
        self._clock = clock
        self._alarm: Alarm | None = None
        self._due_at = 0.0
        self._complained_at = float("-inf")

    def start(self) -> None:
        self._lag.start(self._clock.now())
        self._arm(self._clock.now())

    def stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _arm(self, now: float) -> None:
        self._due_at = now + PERIOD_S
        self._alarm = self._clock.call_at(self._due_at, self._look)

    def _look(self) -> None:
        now = self._clock.now()
        self._lag.note(max(0.0, now - self._due_at), now)
        for look in self._looks:
            try:
                look(now)
            except Exception:  # noqa: BLE001  # a failure must not stop the others, or the next run
                if now - self._complained_at >= _MINUTE_S:
                    self._complained_at = now
                    _log.exception("a periodic check failed")
        self._arm(self._clock.now())
