"""Builds the parts of the deferred-call service and runs their life cycle: start, reload, drain, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.errands.asking import Asker
from llm_guard.errands.counts import ErrandCounts
from llm_guard.errands.credentials import Credentials
from llm_guard.errands.keeper import DeskKeeper
from llm_guard.errands.runner import Runner
from llm_guard.errands.shelf import Shelf
from llm_guard.errands.terms import Terms
from llm_guard.errands.tidings import Tidings
from llm_guard.errands.told import Post, Teller
from llm_guard.errands.upkeep import Upkeep
from llm_guard.errands.window import Window
from llm_guard.gateway.server import Gateway
from llm_guard.store.kept import KeptCalls

_log = structlog.get_logger("llm_guard.errands.errands")

_LAST_WORDS_S = 2.0
"""Seconds that a stop waits for interrupted calls to be written to the store."""


class Errands:
    """Life cycle: `start()` once the gateway can serve, `adopt` at a reload, `leave()` when it drains, `await
    stop()`."""

    def __init__(
        self,
        config: Config,
        gateway: Gateway,
        store: KeptCalls,
        post: Post,
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        """`draw` returns a uniform random number in [0, 1)."""
        self.counts = ErrandCounts()
        self.tidings = Tidings(clock)
        self.shelf = Shelf(store, clock)
        credentials, terms = Credentials(), Terms(clock)
        self._asker = Asker(gateway, credentials, terms, clock, draw)
        self._teller = Teller(config, self.shelf, post, self.counts, clock, draw)
        self.runner = Runner(
            config, self.shelf, self._asker, credentials, self.counts, self.tidings, terms, clock, self._teller.wake
        )
        self._upkeep = Upkeep(config, self.shelf, self.runner, self.counts, self.tidings, terms, clock)
        window = Window(self.shelf, clock, self.runner.give_up)
        self.keeper = DeskKeeper(
            config,
            self.shelf,
            window,
            credentials,
            self.counts,
            self.tidings,
            terms,
            clock,
            draw,
            self.runner.wake,
            self.runner.take_back,
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts the background tasks. Calls that an earlier process left in the store are resumed."""
        self._tasks = [
            _begin(self.runner.run(), "errands"),
            _begin(self._upkeep.run(), "upkeep of kept calls"),
            _begin(self._teller.run(), "webhooks of kept calls"),
        ]

    def adopt(self, config: Config) -> None:
        """Applies the settings of a new config."""
        for part in (self.keeper, self.runner, self._upkeep, self._teller):
            part.adopt(config)
        self.runner.wake()

    def leave(self) -> None:
        """Begins no more calls, because the gateway drains. Running ones have as long as clients' calls."""
        self.runner.leave()

    async def stop(self) -> None:
        """Stops all tasks. Unfinished calls stay in the store, and another process resumes them."""
        self.runner.leave()
        await self.runner.stop(_LAST_WORDS_S)
        if self._tasks:
            await asyncio.wait(self._tasks[:1], timeout=_LAST_WORDS_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.shelf.close()


def _begin(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_say_why)
    return task


def _say_why(task: asyncio.Task[None]) -> None:
    """Logs a task that ended with an error: these tasks end only by a drain or a cancellation."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a part of the errands broke", part=task.get_name(), exc_info=error)
