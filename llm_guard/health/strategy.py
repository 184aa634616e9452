"""How an engine is started, stopped and looked at: the protocol, one implementation for each way to run one.

Owns the nouns, and how to notice the end of what is not a child of ours. Does not own when any of it is done
(`health.engines`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import structlog

from llm_guard.clock import Clock

_log = structlog.get_logger("llm_guard.health.strategy")

_LOOK_S = 5.0
"""From one look at a daemon to the next."""


class EngineError(Exception):
    """It could not be done; the text says why, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Found:
    """An engine, as whoever runs it says."""

    is_running: bool
    run: str = ""
    """Tells this run of it from every other; empty: it does not run."""
    why: str = ""
    """How it ended."""


class Strategy(Protocol):
    """One engine. Each method raises EngineError, and takes a limited time."""

    @property
    def place(self) -> str:
        """What is started, for people."""

    @property
    def output(self) -> tuple[str, ...]:
        """The last lines that it has printed, as far as they come to us."""

    async def look(self) -> Found:
        """As it is now."""

    async def start(self) -> None:
        """Returns when it has been told to; one that runs goes on."""

    async def stop(self, grace_s: float) -> None:
        """Returns when it has ended, by force after that time; one that does not run is well so."""

    async def wait_gone(self) -> str:
        """Returns when it runs no more, with how it ended; never raises."""

    async def close(self, grace_s: float) -> None:
        """The gateway ends: what is the gateway's own ends with it, all else stays. Never raises."""


async def poll_gone(strategy: Strategy, clock: Clock) -> str:
    """For those whose end nobody tells us. A daemon that does not answer says nothing of its engines."""
    is_silent = False
    while True:
        await clock.sleep(_LOOK_S)
        try:
            found = await strategy.look()
        except EngineError as error:
            if not is_silent:
                _log.warning("an engine cannot be looked at", engine=strategy.place, problem=str(error))
            is_silent = True
            continue
        is_silent = False
        if not found.is_running:
            return found.why
