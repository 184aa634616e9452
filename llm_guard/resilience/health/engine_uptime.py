"""Availability of an engine, and how long it takes to start. `resilience.health.engine_state` reports its states."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Uptime:
    """Sums since the gateway's start, in seconds."""

    running_s: float
    wanted_s: float
    """Time in which it was meant to run: in any state but `stopped`."""
    starts: int
    """Starts and restarts that succeeded."""
    starting_s: float
    """What those took, from the order to the first good probe."""


class EngineUptime:
    """Sums up the time in each state. `now` is monotonic."""

    __slots__ = ("_began_at", "_running_s", "_since", "_starting_s", "_starts", "_state", "_wanted_s")

    def __init__(self, now: float) -> None:
        self._state = "stopped"
        self._since = now
        self._began_at: float | None = None
        """When it was last ordered to start; None: it is not starting."""
        self._running_s = self._wanted_s = self._starting_s = 0.0
        self._starts = 0

    def note(self, state: str, now: float) -> None:
        """Notes that the engine enters a state."""
        self._add(now)
        if state in ("starting", "restarting"):
            self._began_at = now
        elif state == "running" and self._began_at is not None:
            self._starts += 1
            self._starting_s += now - self._began_at
            self._began_at = None
        else:
            self._began_at = None
        self._state = state

    def at(self, now: float) -> Uptime:
        """Returns the sums until now."""
        self._add(now)
        return Uptime(self._running_s, self._wanted_s, self._starts, self._starting_s)

    def _add(self, now: float) -> None:
        passed_s, self._since = now - self._since, now
        if self._state == "running":
            self._running_s += passed_s
        if self._state != "stopped":
            self._wanted_s += passed_s
