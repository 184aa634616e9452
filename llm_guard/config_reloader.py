"""Reloads and rolls back the config: keeps the running one, its history, and watches the config file.

Files are read in a thread, so that the event loop does not block. `app` applies a config.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

import structlog

from llm_guard.clock import Clock
from llm_guard.config import (
    Config,
    ConfigError,
    DryCheckResult,
    KeyChange,
    digest,
    key_changes,
    load_config,
    parse_config,
    try_text,
)
from llm_guard.worker_thread import WorkerThread

_log = structlog.get_logger("llm_guard.config_reloader")

_FIXED = frozenset(
    {
        "server.host",
        "server.port",
        "server.workers",
        "ops.host",
        "ops.port",
        "ops.store",
        "ops.log.format",
        "store.cache.kind",
        "store.calls.kind",
        "store.objects.kind",
        "fleet",
        "fleet.store",
        "fleet.name",
    }
)

KEPT = 10
"""Number of configs that are kept for rollbacks, and of history entries."""
_WATCH_S = 1.0

BY_ITSELF = {"file": "the file has changed", "signal": "SIGHUP"}
"""Initiators of a reload other than operators, with the reason for the audit trail."""

AdaptConfig = Callable[[Config], Config]
AdoptionCause = Literal["start", "reload", "rollback"]
Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Adopted:
    """A config that was put into use."""

    config: Config = field(repr=False)
    how: AdoptionCause
    by: str
    at: float
    """Seconds since the epoch."""
    changes: tuple[KeyChange, ...] = ()
    """Changes from the config before it."""

    @cached_property
    def digest(self) -> str:
        """Digest of the config without its secrets."""
        return digest(self.config)

    @property
    def needs_restart(self) -> list[str]:
        """Changed keys that take effect only after a restart."""
        return [change.key for change in self.changes if change.key in _FIXED]


class NothingToDo(Exception):
    """Raised if there is no file to read, or no config to roll back to; the message says which."""


class ReloadAgreement(Protocol):
    """Ensures that several processes use the same config; implemented by `workers.agreement`."""

    async def text(self) -> str:
        """Returns the text of the config file. Raises ConfigError."""
        ...

    async def agree(self, adopted: Adopted) -> None:
        """Returns once all processes have read this config, so that it can be used. Raises ConfigError if one of them
        cannot use it."""
        ...


class ConfigReloader:
    """The running config and its history. `watch` runs as long as the gateway; operators and signals call the rest."""

    def __init__(
        self,
        config: Config,
        path: Path | None,
        adapt: AdaptConfig,
        adopt: Callable[[Adopted], None],
        refuse: Callable[[tuple[str, ...]], None],
        clock: Clock,
        agreement: ReloadAgreement | None = None,
    ) -> None:
        """`adopt` puts a config into use, `refuse` gets the problems of a file, and `adapt` applies the command line's
        overrides. `path` is None if the config did not come from a file; `agreement` if this process is alone."""
        self.path = path
        self.problems: tuple[str, ...] = ()
        """Problems of the file at its last reading."""
        self.history: deque[Adopted] = deque(maxlen=KEPT)
        """Configs that were in use, the latest last."""
        self._adapt = adapt
        self._adopt = adopt
        self._refuse = refuse
        self._clock = clock
        self._agreement = agreement
        self._stamp = _stamp(path)
        self._thread = WorkerThread("config file")
        self._turn = asyncio.Lock()
        self._checking = asyncio.Lock()
        self._is_asked = asyncio.Event()
        first = Adopted(config, "start", "start", clock.wall())
        self._undo: deque[Adopted] = deque([first], maxlen=KEPT)
        """The running config at the end, before it those that can be rolled back to."""
        self.history.append(first)

    @property
    def current(self) -> Adopted:
        return self.history[-1]

    @property
    def is_rolled_back(self) -> bool:
        """True after a rollback: the file has another config, which its next change or a restart puts into use."""
        return self.current.how == "rollback"

    @property
    def rollback_target(self) -> Adopted | None:
        return self._undo[-2] if len(self._undo) > 1 else None

    async def reload(self, by: str) -> Adopted:
        """Reads the file and puts it into use. Raises ConfigError if it is invalid and NothingToDo if there is none;
        the running config then stays."""
        if self.path is None:
            raise NothingToDo("the config did not come from a file")
        return await self._made(self._reload(self.path, by))

    async def rollback(self, by: str) -> Adopted:
        """Puts the previous config into use; the file is not changed, and read when it changes. Raises NothingToDo, and
        ConfigError if not all processes can use it."""
        return await self._made(self._roll_back(by))

    async def _made(self, change: Coroutine[None, None, Adopted]) -> Adopted:
        """Waits for a change. One that other processes make, too, goes on if its request is cancelled."""
        return await (change if self._agreement is None else asyncio.shield(change))

    async def _reload(self, path: Path, by: str) -> Adopted:
        async with self._turn:
            self._stamp = _stamp(path) or self._stamp
            try:
                text = None if self._agreement is None else await self._agreement.text()
                adopted = await self._thread.run(self._read, path, by, text)
                await self._agree(adopted)
            except asyncio.CancelledError:
                self._stamp = None  # the request was cancelled: the watch reads the file instead
                raise
            except ConfigError as error:
                self.problems = tuple(str(error).splitlines())
                _log.error(
                    "reload failed: the new config is invalid, the old one stays in use",
                    trigger=by,
                    errors=list(self.problems),
                )
                self._refuse(self.problems)
                raise
            self._run(adopted)
            self.problems = ()
            if adopted.changes:
                self._undo.append(adopted)
            else:
                self._undo[-1] = adopted
            return adopted

    async def _roll_back(self, by: str) -> Adopted:
        async with self._turn:
            before = self.rollback_target
            if before is None:
                raise NothingToDo(f"there is no earlier config in memory to roll back to; the last {KEPT} are kept")
            changes = await WorkerThread("config").run(key_changes, self.current.config, before.config)
            adopted = Adopted(before.config, "rollback", by, self._clock.wall(), tuple(changes))
            await self._agree(adopted)
            self._run(adopted)
            self._undo.pop()
            return adopted

    async def check(self, text: str) -> DryCheckResult:
        """Validates a text as a config, as far as that is possible without the environment's values."""
        async with self._checking:  # one at a time, and not under `_turn`: a large text takes seconds
            return await WorkerThread("config check").run(try_text, text, "text", os.environ)

    def ask(self) -> None:
        """Requests a reload, which `watch` makes as soon as possible."""
        self._is_asked.set()

    async def watch(self) -> None:
        """Reloads the file when it changes. Polls, which works on every file system and through symbolic links."""
        while True:
            by = "signal" if await self._is_asked_within(_WATCH_S) else "file"
            now = _stamp(self.path)
            if by == "signal" or (now is not None and now != self._stamp):
                try:
                    await self.reload(by)
                except (ConfigError, NothingToDo):
                    pass  # already logged
                except Exception:  # noqa: BLE001  # the watch must go on: the next change of the file may be good
                    _log.exception("unexpected error in a reload")

    async def _is_asked_within(self, seconds: float) -> bool:
        try:
            with self._clock.limit() as limit:
                limit.set(self._clock.now() + seconds, "watch")
                await self._is_asked.wait()
        except TimeoutError:
            return False
        self._is_asked.clear()
        return True

    async def _agree(self, adopted: Adopted) -> None:
        if self._agreement is not None:
            await self._agreement.agree(adopted)

    def _read(self, path: Path, by: str, text: str | None) -> Adopted:
        """`text`: that of the file; None: it is read here."""
        config = self._adapt(load_config(path) if text is None else parse_config(text, os.fspath(path)))
        changes = tuple(key_changes(self.current.config, config))
        return Adopted(config, "reload", by, self._clock.wall(), changes)

    def _run(self, adopted: Adopted) -> None:
        try:
            self._adopt(adopted)
        except Exception as error:
            # The exception's text is left out: it may contain secrets.
            said = f"the config is valid but could not be applied ({type(error).__name__}): the old one stays in use"
            self.problems = (said,)
            self._refuse(self.problems)
            raise
        self.history.append(adopted)
        config = adopted.config
        if adopted.needs_restart:
            _log.warning("changed keys need a restart", keys=adopted.needs_restart)
        how = "rolled back" if adopted.how == "rollback" else "reloaded"
        _log.info(
            how, trigger=adopted.by, models=len(config.models), upstreams=len(config.upstreams),
            changes=len(adopted.changes),
        )  # fmt: skip


def _stamp(path: Path | None) -> Stamp | None:
    """Returns the file's time, size and inode; None if there is no file, or it is being replaced."""
    try:
        stat = os.stat(path) if path is not None else None
    except OSError:
        return None
    return None if stat is None else (stat.st_mtime_ns, stat.st_size, stat.st_ino)
