"""The keys of an upstream that has several, or one in a file: which there are, and how many calls each has now.

Owns the keys. Does not own which of them a call is sent with (`policy.key_choice`), nor files (`key_files`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping

from llm_guard.config import UpstreamConfig, key_names
from llm_guard.outcome import Failure, FailureKind

POOLED = "key "
"""How the account of a pool's key begins. Such an account has a limit of calls at once of its own."""

Reread = Callable[[], Awaitable[None]]


class ApiKey:
    """One key. It compares by identity: a reload makes another one."""

    __slots__ = ("account", "digest", "in_flight", "last_use", "name", "secret")

    def __init__(self, name: str, secret: str, account: str = "") -> None:
        self.name = name
        """What stands for it in logs and on pages."""
        self.secret = secret
        self.digest = hashlib.sha256(secret.encode()).hexdigest()
        self.account = account
        """Of the gate that it passes; empty: one gate for all keys of the upstream."""
        self.in_flight = 0
        self.last_use = 0

    def __repr__(self) -> str:
        return f"ApiKey({self.name!r})"


class KeyPool:
    """The keys of one upstream."""

    __slots__ = ("_uses", "is_ranked", "keys", "reread")

    def __init__(self, keys: Iterable[ApiKey], *, is_ranked: bool = False, reread: Reread | None = None) -> None:
        """`is_ranked`: a key is used only where those before it cannot be. `reread`: adopts what its file holds now."""
        self.keys = tuple(keys)
        """At least one."""
        self.is_ranked = is_ranked
        self.reread = reread
        self._uses = 0

    def __eq__(self, other: object) -> bool:
        """Two pools with the same keys are the same to probes."""
        return isinstance(other, KeyPool) and [key.digest for key in self.keys] == [key.digest for key in other.keys]

    __hash__ = object.__hash__

    async def catch_up(self, failure: Failure) -> None:
        """After a refused key: its file may hold another one by now."""
        if self.reread is not None and failure.kind is FailureKind.AUTH:
            await self.reread()

    def begin(self, key: ApiKey) -> None:
        """A call is sent with this key."""
        self._uses += 1
        key.in_flight += 1
        key.last_use = self._uses

    @property
    def first(self) -> ApiKey:
        """For requests beside calls."""
        return self.keys[0]

    def named(self, digest: str) -> str | None:
        """The name of the key with this digest; None: the pool does not have it any more."""
        return next((key.name for key in self.keys if key.digest == digest), None)


KeyFilePools = Mapping[str, KeyPool]
"""By path: one pool for all upstreams whose key is in this file."""


def pool_of(config: UpstreamConfig, files: KeyFilePools) -> KeyPool | None:
    """None: the upstream has one fixed key, or none."""
    if config.api_key_file is not None:
        return files[config.api_key_file]
    if not config.api_keys:
        return None
    named = zip(key_names(config.api_keys), config.api_keys, strict=True)
    keys = [ApiKey(name, each.key) for name, each in named]
    for key in keys:
        key.account = f"{POOLED}{key.digest}"
    return KeyPool(keys)
