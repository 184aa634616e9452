"""Lets a task go on within the callback of a connection that has its next bytes.

An `asyncio.Future` is made for each wait, and lets its task go on only in the event loop's next iteration.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Self


class Wakeup:
    """Awaited by one task at a time, again and again. A task uses it like a future (`asyncio.Task.__step`)."""

    __slots__ = ("_asyncio_future_blocking", "_context", "_go_on", "_loop")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False
        """True until the task has noted that it waits."""
        self._go_on: Callable[[Wakeup], object] | None = None
        """Makes the waiting task go on; None if none waits."""
        self._context: Context | None = None

    def wake(self) -> None:
        """Lets the waiting task go on at once, until it waits again; does nothing if none waits. For the end of a
        transport's callback: what follows runs after whatever the task does. If a task is running, which has called the
        callback itself, it is the same as `wake_soon`."""
        go_on, context = self._go_on, self._context
        if go_on is None or context is None:
            return
        self._go_on = self._context = None
        try:
            context.run(go_on, self)
        except RuntimeError:  # two tasks cannot run at once; the task's own errors end the task
            self._loop.call_soon(go_on, self, context=context)

    def wake_soon(self) -> None:
        """Lets the waiting task go on in the loop's next iteration; does nothing if none waits."""
        go_on, context = self._go_on, self._context
        self._go_on = self._context = None
        if go_on is not None:
            self._loop.call_soon(go_on, self, context=context)

    # the task's side

    def __await__(self) -> Generator[Any, None, None]:
        self._asyncio_future_blocking = True
        return self  # type: ignore[return-value]  # an iterator is enough

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Self:
        if self._asyncio_future_blocking:
            return self
        raise StopIteration

    def add_done_callback(self, go_on: Callable[[Wakeup], object], *, context: Context) -> None:
        """Called by the task when it begins to wait."""
        self._go_on = go_on
        self._context = context

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002  # the task keeps it
        """Called when the task is cancelled. Returns False: the task raises the error itself when it goes on."""
        self.wake_soon()
        return False

    def result(self) -> None:
        """Called by the task when it goes on."""
