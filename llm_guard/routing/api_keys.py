"""The pool of API keys of an upstream that has several, or one in a file.

`resilience.retry.key_selection` selects a key for a call, `routing.key_files` reads key files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping

from llm_guard.config import UpstreamConfig, key_names
from llm_guard.outcome import Failure, FailureKind

POOLED = "key "
"""Prefix of the accounts of pool keys. Each such account has its own concurrency limit."""

Reread = Callable[[], Awaitable[None]]


class ApiKey:
    """One API key. Compares by identity: a reload creates a new object."""

    __slots__ = ("account", "digest", "in_flight", "last_use", "name", "secret")

    def __init__(self, name: str, secret: str, account: str = "") -> None:
        self.name = name
        """Name in logs and on pages, in place of the key."""
        self.secret = secret
        self.digest = hashlib.sha256(secret.encode()).hexdigest()
        self.account = account
        """Account of its gate; empty if all keys of the upstream share one gate."""
        self.in_flight = 0
        self.last_use = 0

    def __repr__(self) -> str:
        return f"ApiKey({self.name!r})"


class KeyPool:
    """The keys of one upstream."""

    __slots__ = ("_uses", "is_ranked", "keys", "reread")

    def __init__(self, keys: Iterable[ApiKey], *, is_ranked: bool = False, reread: Reread | None = None) -> None:
        """With `is_ranked` a key is used only if those before it cannot be. `reread` reloads the key's file."""
        self.keys = tuple(keys)
        """The keys; at least one."""
        self.is_ranked = is_ranked
        self.reread = reread
        self._uses = 0

    def __eq__(self, other: object) -> bool:
        """Compares the keys, so that probes treat a pool with unchanged keys as unchanged."""
        return isinstance(other, KeyPool) and [key.digest for key in self.keys] == [key.digest for key in other.keys]

    __hash__ = object.__hash__

    async def catch_up(self, failure: Failure) -> None:
        """Reloads the key's file after a refused key: the file may contain a new one by now."""
        if self.reread is not None and failure.kind is FailureKind.AUTH:
            await self.reread()

    def begin(self, key: ApiKey) -> None:
        """Counts a call that is sent with this key."""
        self._uses += 1
        key.in_flight += 1
        key.last_use = self._uses

    @property
    def first(self) -> ApiKey:
        """The key for requests that are not calls, such as probes."""
        return self.keys[0]

    def named(self, digest: str) -> str | None:
        """Returns the name of the key with this digest; None if the pool does not have it."""
        return next((key.name for key in self.keys if key.digest == digest), None)


KeyFilePools = Mapping[str, KeyPool]
"""Pools by file path: one for all upstreams that name the file."""


def pool_of(config: UpstreamConfig, files: KeyFilePools) -> KeyPool | None:
    """Returns the key pool of an upstream; None if it has one fixed key, or none."""
    if config.api_key_file is not None:
        return files[config.api_key_file]
    if not config.api_keys:
        return None
    named = zip(key_names(config.api_keys), config.api_keys, strict=True)
    keys = [ApiKey(name, key.key) for name, key in named]
    for key in keys:
        key.account = f"{POOLED}{key.digest}"
    return KeyPool(keys)
