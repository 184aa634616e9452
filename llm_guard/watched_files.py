"""Files whose content is used as long as it is good: read again when it changes, the last good one kept when it does
not do.

Owns when a file is read and what is said of it. Does not own what is in it. Reading is polled and compares contents:
that works on every file system, and through the symbolic links that Kubernetes swaps.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from llm_guard.clock import Clock

_log = structlog.get_logger("llm_guard.watched_files")

POLL_S = 1.0
_SETTLE_S = 0.1
"""Two reads this far apart must agree: what is being written is not used by half."""
_SETTLE_READS = 10
_MAX_BYTES = 1 << 20

Contents = Mapping[str, bytes]
"""By path."""
_Product = TypeVar("_Product")


class BadFile(Exception):
    """A file that cannot be used. The text says which and why, and never quotes it."""


class WatchedFiles(Generic[_Product]):
    """Some files that are used together, and what is made of them."""

    def __init__(
        self,
        what: str,
        paths: Sequence[str],
        make: Callable[[Contents], _Product],
        adopt: Callable[[_Product], None],
        clock: Clock,
    ) -> None:
        """`what` stands for them in the log. `make` runs in a thread and raises BadFile, `adopt` in the event loop."""
        self.what = what
        self.problem: str | None = None
        """What is wrong with the files now; None: they are in use as they are."""
        self._paths = tuple(paths)
        self._make = make
        self._adopt = adopt
        self._clock = clock
        self._seen = b""
        """Digest of the contents that were tried last."""
        self._is_seen_good = True
        """They were made use of."""
        self._turn = asyncio.Lock()

    def load(self) -> _Product:
        """Reads the files for the first time. It blocks. Raises BadFile."""
        contents = _read(self._paths)
        self._seen = _digest(contents)
        return self._make(contents)

    async def watch(self) -> None:
        """Follows the files until it is cancelled."""
        while True:
            await self._clock.sleep(POLL_S)
            try:
                await self.refresh()
            except Exception as error:  # noqa: BLE001  # the next look may do better, and must come
                self._note(f"{self.what} cannot be read: {type(error).__name__}")

    async def refresh(self) -> None:
        """Uses what the files hold now, if that is new and good."""
        async with self._turn:
            try:
                contents = await self._settled()
                if contents is not None:
                    await self._try(contents)
            except BadFile as bad:
                self._note(str(bad))

    async def _try(self, contents: Contents) -> None:
        """Raises BadFile. Cancelled, it has not seen them: a call that looks may be given up at any time."""
        try:
            product = await asyncio.to_thread(self._make, contents)
        except BadFile:
            self._seen, self._is_seen_good = _digest(contents), False
            raise
        self._seen, self._is_seen_good = _digest(contents), True
        self.problem = None
        self._adopt(product)
        _log.info("changed files are in use", what=self.what)

    async def _settled(self) -> Contents | None:
        """New contents that no longer change; None: there are none. Raises BadFile."""
        contents = await asyncio.to_thread(_read, self._paths)
        for _ in range(_SETTLE_READS):
            if _digest(contents) == self._seen:
                self._end_absence()
                return None
            await self._clock.sleep(_SETTLE_S)
            before, contents = contents, await asyncio.to_thread(_read, self._paths)
            if before == contents:
                return contents
        return None

    def _end_absence(self) -> None:
        """A file that could not be read is back, with what it held before."""
        if self.problem is not None and self._is_seen_good:
            self.problem = None
            _log.info("files can be read again", what=self.what)

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            _log.error("changed files cannot be used, the last good ones stay in use", what=self.what, problem=problem)
        self.problem = problem


def _read(paths: Sequence[str]) -> Contents:
    """Raises BadFile."""
    return {path: read_file(path) for path in paths}


def read_file(path: str) -> bytes:
    """At most 1 MiB. Raises BadFile."""
    try:
        if not Path(path).is_file():
            raise BadFile(f"{path} is no file" if Path(path).exists() else f"{path} does not exist")
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
