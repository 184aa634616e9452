"""State machine of an engine: starting, running, unhealthy, restarting, restart_failed, failed, stopped.

    starting        it was ordered to start, and is not up yet
    running         it is up
    unhealthy       it was found down; its next start is scheduled
    restarting      it is stopped and started again, and not up yet
    restart_failed  that did not bring it up; the next start is scheduled
    failed          given up: nothing is tried until it is reset, or comes up by itself
    stopped         it is not meant to run

Decides the state and the next order. Orders are carried out by `upstreams`; the waits are in
`resilience.health.restart_policy`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from llm_guard.resilience.health.engine_uptime import EngineUptime, Uptime
from llm_guard.resilience.health.restart_policy import RestartSettings, delay_s, opens_at

EngineState = Literal["starting", "running", "unhealthy", "restarting", "restart_failed", "failed", "stopped"]
EngineCommand = Literal["start", "restart", "revive", "stop"]
"""Orders to the driver. revive: a restart, unless the engine has just been restarted from outside."""
EngineEventKind = Literal[
    "health_failed", "auto_restart", "auto_restart_failed", "auto_restart_success", "auto_restart_gave_up",
    "auto_restart_postponed", "came_back", "reset", "restart", "restart_failed", "restart_success", "start", "started",
    "stop", "stop_failed",
]  # fmt: skip

_GOING_UP = ("starting", "restarting")
_WAITING = ("unhealthy", "restart_failed")


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """An event in the engine's life."""

    what: EngineEventKind
    before: EngineState
    after: EngineState
    why: str
    attempt: int
    """Number of the automatic attempt in a row; 0: none."""


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """State of an engine. Durations in seconds; instants are monotonic."""

    state: EngineState
    since: float
    why: str
    """The last problem, as long as it matters."""
    attempts: int
    next_attempt_s: float | None
    """None: no attempt is scheduled."""
    boot_left_s: float | None
    """None: it is not booting."""
    restarts_ok: int
    restarts_failed: int
    """Both since the start, including restarts by an operator."""
    doing: EngineCommand | None
    """The order that has not been carried out yet."""
    uptime: Uptime

    @property
    def problem(self) -> str | None:
        """Why an engine that is meant to run does not; None: it runs, or an operator starts, restarts or stops it."""
        if self.state in ("unhealthy", "restart_failed", "failed") or (self.state == "restarting" and self.attempts):
            return f"{self.state.replace('_', ' ')}: {self.why}" if self.why else self.state.replace("_", " ")
        return None


