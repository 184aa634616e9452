"""Builds the execution side of the deferred-call service, and runs the life cycle of both sides: start, reload, drain,
stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.deferred.completion_webhooks import CompletionNotifier
from llm_guard.deferred.execution import DeferredExecutor
from llm_guard.deferred.intake import CallIntake
from llm_guard.deferred.maintenance import StoreMaintenance
from llm_guard.deferred.state import DeferredState
from llm_guard.deferred.worker import DeferredWorker
from llm_guard.proxy.handler import Handler
from llm_guard.webhooks.delivery import SendWebhook

_log = structlog.get_logger("llm_guard.deferred.service")

_LAST_WORDS_S = 2.0
"""Seconds that a stop waits for interrupted calls to be written to the store."""


class DeferredService:
    """Life cycle: `start()` once the gateway can serve, `adopt` at a reload, `leave()` when it drains, `await
    stop()`."""

    def __init__(
        self,
        config: Config,
        state: DeferredState,
        intake: CallIntake,
        gateway: Handler,
        post: SendWebhook,
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        """`gateway` hands calls to `intake` and executes them; `draw` returns a uniform random number in [0, 1)."""
        self.call_store, self.counts, self._intake = state.call_store, state.counts, intake
        executor = DeferredExecutor(gateway, state, clock, draw)
        self._notifier = CompletionNotifier(config, state.call_store, post, state.counts, clock, draw)
        self.runner = DeferredWorker(config, state, executor, clock, self._notifier.wake)
        self._upkeep = StoreMaintenance(config, state, self.runner, clock)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts the background tasks. Calls that an earlier process left in the store are resumed."""
        self._tasks = [
            _begin(self.runner.run(), "worker"),
            _begin(self._upkeep.run(), "maintenance of stored calls"),
        ]
        self._notifier.start()

    def adopt(self, config: Config) -> None:
        """Applies the settings of a new config."""
        for part in (self._intake, self.runner, self._upkeep, self._notifier):
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
        await self._notifier.stop()
        await self.call_store.close()


def _begin(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_say_why)
    return task


def _say_why(task: asyncio.Task[None]) -> None:
    """Logs a task that ended with an error: these tasks end only by a drain or a cancellation."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a background task of the call store ended with an error", task=task.get_name(), exc_info=error)
