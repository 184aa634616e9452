"""The protocol for starting, stopping and inspecting an engine, with one implementation for each way to run one.

Also polls for the end of engines that are not child processes. When any of this is done is decided in
`upstreams.engines.supervisor`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import structlog

from llm_guard.clock import Clock

_log = structlog.get_logger("llm_guard.upstreams.engines.driver")

_LOOK_S = 5.0
"""Interval at which a daemon is polled."""
OUTPUT_S = 2.0
"""Limit of reading the output: the end of an engine is reported after it."""


class EngineError(Exception):
    """The operation failed; the text says why, and what to do about it."""


@dataclass(frozen=True, slots=True)
class DriverStatus:
    """State of an engine, as reported by what runs it."""

    is_running: bool
    run: str = ""
    """Identifies this run; empty: not running."""
    why: str = ""
    """How the last run ended."""


class EngineDriver(Protocol):
    """One engine. Methods raise EngineError unless stated otherwise, and finish within a limited time."""

    @property
    def place(self) -> str:
        """Name of what is started, for display."""

    @property
    def output(self) -> tuple[str, ...]:
        """The last lines of output, as of the last `read_output`; those of a child process are current."""

    async def look(self) -> DriverStatus:
        """Returns the current state."""

    async def start(self) -> None:
        """Starts the engine and returns without waiting until it is up. One that is running keeps running."""

    async def stop(self, grace_s: float) -> None:
        """Stops the engine, by force after `grace_s`, and returns when it has ended. Succeeds if it is not running."""

    async def read_output(self) -> None:
        """Reads the last lines of output, within 2 s. On failure, `output` says why. Never raises."""

    async def wait_gone(self) -> str:
        """Waits until the engine is no longer running and returns how it ended. Never raises."""

    async def close(self, grace_s: float) -> None:
        """Called when the gateway ends: stops a child process of the gateway, and leaves other engines running. Never
        raises."""


async def poll_gone(strategy: EngineDriver, clock: Clock) -> str:
    """Polls until the engine is no longer running, for engines that do not report their end, and reads their output
    each time. An unreachable daemon does not count as an ended engine."""
    is_silent = False
    while True:
        await clock.sleep(_LOOK_S)
        try:
            found = await strategy.look()
        except EngineError as error:
            if not is_silent:
                _log.warning("the state of an engine cannot be read", engine=strategy.place, error=str(error))
            is_silent = True
            continue
        is_silent = False
        await strategy.read_output()
        if not found.is_running:
            return found.why
