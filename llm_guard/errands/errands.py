"""Errands as a whole: their parts, built once, and their life.

Owns what is put together here: start, reload, drain, stop. Does not own any of the parts.
"""

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
"""For what was ended to be written down."""


class Errands:
    """`start()` when the gateway can be asked, `adopt` at a reload, `leave()` when it drains, `await stop()`."""

    def __init__(
        self,
        config: Config,
        gateway: Gateway,
        store: KeptCalls,
        post: Post,
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        """`draw` gives a uniform number in [0, 1)."""
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
        """Looks for what an earlier process has left, and goes on with it."""
        self._tasks = [
            _begin(self.runner.run(), "errands"),
            _begin(self._upkeep.run(), "upkeep of kept calls"),
            _begin(self._teller.run(), "webhooks of kept calls"),
        ]

    def adopt(self, config: Config) -> None:
        """From now on these settings hold."""
        for part in (self.keeper, self.runner, self._upkeep, self._teller):
            part.adopt(config)
        self.runner.wake()

    def leave(self) -> None:
        """The gateway drains: nothing is begun any more; what is begun has as long as clients' calls."""
        self.runner.leave()

    async def stop(self) -> None:
        """What was begun and is not over lies in the store, to be gone on with."""
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
    """It has no end of its own, but for a drain."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a part of the errands broke", part=task.get_name(), exc_info=error)
