"""Which config is running, where it came from, and the ones before it: reload, roll back, and the watch on the file.

Owns the order of configs, and that a file is read beside the event loop. Does not own what a config says (`config`),
nor what is done to run by another one (`app`).
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import structlog

from llm_guard.clock import Clock
from llm_guard.config import Config, ConfigError, KeyChange, Tried, digest, key_changes, load_config, try_text

_log = structlog.get_logger("llm_guard.reloads")

_FIXED = frozenset(
    {"server.host", "server.port", "ops.host", "ops.port", "ops.store", "ops.log.format", "store.cache.kind"}
)

KEPT = 10
"""Configs that can be rolled back to, and lines of the history."""
_WATCH_S = 1.0

BY_ITSELF = {"file": "the file has changed", "signal": "SIGHUP"}
"""Who has a file read beside operators, and why."""

Adapt = Callable[[Config], Config]
How = Literal["start", "reload", "roll_back"]
Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Adopted:
    """A config that came to run."""

    config: Config = field(repr=False)
    how: How
    by: str
    at: float
    """Seconds since the epoch."""
    digest: str
    """Of all but its secrets."""
    changes: tuple[KeyChange, ...] = ()
    """To the one before."""

    @property
    def needs_restart(self) -> list[str]:
        """Changed keys that a running process cannot follow."""
        return [change.key for change in self.changes if change.key in _FIXED]


class NothingToDo(Exception):
    """There is no file to read, or no config to go back to; the text says so."""


class Reloads:
    """`watch` is to be run for as long as the gateway serves; all else is asked of it by operators and signals."""

    def __init__(
        self,
        config: Config,
        path: Path | None,
        adapt: Adapt,
        adopt: Callable[[Adopted], None],
        refuse: Callable[[tuple[str, ...]], None],
        clock: Clock,
    ) -> None:
        """`adopt` runs the gateway by a config, `refuse` hears of a file's problems. `path` None: there is no file.
        `adapt`: what the command line says over it."""
        self.path = path
        self.problems: tuple[str, ...] = ()
        """With the file, when it was read last."""
        self.history: deque[Adopted] = deque(maxlen=KEPT)
        """The latest last."""
        self._adapt = adapt
        self._adopt = adopt
        self._refuse = refuse
        self._clock = clock
        self._stamp = _stamp(path)
        self._turn = asyncio.Lock()
        self._checking = asyncio.Lock()
        self._is_asked = asyncio.Event()
        first = Adopted(config, "start", "start", clock.wall(), digest(config))
        self._undo: deque[Adopted] = deque([first], maxlen=KEPT)
        """The one that runs last, before it what can be gone back to."""
        self.history.append(first)

    @property
    def current(self) -> Adopted:
        return self.history[-1]

    @property
    def is_rolled_back(self) -> bool:
        """The file says something else, or did when it was read last: a restart, or its next change, undoes that."""
        return self.current.how == "roll_back"

    @property
    def can_roll_back_to(self) -> Adopted | None:
        return self._undo[-2] if len(self._undo) > 1 else None

    async def reload(self, by: str) -> Adopted:
        """Reads the file and runs by it. Raises ConfigError when it is invalid, NothingToDo when there is none: the
        config before it stays."""
        if self.path is None:
            raise NothingToDo("the config did not come from a file")
        async with self._turn:
            self._stamp = _stamp(self.path) or self._stamp
            try:
                adopted = await asyncio.to_thread(self._read, self.path, by)
            except asyncio.CancelledError:
                self._stamp = None  # whoever asked has left: the watch reads it
                raise
            except ConfigError as error:
                self.problems = tuple(str(error).splitlines())
                _log.error("reload refused, the old config stays", by=by, problems=list(self.problems))
                self._refuse(self.problems)
                raise
            self._run(adopted)
            self.problems = ()
            if adopted.changes:
                self._undo.append(adopted)
            else:
                self._undo[-1] = adopted
            return adopted

    async def roll_back(self, by: str) -> Adopted:
        """Runs by the config before; the file stays as it is, and is read again when it changes. Raises NothingToDo."""
        async with self._turn:
            before = self.can_roll_back_to
            if before is None:
                raise NothingToDo(f"there is no config before this one in memory; the last {KEPT} are kept")
            changes = await asyncio.to_thread(key_changes, self.current.config, before.config)
            adopted = Adopted(before.config, "roll_back", by, self._clock.wall(), before.digest, tuple(changes))
            self._run(adopted)
            self._undo.pop()
            return adopted

    async def check(self, text: str) -> Tried:
        """Whether a text would do as a config, as far as that can be said without the environment's values."""
        async with self._checking:  # one at a time, and no reload waits for it: a large text takes seconds
            return await asyncio.to_thread(try_text, text, "text", os.environ)

    def ask(self) -> None:
        """The watch reads the file as soon as it can."""
        self._is_asked.set()

    async def watch(self) -> None:
        """Reloads when the file changes. Polled: that works on every file system, and through symbolic links."""
        while True:
            by = "signal" if await self._is_asked_within(_WATCH_S) else "file"
            now = _stamp(self.path)
            if by == "signal" or (now is not None and now != self._stamp):
                try:
                    await self.reload(by)
                except (ConfigError, NothingToDo):
                    pass  # it has been said
                except Exception:  # noqa: BLE001  # the next change of the file may be a better one
                    _log.exception("a reload failed")

    async def _is_asked_within(self, seconds: float) -> bool:
        try:
            with self._clock.limit() as limit:
                limit.set(self._clock.now() + seconds, "watch")
                await self._is_asked.wait()
        except TimeoutError:
            return False
        self._is_asked.clear()
        return True

    def _read(self, path: Path, by: str) -> Adopted:
        config = self._adapt(load_config(path))
        changes = tuple(key_changes(self.current.config, config))
        return Adopted(config, "reload", by, self._clock.wall(), digest(config), changes)

    def _run(self, adopted: Adopted) -> None:
        try:
            self._adopt(adopted)
        except Exception as error:
            # Its own words may be of anything, secrets too.
            said = f"it is valid, but the gateway cannot run by it ({type(error).__name__}): the config before it stays"
            self.problems = (said,)
            self._refuse(self.problems)
            raise
        self.history.append(adopted)
        config = adopted.config
        if adopted.needs_restart:
            _log.warning("what has changed needs a restart", keys=adopted.needs_restart)
        how = "rolled back" if adopted.how == "roll_back" else "reloaded"
        _log.info(
            how, by=adopted.by, models=len(config.models), upstreams=len(config.upstreams), changes=len(adopted.changes)
        )  # fmt: skip


def _stamp(path: Path | None) -> Stamp | None:
    """None: there is no file, or it is being replaced."""
    try:
        stat = os.stat(path) if path is not None else None
    except OSError:
        return None
    return None if stat is None else (stat.st_mtime_ns, stat.st_size, stat.st_ino)
