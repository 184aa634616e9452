"""Keys in files (`upstreams.X.api_key_file`): one key pool per file, for all upstreams and configs that name it.

Each file is read with the config, and again when it changes (`watched_files`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from functools import partial

from llm_guard.clock import Clock
from llm_guard.config import Config, KeyPath
from llm_guard.routing.api_keys import ApiKey, KeyPool
from llm_guard.watched_files import BadFile, Contents, WatchedFiles

STANDBY_S = 600.0
"""For this long after a change the previous key is tried if the new one is refused: providers take a while to accept a
new key, and the file may change while the old one is still valid."""
_MOST_STANDBYS = 3
_REREAD_S = 2.0
"""The longest that a call waits for its file to be read again after its key was refused."""
_KEY = re.compile(rb"[\x21-\x7e]{1,8192}")


class KeyFiles:
    """The key files in use. `open` blocks and may run in a thread; all else runs in the event loop."""

    def __init__(self, clock: Clock) -> None:
        self.pools: dict[str, KeyPool] = {}
        """Key pools by file path."""
        self._clock = clock
        self._files: dict[str, WatchedFiles[str]] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}

    def missing(self, config: Config) -> Iterator[tuple[KeyPath, str]]:
        """Yields the config's files that are not open yet, each with the config key that names it."""
        for name, upstream in config.upstreams.items():
            if upstream.api_key_file is not None and upstream.api_key_file not in self.pools:
                yield ("upstreams", name, "api_key_file"), upstream.api_key_file

    def open(self, path: str) -> None:
        """Reads a file and creates its pool. Raises BadFile."""
        pool: KeyPool
        file = WatchedFiles(path, [path], key_in, lambda secret: self._change(pool, secret), self._clock)
        pool = KeyPool([ApiKey("file", file.load())], is_ranked=True, reread=partial(self._reread, file))
        self._files[path], self.pools[path] = file, pool

    def adopt(self, config: Config) -> None:
        """Watches the files of this config, and no others."""
        wanted = {upstream.api_key_file for upstream in config.upstreams.values()}
        for path in [path for path in self.pools if path not in wanted]:
            del self.pools[path], self._files[path]
            if path in self._watches:
                self._watches.pop(path).cancel()
        for path, file in self._files.items():
            if path not in self._watches:
                self._watches[path] = asyncio.get_running_loop().create_task(file.watch())

    def files(self) -> Iterable[WatchedFiles[str]]:
        """Returns the files that are watched."""
        return self._files.values()

    async def stop(self) -> None:
        watches = list(self._watches.values())
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    def _change(self, pool: KeyPool, secret: str) -> None:
        """Puts the new key first; the previous one stays as a standby for a while. So do those before it: a file that
        was half written for a moment, or changed twice, must not displace the key that the provider accepts."""
        before = pool.first
        if secret == before.secret:
            return
        # The same objects: running calls recognise a key that failed.
        standbys = [key for key in pool.keys if key.secret != secret][:_MOST_STANDBYS]
        for place, key in enumerate(standbys, 1):
            key.name = "file, before" if place == 1 else f"file, {place} before"
        pool.keys = (ApiKey("file", secret), *standbys)
        self._clock.call_at(self._clock.now() + STANDBY_S, partial(_retire, pool, before))

    async def _reread(self, file: WatchedFiles[str]) -> None:
        try:
            with self._clock.limit() as limit:
                limit.set(self._clock.now() + _REREAD_S, "key file")
                await file.refresh()
        except TimeoutError:
            pass  # the disk does not respond: the watch reports the problem


def key_in(contents: Contents) -> str:
    """Returns the key in a file that contains nothing else. Raises BadFile."""
    ((path, content),) = contents.items()
    key = content.strip()
    if not key:
        raise BadFile(f"{path} is empty; it must contain the key")
    if _KEY.fullmatch(key) is None:
        raise BadFile(f"{path} must contain one key and nothing else: printable ASCII on one line, without spaces")
    return key.decode("ascii")


def _retire(pool: KeyPool, key: ApiKey) -> None:
    pool.keys = tuple(api_key for api_key in pool.keys if api_key is not key)
