"""Runs blocking calls in a thread, so that the event loop waits neither for a disk nor for a long computation."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar, TypeVarTuple

from llm_guard.clock import Clock

MOST_WAITING = 1000
"""Maximum length of the queue, which bounds memory when the disk hangs."""

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")
_Work = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class WorkerBusy(Exception):
    """The thread's queue is full."""


class WorkerThread(Executor):
    """One daemon thread, which runs calls in the order of their arrival.

    - It is started by the first call, and ends with `shutdown` or when its object is dropped: for a single call use
      `WorkerThread(name).run(...)`.
    - The process does not wait for it at exit, unlike for `asyncio.to_thread` and a `ThreadPoolExecutor`: a disk that
      hangs would block the exit for ever.
    - A call that is cancelled before its turn never runs. One that has begun goes on, and its result is dropped.
    """

    def __init__(self, name: str, most_waiting: int = MOST_WAITING) -> None:
        """`name`: the thread's."""
        self._most_waiting = most_waiting
        self._is_over = False
        self._work: _Work = SimpleQueue()
        self._thread = Thread(target=_run, args=(self._work,), name=name, daemon=True)
        weakref.finalize(self, self._work.put, None).atexit = False

    @property
    def is_full(self) -> bool:
        return self._work.qsize() >= self._most_waiting

    def run(self, act: Callable[[*_Arguments], _Result], *args: *_Arguments) -> asyncio.Future[_Result]:
        """Queues a call and returns its result as a future of the running loop. It fails like `submit`. An error that
        is not awaited is dropped."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[_Result] = loop.create_future()
        queued = self.submit(act, *args)
        result.add_done_callback(lambda _: queued.cancel())
        queued.add_done_callback(partial(_pass_on, loop, result))
        return result

    def submit(self, act: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Queues a call. The future fails with WorkerBusy if the queue is full, and with RuntimeError after
        `shutdown`."""
        future: Future[Any] = Future()
        if self._is_over:
            future.set_exception(RuntimeError(f"the thread {self._thread.name!r} has ended"))
            return future
        if self.is_full:
            future.set_exception(WorkerBusy(f"{self._most_waiting} calls already wait for {self._thread.name!r}"))
            return future
        self._work.put((future, partial(act, *args, **named)))
        if self._thread.ident is None:
            self._thread.start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:  # noqa: ARG002  # as in `Executor`
        """Ends the thread after the queued calls."""
        self._is_over = True
        self._work.put(None)

    async def close(self, last: Callable[[], object], within_s: float) -> None:
        """Ends the thread after the queued calls and `last`. An error of `last` is dropped. Returns after `within_s`
        seconds at the latest; the thread then goes on."""
        closing = self.run(last)
        self.shutdown()
        await asyncio.wait((closing,), timeout=within_s)


async def wait_at_most(seconds: float, result: Awaitable[_Result], clock: Clock) -> _Result:
    """Waits for the result of a call. After `seconds` it raises TimeoutError and cancels the call; pass
    `asyncio.shield(result)` for a call that must be made in any case."""
    with clock.limit() as limit:
        limit.set(clock.now() + seconds, "thread")
        return await result


def _run(work: _Work) -> None:
    while (queued := work.get()) is not None:
        future, act = queued
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(act())
            except BaseException as error:  # noqa: BLE001  # passed to the waiter
                future.set_exception(error)
        del queued, future, act  # or the thread would keep the call's objects until the next one


def _pass_on(loop: asyncio.AbstractEventLoop, result: asyncio.Future[_Result], ended: Future[_Result]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_settle, result, ended)


def _settle(result: asyncio.Future[_Result], ended: Future[_Result]) -> None:
    if result.done():
        return
    error = ended.exception()
    if error is None:
        result.set_result(ended.result())
    else:
        result.set_exception(error)
        result.exception()  # marks it as retrieved
