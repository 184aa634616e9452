"""Synchronises the index of object owners with its store in the background: calls use the index in memory only.

The index is in `resilience.client_keys.object_owners`, the stores are `storage.owners_file` and `storage.redis_owners`.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from llm_guard.clock import Clock
from llm_guard.resilience.client_keys.object_owners import ObjectKey, ObjectOwners, Ownership
from llm_guard.storage.errors import StoreError
from llm_guard.storage.owners_file import OwnersStore
from llm_guard.worker_thread import WorkerThread

_log = structlog.get_logger("llm_guard.proxy.client_keys.object_ownership")

EXCHANGE_S = 1.0
"""Interval of the synchronisation: other gateways that share the store know a new object about this much later."""
_START_S = 5.0
_CLOSE_S = 5.0
_MOST_UNSAVED = 100_000
"""Entries that are kept for saving while the store fails; beyond that the oldest are not saved."""


class OwnedObjects:
    """The owners of objects, for one event loop. Call `begin` if objects are isolated, and `close` at the end."""

    def __init__(self, store: OwnersStore, clock: Clock) -> None:
        self.owners = ObjectOwners()
        self._store = store
        self._clock = clock
        self._worker = WorkerThread("owners")
        self._unsaved: list[Ownership] = []
        self._read_up_to = 0
        self._is_failing = False
        self._has_read = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Starts reading and saving the index in the background. A second call does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._exchange_for_ever())

    async def wait_read(self) -> None:
        """Waits until the store has been read, for 5 s at most; reading then goes on in the background."""
        limit = self._clock.limit()
        with contextlib.suppress(TimeoutError), limit:
            limit.set(self._clock.now() + _START_S, "start")
            await self._has_read.wait()

    def note(self, upstream: str, object_id: str, owner: str, *, is_answer: bool) -> None:
        """Records an object that a client key has just created."""
        entry = Ownership(ObjectKey(upstream, object_id), owner, is_answer)
        if self.owners.note(entry):
            self._unsaved.append(entry)
            if len(self._unsaved) > _MOST_UNSAVED:
                del self._unsaved[: _MOST_UNSAVED // 10]

    async def close(self) -> None:
        """Saves new entries, waiting 5 s at most."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait((self._task,))
        loop = asyncio.get_running_loop()
        closing = asyncio.gather(
            loop.run_in_executor(self._worker, self._store.exchange, self._unsaved, self._read_up_to),
            loop.run_in_executor(self._worker, self._store.close),
            return_exceptions=True,
        )
        await asyncio.wait((closing,), timeout=_CLOSE_S)
        self._worker.shutdown()

    async def _exchange_for_ever(self) -> None:
        while True:
            if not await self._exchange():
                self._has_read.set()
                await self._clock.sleep(EXCHANGE_S)

    async def _exchange(self) -> bool:
        """Saves new entries and reads those of other gateways. Returns True if there may be more to read at once."""
        new, self._unsaved = self._unsaved, []
        exchanging = asyncio.get_running_loop().run_in_executor(
            self._worker, self._store.exchange, new, self._read_up_to
        )
        try:
            found, read_up_to = await asyncio.shield(exchanging)
        except (StoreError, asyncio.CancelledError) as error:
            self._unsaved = [*new, *self._unsaved]
            if isinstance(error, asyncio.CancelledError):
                raise
            self._note_failure(error)
            return False
        self._is_failing = False
        if read_up_to < self._read_up_to:  # the store was emptied
            self._unsaved = [*self.owners.entries(), *self._unsaved]
        self._read_up_to = read_up_to
        for entry in found:
            self.owners.note(entry)
        return bool(found)

    def _note_failure(self, error: StoreError) -> None:
        if not self._is_failing:
            _log.warning("the index of object owners could not be saved; retrying", error=str(error))
        self._is_failing = True
