"""Reloads files when their content changes, and keeps the last good content if the new one is invalid.

Polls and compares contents, which works on every file system and through the symbolic links that Kubernetes swaps.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from llm_guard.clock import Clock
from llm_guard.worker_thread import WorkerThread

_log = structlog.get_logger("llm_guard.watched_files")

POLL_S = 1.0
_SETTLE_S = 0.1
"""Two reads this far apart must agree, so that a half-written file is not used."""
_SETTLE_READS = 10
_MAX_BYTES = 1 << 20

Contents = Mapping[str, bytes]
"""Contents by path."""
_Product = TypeVar("_Product")


class BadFile(Exception):
    """Raised for a file that cannot be used. The message says which and why, and never quotes its content."""


class WatchedFiles(Generic[_Product]):
    """Files that are used together, such as certificate and key, and the object made from them."""

    def __init__(
        self,
        what: str,
        paths: Sequence[str],
        make: Callable[[Contents], _Product],
        adopt: Callable[[_Product], None],
        clock: Clock,
    ) -> None:
        """`what` is their name in the log. `make` runs in a thread and may raise BadFile; `adopt` runs in the event
        loop."""
        self.what = what
        self.problem: str | None = None
        """Current problem with the files; None if their current content is in use."""
        self._paths = tuple(paths)
        self._make = make
        self._adopt = adopt
        self._clock = clock
        self._seen = b""
        """Digest of the contents that were tried last."""
        self._is_seen_good = True
        """True if those contents are in use."""
        self._thread = WorkerThread("files")
        self._turn = asyncio.Lock()

    def load(self) -> _Product:
        """Reads the files for the first time. Blocks. Raises BadFile."""
        contents = _read(self._paths)
        self._seen = _digest(contents)
        return self._make(contents)

    async def watch(self) -> None:
        """Watches the files until it is cancelled."""
        while True:
            await self._clock.sleep(POLL_S)
            try:
                await self.refresh()
            except Exception as error:  # noqa: BLE001  # the watch must go on: the next read may succeed
                self._note(f"{self.what} cannot be read: {type(error).__name__}")

    async def refresh(self) -> None:
        """Reads the files, and puts their content into use if it is new and valid."""
        async with self._turn:
            try:
                contents = await self._settled()
                if contents is not None:
                    await self._try(contents)
            except BadFile as bad:
                self._note(str(bad))

    async def _try(self, contents: Contents) -> None:
        """Puts contents into use. Raises BadFile. If cancelled, the contents count as not yet tried: a call that waits
        for a refresh may be cancelled at any time."""
        try:
            product = await self._thread.run(self._make, contents)
        except BadFile:
            self._seen, self._is_seen_good = _digest(contents), False
            raise
        self._seen, self._is_seen_good = _digest(contents), True
        self.problem = None
        self._adopt(product)
        _log.info("changed files are in use", purpose=self.what)

    async def _settled(self) -> Contents | None:
        """Returns new contents that have stopped changing; None if there are none. Raises BadFile."""
        contents = await self._thread.run(_read, self._paths)
        for _ in range(_SETTLE_READS):
            if _digest(contents) == self._seen:
                self._end_absence()
                return None
            await self._clock.sleep(_SETTLE_S)
            before, contents = contents, await self._thread.run(_read, self._paths)
            if before == contents:
                return contents
        return None

    def _end_absence(self) -> None:
        """Clears the problem of files that can be read again, with unchanged content."""
        if self.problem is not None and self._is_seen_good:
            self.problem = None
            _log.info("files can be read again", purpose=self.what)

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            _log.error("changed files cannot be used, the last good ones stay in use", purpose=self.what, error=problem)
        self.problem = problem


def _read(paths: Sequence[str]) -> Contents:
    """Reads all files. Raises BadFile."""
    return {path: read_file(path) for path in paths}


def read_file(path: str) -> bytes:
    """Reads a file of at most 1 MiB. Raises BadFile."""
    try:
        if not Path(path).is_file():
            raise BadFile(f"{path} is not a file" if Path(path).exists() else f"{path} does not exist")
        with Path(path).open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or type(error).__name__}") from None
    if len(content) > _MAX_BYTES:
        raise BadFile(f"{path} is larger than 1 MiB")
    return content


def _digest(contents: Contents) -> bytes:
    found = hashlib.sha256()
    for path, content in contents.items():
        found.update(f"{path}\n{len(content)}\n".encode())
        found.update(content)
    return found.digest()
