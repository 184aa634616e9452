"""One thread for blocking work, so that the event loop never waits for the disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

from llm_guard.storage.errors import StoreError

MOST_WAITING = 1000
"""Maximum length of the queue, which bounds memory when the disk hangs."""


class IoThread(Executor):
    """An executor with one daemon thread, started with the first work. The process does not wait for it at exit, unlike
    for a `ThreadPoolExecutor`: a disk that hangs would block the exit for ever."""

    def __init__(self, name: str, most_waiting: int = MOST_WAITING) -> None:
        """`name`: the thread's."""
        self._most_waiting = most_waiting
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    @property
    def is_full(self) -> bool:
        return self._work.qsize() >= self._most_waiting

    def submit(self, act: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """The future fails with StoreError if the queue is full."""
        future: Future[Any] = Future()
        if self.is_full:
            future.set_exception(
                StoreError(f"the disk does not keep up: {self._most_waiting} reads and writes are queued")
            )
            return future
        self._work.put((future, partial(act, *args, **named)))
        if self._thread.ident is None:
            self._thread.start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:  # noqa: ARG002  # as in `Executor`
        """Ends the thread after the queued work."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, act = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(act())
            except BaseException as error:  # noqa: BLE001  # passed to the waiter
                future.set_exception(error)
