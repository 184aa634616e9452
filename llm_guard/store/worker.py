"""One thread for what blocks, so that the event loop never waits for the disk.

Owns the thread, and how much may wait for it. Does not own what it does.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

from llm_guard.store.errors import StoreError

MOST_WAITING = 1000
"""So much that is asked of a disk that hangs is kept in memory, and no more."""


class Worker(Executor):
    """One thread, begun with the first work. The process does not wait for it when it ends: a disk that hangs must not
    hold it for ever, and a `ThreadPoolExecutor` is always waited for."""

    def __init__(self, name: str, most_waiting: int = MOST_WAITING) -> None:
        """`name`: the thread's."""
        self._most_waiting = most_waiting
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    @property
    def is_full(self) -> bool:
        return self._work.qsize() >= self._most_waiting

    def submit(self, act: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Its future has a StoreError where too much waits already."""
        future: Future[Any] = Future()
        if self.is_full:
            future.set_exception(StoreError(f"the disk does not keep up: {self._most_waiting} reads and writes wait"))
            return future
        self._work.put((future, partial(act, *args, **named)))
        if self._thread.ident is None:
            self._thread.start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:  # noqa: ARG002  # as `Executor`
        """It ends when what it has got is done."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, act = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(act())
            except BaseException as error:  # noqa: BLE001  # whoever asked hears of it
                future.set_exception(error)
