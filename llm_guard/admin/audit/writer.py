"""Writes changes to the audit trail, in a thread, so that the event loop never waits for the disk.

A change that cannot be written is logged, kept in memory, and written with the next one. `storage.audit_log` has the
file.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

import msgspec
import structlog

from llm_guard.admin.http.endpoint import Refused
from llm_guard.clock import Clock
from llm_guard.storage.audit_log import AuditFile, Entry
from llm_guard.storage.errors import StoreError
from llm_guard.worker_thread import WorkerThread, wait_at_most

_log = structlog.get_logger("llm_guard.admin.audit.writer")

KEPT = 1000
"""Most unwritten entries kept in memory; the log has all of them."""
PATIENCE_S = 5.0
"""Seconds that a response to an operator waits for the disk."""
MOST_READING = 8
"""Most concurrent reads; an abandoned one counts until the disk has answered."""
_MOST_WAITING = 100

WriteResult = asyncio.Future[str | None]
"""Result of a write: why it is not on the disk, or None if it is."""


class AuditWriter:
    """Used from one event loop; `await close()` at its end."""

    def __init__(self, file: AuditFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._thread = WorkerThread("audit")
        self._unwritten: deque[Entry] = deque(maxlen=KEPT)
        self._waiting: list[Entry] = []
        """Entries in the thread's queue."""
        self._reading = 0
        self._is_closed = False

    def add(self, entry: Entry) -> WriteResult:
        """Queues an entry, in order. Returns a future with the result."""
        if self._is_closed:
            return self._refuse(entry, "the gateway has stopped")
        if len(self._waiting) >= _MOST_WAITING or self._thread.is_full:
            return self._refuse(entry, f"{len(self._waiting)} changes already wait for the disk")
        entries = [*self._unwritten, entry]
        self._unwritten.clear()
        self._waiting += entries
        written = self._thread.run(_append, self._file, entries)
        written.add_done_callback(partial(self._settle, entries))
        return written

    async def wait_written(self, written: WriteResult) -> str | None:
        """Returns the future's result. After five seconds it returns a problem instead, though the write may still
        succeed."""
        try:
            return await wait_at_most(PATIENCE_S, asyncio.shield(written), self._clock)
        except TimeoutError:
            _log.error("the disk of the audit trail does not respond", pending=len(self._waiting))
            return f"the disk has not responded in {PATIENCE_S:g} s; the write may still succeed"

    async def latest(self, limit: int, before: int | None) -> list[Entry]:
        """Returns the newest entries first, unwritten ones before all others. Raises Refused if the file cannot be
        read, or too many reads are pending."""
        if self._reading >= MOST_READING:
            why = f"{self._reading} reads of the disk of ops.store are already pending: check the disk; "
            raise Refused(503, "audit_busy", why + self._kept(), (("Retry-After", f"{PATIENCE_S:.0f}"),))
        reading = self._thread.run(self._file.latest, limit, before)
        self._reading += 1
        reading.add_done_callback(self._note_read)
        try:
            found = await wait_at_most(PATIENCE_S, asyncio.shield(reading), self._clock)
        except (StoreError, TimeoutError) as error:
            why = f"{error}" or f"the disk has not responded in {PATIENCE_S:g} s"
            raise Refused(503, "audit_unreadable", f"{why}; {self._kept()}") from None
        new = [*self._unwritten, *self._waiting] if before is None else []
        return [*reversed(new), *found][:limit]

    async def close(self) -> None:
        """Closes the file after pending writes, if the disk answers in time. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._thread.close(self._file.close, PATIENCE_S)

    def _note_read(self, _reading: asyncio.Future[list[Entry]]) -> None:
        self._reading -= 1

    def _kept(self) -> str:
        return f"{len(self._unwritten) + len(self._waiting)} changes are not written yet; the log has them"

    def _settle(self, entries: list[Entry], written: WriteResult) -> None:
        del self._waiting[: len(entries)]  # writes finish in the order in which they were queued
        if written.cancelled() or (why := written.result()) is None:
            return
        self._keep(entries, why)

    def _refuse(self, entry: Entry, why: str) -> WriteResult:
        self._keep([entry], why)
        refused: WriteResult = asyncio.get_running_loop().create_future()
        refused.set_result(why)
        return refused

    def _keep(self, entries: list[Entry], why: str) -> None:
        """Keeps entries that could not be written. Logs the last one; the others were logged before."""
        self._unwritten.extend(entries)
        _log.error("change not written to the audit trail", error=why, entry=msgspec.to_builtins(entries[-1]))


def _append(file: AuditFile, entries: list[Entry]) -> str | None:
    try:
        file.append(entries)
    except StoreError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  # no error may lose the entries
        return f"{type(error).__name__}: {error}"
    return None
