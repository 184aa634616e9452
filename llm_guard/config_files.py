"""The files that a config names: keys of upstreams, certificates of the listener and of upstreams.

Ensures that a config only runs if all its files are usable, and reloads each file when it changes. `watched_files` does
the watching; `routing.key_files` and `tls` read the contents.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from llm_guard.clock import Clock, SystemClock
from llm_guard.config import (
    Config,
    ConfigError,
    Finding,
    GoogleSettings,
    KeyPath,
    ServerTls,
    UpstreamTls,
    dotted,
    load_config,
    problem_at,
)
from llm_guard.routing.key_files import KeyFiles
from llm_guard.tls import client_context, expires_at, server_context
from llm_guard.watched_files import BadFile, Contents, WatchedFiles, read_file

SERVER: KeyPath = ("server", "tls")

_SOON_S = 14 * 86_400.0
_DAY_S = 86_400.0

UseContext = Callable[[KeyPath, ssl.SSLContext | None], None]
_Rules = ServerTls | UpstreamTls
_Place = tuple[KeyPath, _Rules]


@dataclass(slots=True)
class _Tls:
    files: WatchedFiles[ssl.SSLContext]
    context: ssl.SSLContext
    watch: asyncio.Task[None] | None = None


class ConfigFiles:
    """The files of the running config. `prepare` blocks and may run in a thread; all else runs in the event loop."""

    def __init__(self, clock: Clock, use: UseContext) -> None:
        """`use` is called with each new TLS context and its config key: `server.tls` or `upstreams.X.tls`; with None if
        the key was removed from the config."""
        self.keys = KeyFiles(clock)
        self._clock = clock
        self._use = use
        self._tls: dict[_Place, _Tls] = {}
        self._checked: set[str] = set()
        """Files that libraries of clouds read, each time they need them; they have been readable once."""

    def prepare(self, config: Config, path: Path | None) -> None:
        """Reads the files of a config that are not in use yet: files in use may be absent during a reload. Raises
        ConfigError with all problems; `path` is the config's file."""
        problems = []
        for key, file in self.keys.missing(config):
            try:
                self.keys.open(file)
            except BadFile as bad:
                problems.append(problem_at(path, key, str(bad)))
        for place in _tls_of(config):
            if place not in self._tls:
                try:
                    self._tls[place] = self._open(*place)
                except BadFile as bad:
                    problems.append(problem_at(path, place[0], str(bad)))
        for key, file in _clouds_files_of(config):
            if file not in self._checked:
                try:
                    read_file(file)
                    self._checked.add(file)
                except BadFile as bad:
                    problems.append(problem_at(path, key, str(bad)))
        if problems:
            raise ConfigError(problems)

    def adopt(self, config: Config) -> None:
        """Watches the files of this config, and no others. They must be prepared."""
        self.keys.adopt(config)
        wanted = list(_tls_of(config))
        for place in [place for place in self._tls if place not in wanted]:
            gone = self._tls.pop(place)
            if gone.watch is not None:
                gone.watch.cancel()
                self._use(place[0], None)
        for place in wanted:
            tls = self._tls[place]
            if tls.watch is None:
                self._use(place[0], tls.context)
                tls.watch = asyncio.get_running_loop().create_task(tls.files.watch())

    def problems(self) -> dict[str, str | None]:
        """Returns the current problem of each file that is in use, by the file's purpose; None if it has none. While a
        file has a problem, its last good content stays in use."""
        found: list[WatchedFiles[ssl.SSLContext] | WatchedFiles[str]] = [tls.files for tls in self._tls.values()]
        return {files.what: files.problem for files in (*found, *self.keys.files())}

    async def stop(self) -> None:
        await self.keys.stop()
        watches = [tls.watch for tls in self._tls.values() if tls.watch is not None]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    def _open(self, key: KeyPath, rules: _Rules) -> _Tls:
        make, use = partial(_context, rules), partial(self._use, key)
        files = WatchedFiles(dotted(key), _files_of(rules), make, use, self._clock)
        return _Tls(files, files.load())


def load_with_files(path: Path) -> Config:
    """Loads a config and reads all files that it names. Blocks. Raises ConfigError."""
    config = load_config(path)
    ConfigFiles(SystemClock(), lambda _key, _context: None).prepare(config, path)
    return config


def expiry_warnings(config: Config, wall: float) -> Iterator[Finding]:
    """Yields warnings for certificates that have expired or expire within 14 days of `wall`, in epoch seconds."""
    for key, rules in _tls_of(config):
        left_s = None if rules.cert is None else _left_s(rules.cert, wall)
        if left_s is None or left_s > _SOON_S:
            continue
        state = "has expired" if left_s <= 0 else f"expires in {left_s / _DAY_S:.1f} days"
        effect = "clients refuse it" if key == SERVER else "the upstream refuses it"
        yield (*key, "cert"), f"the certificate in {rules.cert} {state}: {effect} then; renew it"


def _left_s(cert: str, wall: float) -> float | None:
    try:
        ends_at = expires_at(read_file(cert))
    except BadFile:
        return None
    return None if ends_at is None else ends_at - wall


def _context(rules: _Rules, contents: Contents) -> ssl.SSLContext:
    if isinstance(rules, ServerTls):
        return server_context(contents, rules.cert, rules.key, rules.client_ca)
    return client_context(contents, rules.ca, rules.cert, rules.key)


def _files_of(rules: _Rules) -> list[str]:
    ca = rules.client_ca if isinstance(rules, ServerTls) else rules.ca
    return [file for file in (rules.cert, rules.key, ca) if file is not None]


def _tls_of(config: Config) -> Iterator[_Place]:
    if config.server.tls is not None:
        yield SERVER, config.server.tls
    for name, upstream in config.upstreams.items():
        if upstream.tls is not None:
            yield ("upstreams", name, "tls"), upstream.tls


def _clouds_files_of(config: Config) -> Iterator[tuple[KeyPath, str]]:
    for name, upstream in config.upstreams.items():
        if isinstance(upstream.cloud, GoogleSettings) and upstream.cloud.credentials_file is not None:
            yield ("upstreams", name, "google", "credentials_file"), upstream.cloud.credentials_file
