"""Looks around four times a second: the only thing that the operator's side does by itself.

Owns the rhythm, the event loop's lag, and that one look that fails ends no other. Does not own what is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from llm_guard.clock import Alarm, Clock

_log = structlog.get_logger("llm_guard.ops.watch")

PERIOD_S = 0.25
_MINUTE_S = 60.0

Look = Callable[[float], None]
"""Takes the monotonic instant; must not block."""


class Watch:
    """Looks, until it is stopped."""

    def __init__(self, looks: Iterable[Look], clock: Clock) -> None:
        self._looks = tuple(looks)
        self._clock = clock
        self._alarm: Alarm | None = None
        self._due_at = 0.0
        self._complained_at = float("-inf")
        self.lag_s = 0.0
        """By how much the last look came late: so long did the event loop keep everybody waiting."""
        self._longest_s = [0.0, 0.0]
        """Of the minute before, and of this one so far."""
        self._minute_at = 0.0

    @property
    def max_lag_s(self) -> float:
        """The longest lag of the last minute, or of up to two."""
        return max(self._longest_s)

    def start(self) -> None:
        self._minute_at = self._clock.now()
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
        self._note_lag(max(0.0, now - self._due_at), now)
        for look in self._looks:
            try:
                look(now)
            except Exception:  # noqa: BLE001  # the others go on, and so does this one: it looks again
                if now - self._complained_at >= _MINUTE_S:
                    self._complained_at = now
                    _log.exception("a look failed")
        self._arm(self._clock.now())

    def _note_lag(self, lag_s: float, now: float) -> None:
        self.lag_s = lag_s
        if now - self._minute_at >= _MINUTE_S:
            self._minute_at = now
            self._longest_s = [self._longest_s[1], 0.0]
        self._longest_s[1] = max(self._longest_s[1], lag_s)
