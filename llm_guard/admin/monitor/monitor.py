"""Calls the admin API's periodic functions four times a second, and measures the event loop's lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from llm_guard.clock import Alarm, Clock
from llm_guard.proxy.telemetry.recorder import Distribution

_log = structlog.get_logger("llm_guard.admin.monitor.monitor")

PERIOD_S = 0.25
_MINUTE_S = 60.0
_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

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
        self.distribution = Distribution(_LAG_S)
        """All lags since the start."""

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
        self.distribution.note(lag_s)
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
