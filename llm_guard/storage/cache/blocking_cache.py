"""Lets the event loop use a response cache whose entries are read and written by blocking calls.

Bounds how long a call waits: a read that is late is a miss, and a store that fails is not used for a while. The entries
are in `storage.cache.sqlite_cache_file` or `storage.cache.redis_cache`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from llm_guard.clock import Clock
from llm_guard.storage.cache.response_store import (
    CachedResponse,
    CacheEntries,
    CacheHit,
    CacheKind,
    CacheSnapshot,
    EntriesChange,
    RouteCacheSize,
)
from llm_guard.storage.errors import StoreError
from llm_guard.worker_thread import WorkerBusy, WorkerThread

_log = structlog.get_logger("llm_guard.storage.cache.blocking_cache")

READ_S = 0.1
"""How long a call waits for a read."""
WRITE_S = 1.0
REST_S = 5.0
"""How long the store is not used after a failure."""
MOST_UNWRITTEN_BYTES = 1 << 24
"""Limit for responses that are queued for writing; beyond it none is stored."""
_PURGE_S = 5.0
_SWEEP_S = 60.0
_MOST_TOUCHES = 4096
_CLOSE_S = 5.0


class BlockingCache:
    """Implements `ResponseStore`. Belongs to one event loop; `await close()` at its end."""

    def __init__(self, entries: CacheEntries, kind: CacheKind, clock: Clock, max_bytes: int) -> None:
        """`max_bytes`: of all entries together."""
        self._entries = entries
        self._kind = kind
        self._clock = clock
        self._max_bytes = max_bytes
        self._worker = WorkerThread("cache")
        self._touches: dict[bytes, float] = {}
        """When entries were last used; written with the next entry."""
        self._unwritten = 0
        self._routes: Mapping[str, RouteCacheSize] = {}
        self._evictions = 0
        self._failures: Counter[str] = Counter()
        self._rests_until = self._sweep_at = self._clock.now()
        self._has_failed = self._is_trying = False
        """Whether the last operation failed; whether one tries if the store works again."""
        self._done = 0
        """Number of operations that have finished."""
        self._is_closed = False

    async def get(self, key: bytes) -> CacheHit | None:
        if self._is_resting or self._is_too_much(self._worker.is_full):
            return None
        now = self._clock.wall()
        found: CacheHit | None = await self._ask(READ_S, "read_failed", self._entries.get, key, now)
        if found is not None and len(self._touches) < _MOST_TOUCHES:
            self._touches[key] = now
        return found

    async def put(self, key: bytes, answer: CachedResponse, lasts_s: float) -> None:
        size = len(answer.body)
        is_much = self._worker.is_full or self._unwritten + size > MOST_UNWRITTEN_BYTES
        if self._is_resting or self._is_too_much(is_much):
            return
        touches, self._touches = self._touches, {}
        self._unwritten += size
        writing = self._begin(self._entries.put, key, answer, self._clock.wall(), lasts_s, touches, self._max_bytes)
        writing.add_done_callback(lambda _: self._forget(size))
        await self._wait(writing, WRITE_S, "write_failed")

    async def purge(self, route: str | None) -> int | None:
        """Runs even during the pause after a failure, because an operator requested it."""
        written: EntriesChange | None = await self._ask(_PURGE_S, "write_failed", self._entries.purge, route)
        return None if written is None else written.gone

    def sweep(self) -> None:
        if self._clock.now() >= self._sweep_at and not self._is_resting:
            self._sweep_at = self._clock.now() + _SWEEP_S
            _ = self._begin(self._entries.forget_ended, self._clock.wall(), self._max_bytes)  # `_note` gets the result

    def limit(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sweep_at = self._clock.now()

    def snapshot(self) -> CacheSnapshot:
        return CacheSnapshot(
            kind=self._kind,
            max_bytes=self._max_bytes,
            routes=dict(self._routes),
            evictions=self._evictions,
            failures=dict(self._failures),
        )

    async def close(self) -> None:
        """Finishes pending writes if the store responds in time. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._worker.close(self._entries.close, _CLOSE_S)

    @property
    def _is_resting(self) -> bool:
        """True after a failure; then one operation tries, and the others wait for none."""
        return self._is_closed or self._is_trying or self._clock.now() < self._rests_until

    def _begin(self, act: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        asked = self._worker.run(self._do, act, *args)
        asked.add_done_callback(self._note)
        return asked

    def _do(self, act: Callable[..., Any], *args: Any) -> Any:
        """Runs in the worker's thread."""
        try:
            return act(*args)
        finally:
            self._done += 1

    async def _ask(self, within_s: float, reason: str, act: Callable[..., Any], *args: Any) -> Any:
        return await self._wait(self._begin(act, *args), within_s, reason)

    async def _wait(self, asked: asyncio.Future[Any], within_s: float, reason: str) -> Any:
        """Returns the result; None after a failure or a timeout."""
        done = self._done
        self._is_trying = self._has_failed
        try:
            return await self._result(asked, within_s, reason, done)
        finally:
            self._is_trying = False

    async def _result(self, asked: asyncio.Future[Any], within_s: float, reason: str, done: int) -> Any:
        with contextlib.suppress(TimeoutError), self._clock.limit() as limit:
            limit.set(self._clock.now() + within_s, reason)
            await asyncio.wait((asked,))
        if not asked.done():
            self._note_late(within_s, is_busy=self._done > done)
            return None
        try:
            found = asked.result()
        except (StoreError, WorkerBusy) as error:
            self._fail(reason, str(error))
        except Exception as error:  # noqa: BLE001  # the call goes on without the cache
            self._fail(reason, f"{type(error).__name__}: {error}")
        else:
            self._has_failed = False
            return found
        return None

    def _note_late(self, within_s: float, *, is_busy: bool) -> None:
        """`is_busy`: other operations finished meanwhile, so the store is only slow, and is not paused."""
        if is_busy:
            self._failures["timeout"] += 1
        else:
            self._fail("timeout", f"no response within {within_s:g} s")

    def _is_too_much(self, is_much: bool) -> bool:
        """Counts an operation that is dropped because the queue is full. Does not pause the store: if it hangs,
        the operations that wait time out and do that."""
        if is_much:
            self._failures["queue_full"] += 1
        return is_much

    def _note(self, asked: asyncio.Future[Any]) -> None:
        """Takes the result, even if its waiter timed out."""
        if asked.cancelled() or asked.exception() is not None:
            return
        written = asked.result()
        if isinstance(written, EntriesChange):
            self._routes = written.routes
            self._evictions += written.evicted

    def _forget(self, size: int) -> None:
        self._unwritten -= size

    def _fail(self, reason: str, error: str) -> None:
        self._failures[reason] += 1
        if not self._is_resting:  # else already logged
            _log.warning("the cache is not used for a while after an error", error=error, seconds=REST_S)
        self._has_failed = True
        self._rests_until = self._clock.now() + REST_S
