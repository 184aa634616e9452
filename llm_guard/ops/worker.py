"""A thread for a disk: the event loop never waits for one.

Owns that the process can end while the disk hangs. Does not own what is done there.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any


class Worker(Executor):
    """One thread, which the process does not wait for when it ends: a disk that hangs must not hold it for ever, and a
    `ThreadPoolExecutor` is always waited for."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def submit(self, act: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
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
