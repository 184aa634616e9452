"""Saves and restores a state of the admin side, never on the event loop.

Writes one snapshot at a time. If a write fails, the gateway goes on, and a restart restores an older state.
`admin.persistence.operator_state` and `admin.monitor.series_buffer` define states, `storage.snapshot_file` the file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import msgspec
import structlog

from llm_guard.clock import Clock
from llm_guard.storage.snapshot_file import SnapshotFile, TakenOver
from llm_guard.worker_thread import WorkerThread, wait_at_most

_log = structlog.get_logger("llm_guard.admin.persistence.state_saver")

PATIENCE_S = 5.0
"""Seconds that the start and the end wait for the disk."""
AGAIN_S = 30.0
"""Seconds until the next write after one that failed."""

_REMEDY = "give each gateway a host name, or an ops.store, of its own"

_State = TypeVar("_State", bound=msgspec.Struct)


class StateSaver(Generic[_State]):
    """Life cycle: `await recall()` before the first call, then `look` periodically; `await close()` at the end."""

    def __init__(
        self,
        what: str,
        kind: type[_State],
        file: SnapshotFile,
        gather: Callable[[], _State],
        recall: Callable[[_State], None],
        clock: Clock,
        *,
        interval_s: float = 0.0,
        loss: str = "alerts and overrides",
    ) -> None:
        """`what`: name of the state in log lines; `kind`: its type, of which a default instance is empty; `interval_s`:
        least seconds between two writes; `loss`: what a restart would lose if a write failed."""
        self._what = what
        self._loss = loss
        self._file = file
        self._gather = gather
        self._recall = recall
        self._clock = clock
        self._interval_s = interval_s
        self._read = msgspec.json.Decoder(kind).decode
        self._thread = WorkerThread(what)
        self._last: _State | None = kind()
        """The state on the disk; no file counts as an empty state. None: the next one is written in any case."""
        self._writing: asyncio.Future[None] | None = None
        self._next_at = float("-inf")
        self._is_failing = False
        self._is_over = False

    async def recall(self) -> None:
        """Restores the saved state. If the file cannot be read, the gateway starts without it."""
        try:
            content = await wait_at_most(PATIENCE_S, self._thread.run(self._file.read), self._clock)
            if content is None:
                return
            self._last = None  # this process owns the file from here on
            self._recall(self._read(content))
        except TimeoutError:
            _log.error(f"{self._what} not restored: the disk of ops.store does not respond")
        except (OSError, msgspec.DecodeError) as error:
            _log.error(f"{self._what} not restored", error=_said(error))
        except Exception:  # noqa: BLE001  # the file may have been edited by hand; the gateway must start
            _log.exception(f"the {self._what} is only restored in part")

    def look(self, now: float) -> None:
        """Writes the state if it has changed."""
        if self._is_over or self._writing is not None or now < self._next_at:
            return
        kept = self._gather()
        if kept == self._last:
            return
        self._writing = self._thread.run(self._write, kept)
        self._writing.add_done_callback(partial(self._settle, kept))

    async def close(self) -> None:
        """Writes the state if it has changed, unless the disk takes too long."""
        self._next_at = float("-inf")
        try:
            with self._clock.limit() as limit:
                limit.set(self._clock.now() + PATIENCE_S, "kept")
                if self._writing is not None:
                    await asyncio.shield(self._writing)
                self.look(self._clock.now())
                if self._writing is not None:
                    await asyncio.shield(self._writing)
        except Exception as error:  # noqa: BLE001  # the rest must be stopped as well
            _log.error(
                f"{self._what} not saved: the latest changes are lost",
                error=_said(error) or "the disk does not respond",
            )
        self._is_over = True
        self._thread.shutdown()

    def _write(self, kept: _State) -> None:
        self._file.write(msgspec.json.encode(kept))

    def _settle(self, kept: _State, writing: asyncio.Future[None]) -> None:
        self._writing = None
        error = None if writing.cancelled() else writing.exception()
        if error is None:
            self._last, self._is_failing = kept, False
            self._next_at = self._clock.now() + self._interval_s
        elif isinstance(error, TakenOver):
            self._is_over = True
            _log.error(f"{self._what} not saved: another gateway with the same name uses the file", remedy=_REMEDY)
        else:
            self._next_at = self._clock.now() + AGAIN_S
            if not self._is_failing:
                self._is_failing = True
                _log.error(f"{self._what} not saved: a restart would lose {self._loss}", error=_said(error))


def _said(error: BaseException) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
