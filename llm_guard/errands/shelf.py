"""The way to the store of kept calls: in one thread, so that the event loop never waits for the disk.

Owns who waits for the disk, and for how long. Does not own the store (`store.kept_calls`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from llm_guard.clock import Clock
from llm_guard.store.kept import KeptCall, KeptCalls, StoreError
from llm_guard.store.worker import Worker

_log = structlog.get_logger("llm_guard.errands.shelf")

PATIENCE_S = 2.0
"""So long a client waits for the disk."""
_WRITE_AGAIN_S = 1.0
_WRITES = 30

_Found = TypeVar("_Found")


class SlowDisk(StoreError):
    """It has not answered in time."""


@dataclass(slots=True, eq=False)
class _Adding:
    """What is to be kept, and is not yet."""

    call: KeptCall | None
    """None: nobody waits for it any more. What waits for a disk that hangs must not keep it in memory."""
    is_done: bool = False
    """It is on the disk."""


class Shelf:
    """Of one event loop; `await close()` at its end."""

    def __init__(self, store: KeptCalls, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._worker = Worker("kept calls")
        self._adding: deque[_Adding] = deque()

    async def add(self, call: KeptCall) -> None:
        """As `ask`. Those that wait are written together: the disk takes as long for a hundred of them as for one."""
        adding = _Adding(call)
        self._adding.append(adding)
        try:
            await self.ask(lambda store: self._add(adding, store))
        finally:
            adding.call = None
            with contextlib.suppress(ValueError):
                self._adding.remove(adding)

    async def do(self, act: Callable[[KeptCalls], _Found]) -> _Found:
        """However long that takes. Raises StoreError. What is cancelled before its turn is not done."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, act, self._store)
        except StoreError:
            raise
        except Exception as error:
            _log.exception("the store of kept calls broke")
            raise StoreError(f"{type(error).__name__}: {error}") from error

    async def ask(self, act: Callable[[KeptCalls], _Found], within_s: float = PATIENCE_S) -> _Found:
        """As `do`, for whoever has somebody waiting. Raises SlowDisk too: then it may have been done all the same."""
        try:
            with self._clock.limit() as limit:
                limit.set(self._clock.now() + within_s, "store")
                return await self.do(act)
        except TimeoutError:
            raise SlowDisk(f"the disk has not answered in {within_s:g} s") from None

    async def insist(self, act: Callable[[KeptCalls], _Found]) -> _Found:
        """As `do`, again and again for half a minute: what is to be written was paid for. Raises StoreError."""
        for _ in range(_WRITES - 1):
            try:
                return await self.do(act)
            except StoreError as error:
                _log.warning("a kept call could not be written, and will be again", problem=str(error))
                await self._clock.sleep(_WRITE_AGAIN_S)
        return await self.do(act)

    def let(self, act: Callable[[KeptCalls], object]) -> None:
        """As `do`, for whoever need not know."""
        self._worker.submit(act, self._store)

    async def close(self) -> None:
        """What is on its way is written, if the disk answers in time."""
        closed = asyncio.get_running_loop().run_in_executor(self._worker, self._store.close)
        await asyncio.wait((closed,), timeout=PATIENCE_S)
        self._worker.shutdown()

    # in the thread

    def _add(self, adding: _Adding, store: KeptCalls) -> None:
        """With all that wait by now. Raises StoreError."""
        waiting = []
        while self._adding:
            waiting.append(self._adding.popleft())
        wanted = [(each, call) for each in waiting if (call := each.call) is not None]
        if len(wanted) > 1:
            with contextlib.suppress(StoreError):  # one of them may be to blame: then each is written by itself
                store.add(*(call for _, call in wanted))
                for each, _ in wanted:
                    each.is_done = True
        if (call := adding.call) is not None and not adding.is_done:
            store.add(call)
