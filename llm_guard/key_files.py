"""Keys in files (`upstreams.X.api_key_file`): each file read when the config is, and again when it changes.

Owns one pool per file, for all upstreams and configs that name it. Does not own how a file is followed
(`watched_files`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from functools import partial

from llm_guard.api_keys import ApiKey, KeyPool
from llm_guard.clock import Clock
from llm_guard.config import Config, KeyPath
from llm_guard.watched_files import BadFile, Contents, WatchedFiles

STANDBY_S = 600.0
"""How long the key before the last one is tried where the new one is refused: providers take a while to accept a new
key, and the file may change before the old one has ended."""
_REREAD_S = 2.0
"""The longest that a call waits for the file when its key was refused."""
_KEY = re.compile(rb"[\x21-\x7e]{1,8192}")


class KeyFiles:
    """`open` blocks and may run in a thread; all else runs in the event loop."""

    def __init__(self, clock: Clock) -> None:
        self.pools: dict[str, KeyPool] = {}
        """By path."""
        self._clock = clock
        self._files: dict[str, WatchedFiles[str]] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}

    def missing(self, config: Config) -> Iterator[tuple[KeyPath, str]]:
        """The files of a config that have not been opened, each with the key that names it."""
        for name, upstream in config.upstreams.items():
            if upstream.api_key_file is not None and upstream.api_key_file not in self.pools:
                yield ("upstreams", name, "api_key_file"), upstream.api_key_file

    def open(self, path: str) -> None:
        """Reads a file. Raises BadFile."""
        pool: KeyPool
        file = WatchedFiles(path, [path], key_in, lambda secret: self._change(pool, secret), self._clock)
        pool = KeyPool([ApiKey("file", file.load())], is_ranked=True, reread=partial(self._reread, file))
        self._files[path], self.pools[path] = file, pool

    def adopt(self, config: Config) -> None:
        """Follows the files of this config, and no others."""
        wanted = {upstream.api_key_file for upstream in config.upstreams.values()}
        for path in [path for path in self.pools if path not in wanted]:
            del self.pools[path], self._files[path]
            if path in self._watches:
                self._watches.pop(path).cancel()
        for path, file in self._files.items():
            if path not in self._watches:
                self._watches[path] = asyncio.get_running_loop().create_task(file.watch())

    def files(self) -> Iterable[WatchedFiles[str]]:
        """Those that are followed."""
        return self._files.values()

    async def stop(self) -> None:
        watches = list(self._watches.values())
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    def _change(self, pool: KeyPool, secret: str) -> None:
        """The new key goes first; the one before it stands by for a while."""
        before = pool.first
        if secret == before.secret:
            return
        before.name = "file, before"
        pool.keys = (ApiKey("file", secret), before)  # the same object: calls know which key has failed them
        self._clock.call_at(self._clock.now() + STANDBY_S, partial(_retire, pool, before))

    async def _reread(self, file: WatchedFiles[str]) -> None:
        try:
            with self._clock.limit() as limit:
                limit.set(self._clock.now() + _REREAD_S, "key file")
                await file.refresh()
        except TimeoutError:
            pass  # a disk that does not answer: the watch says what comes of it


def key_in(contents: Contents) -> str:
    """The key in a file that holds nothing else. Raises BadFile."""
    ((path, content),) = contents.items()
    key = content.strip()
    if not key:
        raise BadFile(f"{path} is empty; write the key into it")
    if _KEY.fullmatch(key) is None:
        raise BadFile(f"{path} must hold one key and nothing else: printable ASCII on one line, without spaces")
    return key.decode("ascii")


def _retire(pool: KeyPool, key: ApiKey) -> None:
    pool.keys = tuple(each for each in pool.keys if each is not key)