class Engine:
    """One engine. Its supervisor takes orders one at a time, `take` then `finish`, and calls `pass_time` at `wakes_at`.

    It begins as stopped. `u` is a uniform draw in [0, 1), for the wait that may follow.
    """

    __slots__ = (
        "_attempts", "_begun", "_boot_until", "_down_at", "_due_at", "_order", "_restarts_failed", "_restarts_ok",
        "_since", "_told_at", "_uptime", "_why", "_work", "boot_s", "settings", "state",
    )  # fmt: skip

    def __init__(self, settings: RestartSettings, boot_s: float, now: float) -> None:
        """Both may be replaced at any moment. `boot_s`: how long it may take to come up."""
        self.settings = settings
        self.boot_s = boot_s
        self.state: EngineState = "stopped"
        self._since = now
        self._why = ""
        self._attempts = 0
        self._begun: deque[float] = deque(maxlen=1000)
        """Times of automatic restarts, of which those of the last hour count."""
        self._order: EngineCommand | None = None
        self._work: EngineCommand | None = None
        self._due_at = now
        self._boot_until: float | None = None
        self._told_at = now
        """When it was last ordered to start."""
        self._down_at = now
        self._restarts_ok = self._restarts_failed = 0
        self._uptime = EngineUptime(now)

    @property
    def wakes_at(self) -> float | None:
        """The instant at which time alone changes something; None: never."""
        if self.state in _WAITING:
            return self._due_at
        return self._boot_until if self.state in _GOING_UP else None

    @property
    def is_booting(self) -> bool:
        """True if it was ordered to start, so that probing it is worthwhile."""
        return self._boot_until is not None

    # Commands

    def start(self, now: float) -> EngineEvent | None:
        """Starts the engine, or restarts one that is down; None: it is up, or about to be."""
        if self.state in (*_GOING_UP, "running"):
            return None
        if self.state != "stopped":
            return self.restart(now)
        self._attempts = 0
        return self._begin("start", "starting", "start", now)

    def restart(self, now: float) -> EngineEvent | None:
        """Restarts the engine, even one that runs; None: a restart is in progress."""
        return None if self.state == "restarting" else self.replace(now)

    def replace(self, now: float) -> EngineEvent:
        """Restarts the engine, even during a restart: it has been replaced by another one."""
        self._attempts = 0
        return self._begin("restart", "restarting", "restart", now)

    def stop(self, now: float) -> EngineEvent | None:
        """Stops the engine and ends all attempts; None: it is stopped already."""
        if self.state == "stopped":
            return None
        self._boot_until = None
        self._why = ""
        self._order = "stop"
        return self._enter("stop", "stopped", now)

    def reset(self, now: float) -> EngineEvent:
        """Forgets its attempts, including those of the last hour; an engine that was given up is tried again."""
        self._attempts = 0
        self._begun.clear()
        if self.state != "failed":
            return EngineEvent("reset", self.state, self.state, self._why, 0)
        self._due_at = now
        return self._enter("reset", "unhealthy", now)

    # Observations

    def note_up(self, looked_at: float, now: float) -> EngineEvent | None:
        """Notes a successful probe that began at `looked_at`; one that began too early has seen an earlier state."""
        match self.state:
            case "starting" | "restarting":
                if self._boot_until is None or looked_at < self._told_at:
                    return None
                return self._succeed(now)
            case "unhealthy" | "restart_failed" | "failed":
                if looked_at < self._down_at:
                    return None
                if self.state == "failed":
                    self._attempts = 0
                self._why = ""
                return self._enter("came_back", "running", now)
            case "running" | "stopped":
                return None

    def note_down(self, why: str, now: float, u: float) -> EngineEvent | None:
        """Notes that so many probes in a row have failed."""
        return self._fail(why, now, u) if self.state == "running" else None

    def note_gone(self, why: str, now: float, u: float) -> EngineEvent | None:
        """Notes that it does not run any more."""
        return self._fail(why, now, u) if self.state == "running" or self._boot_until is not None else None

    def pass_time(self, now: float, u: float) -> EngineEvent | None:
        """Does what is due by now."""
        if self._boot_until is not None and now >= self._boot_until:
            return self._fail(f"it was not up within {self.boot_s:g} s", now, u)
        if self.state not in _WAITING or now < self._due_at:
            return None
        if self._attempts >= self.settings.max_attempts:
            return self._give_up(now)
        self._due_at = opens_at(self.settings, self._begun, now)
        if self._due_at > now:
            self._why = f"limit of {self.settings.max_per_hour} restarts an hour reached; last failure: {self._why}"
            return EngineEvent("auto_restart_postponed", self.state, self.state, self._why, self._attempts)
        self._attempts += 1
        self._begun.append(now)
        return self._begin("revive", "restarting", "auto_restart", now)

    # Orders

    def take(self) -> EngineCommand | None:
        """Returns the order to carry out now; `finish` must report its end. None: none, or not yet."""
        if self._work is not None:
            return None
        self._work, self._order = self._order, None
        return self._work

    def finish(self, problem: str | None, now: float, u: float) -> EngineEvent | None:
        """Notes the end of the order taken, with the reason if it failed."""
        work, self._work = self._work, None
        if self._order is not None:  # something else is wanted by now
            return None
        if work == "stop":
            if problem is None:
                return None
            self._why = problem
            return EngineEvent("stop_failed", self.state, self.state, problem, 0)
        if problem is not None:
            return self._fail(problem, now, u)
        self._told_at = now
        self._boot_until = now + self.boot_s
        return None

    def snapshot(self, now: float) -> EngineSnapshot:
        return EngineSnapshot(
            self.state,
            self._since,
            self._why,
            self._counted_attempts(now),
            max(0.0, self._due_at - now) if self.state in _WAITING else None,
            None if self._boot_until is None else max(0.0, self._boot_until - now),
            self._restarts_ok,
            self._restarts_failed,
            self._order or self._work,
            self._uptime.at(now),
        )

    def _begin(self, order: EngineCommand, state: EngineState, what: EngineEventKind, now: float) -> EngineEvent:
        self._order = order
        self._boot_until = None
        return self._enter(what, state, now)

    def _succeed(self, now: float) -> EngineEvent:
        self._boot_until = None
        self._why = ""
        if self.state == "starting":
            return self._enter("started", "running", now)
        self._restarts_ok += 1
        return self._enter("auto_restart_success" if self._attempts else "restart_success", "running", now)

    def _fail(self, why: str, now: float, u: float) -> EngineEvent:
        self._attempts = self._counted_attempts(now)
        self._boot_until = None
        self._why = why
        self._down_at = now
        self._due_at = now + delay_s(self.settings, self._attempts + 1, u)
        if self.state != "restarting":
            return self._enter("health_failed", "unhealthy", now)
        self._restarts_failed += 1
        if self._attempts >= self.settings.max_attempts:
            return self._give_up(now)
        return self._enter("auto_restart_failed" if self._attempts else "restart_failed", "restart_failed", now)

    def _give_up(self, now: float) -> EngineEvent:
        return self._enter("auto_restart_gave_up", "failed", now)

    def _counted_attempts(self, now: float) -> int:
        """Attempts that count. A lasting success resets them: otherwise an engine that dies a minute after each start
        is never given up."""
        is_steady = self.state == "running" and now - self._since >= self.settings.reset_after
        return 0 if is_steady else self._attempts

    def _enter(self, what: EngineEventKind, state: EngineState, now: float) -> EngineEvent:
        turn = EngineEvent(what, self.state, state, self._why, self._attempts)
        self.state = state
        self._since = now
        self._uptime.note(state, now)
        return turn
