"""The way of a change into the audit trail: in a thread, so that the event loop never waits for the disk.

Owns what becomes of a change that cannot be written: it is logged, kept in memory, and written with the next one. Does
not own the file (`store.audit`), nor what is a change (`ops.changes`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

import msgspec
import structlog

from llm_guard.clock import Clock
from llm_guard.ops.pages import Refused
from llm_guard.store.audit import AuditFile, Entry
from llm_guard.store.errors import StoreError
from llm_guard.store.worker import Worker

_log = structlog.get_logger("llm_guard.ops.trail")

KEPT = 1000
"""Entries that could not be written; the log has them all."""
PATIENCE_S = 5.0
"""So long an operator's answer waits for the disk."""
MOST_READING = 8
"""At once; who is no longer waited for counts until the disk has answered."""
_MOST_WAITING = 100

Written = asyncio.Future[str | None]
"""Why it is not on the disk; None: it is."""


class Trail:
    """Of one event loop; `await close()` at its end."""

    def __init__(self, file: AuditFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._thread = Worker("audit")
        self._unwritten: deque[Entry] = deque(maxlen=KEPT)
        self._waiting: list[Entry] = []
        """For the disk."""
        self._reading = 0
        self._is_closed = False

    def add(self, entry: Entry) -> Written:
        """On its way when this returns, behind those before it."""
        if self._is_closed:
            return self._refuse(entry, "the gateway has stopped")
        if len(self._waiting) >= _MOST_WAITING or self._thread.is_full:
            return self._refuse(entry, f"{len(self._waiting)} changes wait for the disk already")
        entries = [*self._unwritten, entry]
        self._unwritten.clear()
        self._waiting += entries
        written = asyncio.get_running_loop().run_in_executor(self._thread, _append, self._file, entries)
        written.add_done_callback(partial(self._settle, entries))
        return written

    async def wait_written(self, written: Written) -> str | None:
        """As the future says; a disk that has not answered in five seconds is not waited for, though it may yet."""
        try:
            with self._clock.limit() as limit:
                limit.set(self._clock.now() + PATIENCE_S, "audit")
                return await asyncio.shield(written)
        except TimeoutError:
            _log.error("the disk of the audit trail does not answer", waiting=len(self._waiting))
            return f"the disk has not answered in {PATIENCE_S:g} s; it is still waited for"

    async def latest(self, limit: int, before: int | None) -> list[Entry]:
        """The newest first, those that are not on the disk before all others. Raises Refused when it cannot be read, or
        too many wait for that."""
        if self._reading >= MOST_READING:
            why = f"{self._reading} questions wait for the disk of ops.store already: look whether it answers; "
            raise Refused(503, "audit_busy", why + self._kept(), (("Retry-After", f"{PATIENCE_S:.0f}"),))
        reading = asyncio.get_running_loop().run_in_executor(self._thread, self._file.latest, limit, before)
        self._reading += 1
        reading.add_done_callback(self._note_read)
        try:
            with self._clock.limit() as scope:
                scope.set(self._clock.now() + PATIENCE_S, "audit")
                found = await asyncio.shield(reading)
        except (StoreError, TimeoutError) as error:
            why = f"{error}" or f"the disk has not answered in {PATIENCE_S:g} s"
            raise Refused(503, "audit_unreadable", f"{why}; {self._kept()}") from None
        new = [*self._unwritten, *self._waiting] if before is None else []
        return [*reversed(new), *found][:limit]

    async def close(self) -> None:
        """What is on its way is written, if the disk answers in time. A second time does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        closed = asyncio.get_running_loop().run_in_executor(self._thread, self._file.close)
        await asyncio.wait((closed,), timeout=PATIENCE_S)
        self._thread.shutdown()

    def _note_read(self, reading: asyncio.Future[list[Entry]]) -> None:
        self._reading -= 1
        if not reading.cancelled():
            reading.exception()  # whoever asked may have left

    def _kept(self) -> str:
        return f"{len(self._unwritten) + len(self._waiting)} changes wait to be written; the log has them"

    def _settle(self, entries: list[Entry], written: Written) -> None:
        del self._waiting[: len(entries)]  # they come back in the order in which they went
        if written.cancelled() or (why := written.result()) is None:
            return
        self._keep(entries, why)

    def _refuse(self, entry: Entry, why: str) -> Written:
        self._keep([entry], why)
        refused: Written = asyncio.get_running_loop().create_future()
        refused.set_result(why)
        return refused

    def _keep(self, entries: list[Entry], why: str) -> None:
        """The last of them is new; the others were logged when it was their turn."""
        self._unwritten.extend(entries)
        _log.error("not in the audit trail", problem=why, entry=msgspec.to_builtins(entries[-1]))


def _append(file: AuditFile, entries: list[Entry]) -> str | None:
    try:
        file.append(entries)
    except StoreError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  # whatever it is, the entries must not be lost
        return f"{type(error).__name__}: {error}"
    return None
