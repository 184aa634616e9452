"""Asynchronous access to the store of deferred calls and dead letters: one thread does the blocking calls."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from llm_guard.clock import Clock
from llm_guard.storage.calls.store import CallStore, StoredCall, StoreError
from llm_guard.worker_thread import WorkerBusy, WorkerThread, wait_at_most

_log = structlog.get_logger("llm_guard.deferred.store_client")

PATIENCE_S = 2.0
"""Seconds that a client waits for the store."""
_WRITE_AGAIN_S = 1.0
_WRITES = 30

_Found = TypeVar("_Found")


class SlowStore(StoreError):
    """The store has not answered in time."""


@dataclass(slots=True, eq=False)
class _Adding:
    """A call that waits to be written."""

    call: StoredCall | None
    """None once its client no longer waits, so that a disk that hangs does not keep the call in memory."""
    is_done: bool = False
    """The call is stored."""


class AsyncCallStore:
    """Used from one event loop; `await close()` at its end."""

    def __init__(self, store: CallStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._worker = WorkerThread("stored calls")
        self._adding: deque[_Adding] = deque()

    async def add(self, call: StoredCall) -> None:
        """Writes a call, with the timeout of `ask`. Waiting calls are written in one transaction: a hundred take as
        long as one."""
        adding = _Adding(call)
        self._adding.append(adding)
        try:
            await self.ask(lambda store: self._add(adding, store))
        finally:
            adding.call = None
            with contextlib.suppress(ValueError):
                self._adding.remove(adding)

    async def do(self, act: Callable[[CallStore], _Found]) -> _Found:
        """Runs `act` in the store's thread, without a timeout. Raises StoreError. Cancelled before its turn, it never
        runs."""
        try:
            return await self._worker.run(act, self._store)
        except StoreError:
            raise
        except WorkerBusy as error:
            raise StoreError(f"the store does not keep up: {error}") from None
        except Exception as error:
            _log.exception("unexpected error in the store of calls")
            raise StoreError(f"{type(error).__name__}: {error}") from error

    async def ask(self, act: Callable[[CallStore], _Found], within_s: float = PATIENCE_S) -> _Found:
        """Runs `act` with a timeout. Raises StoreError, and SlowStore after the timeout: then it may still have been
        done."""
        try:
            return await wait_at_most(within_s, self.do(act), self._clock)
        except TimeoutError:
            raise SlowStore(f"the store has not responded within {within_s:g} s") from None

    async def run_with_retries(self, act: Callable[[CallStore], _Found]) -> _Found:
        """Runs `act`, retrying for half a minute, because the response to be written was paid for. Raises
        StoreError."""
        for _ in range(_WRITES - 1):
            try:
                return await self.do(act)
            except StoreError as error:
                _log.warning("a stored call could not be written; retrying", error=str(error))
                await self._clock.sleep(_WRITE_AGAIN_S)
        return await self.do(act)

    def run_unawaited(self, act: Callable[[CallStore], object]) -> None:
        """Runs `act` without waiting for its result."""
        self._worker.submit(act, self._store)

    async def close(self) -> None:
        """Closes the store after pending writes, if the store answers in time."""
        await self._worker.close(self._store.close, PATIENCE_S)

    # Below here: in the store's thread.

    def _add(self, adding: _Adding, store: CallStore) -> None:
        """Writes this call and all others that wait. Raises StoreError."""
        waiting = []
        while self._adding:
            waiting.append(self._adding.popleft())
        wanted = [(entry, call) for entry in waiting if (call := entry.call) is not None]
        if len(wanted) > 1:
            with contextlib.suppress(StoreError):  # one of them may be at fault: then each is written by itself
                store.add(*(call for _, call in wanted))
                for entry, _ in wanted:
                    entry.is_done = True
        if (call := adding.call) is not None and not adding.is_done:
            store.add(call)
