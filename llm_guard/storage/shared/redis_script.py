"""Runs a script on a Redis or Valkey server, for what is stored there beyond a call: stored calls and cached responses.

Blocking; used by one thread. What gateways exchange about each other is in `storage.shared.redis_store`.
"""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from typing import Any

from llm_guard.clock import Clock
from llm_guard.storage.errors import DiskFullError, EvictingStoreError, StoreError
from llm_guard.storage.shared.redis_client import BlockingClient, OutOfMemoryError, ResponseError, StoreErrors

_CONNECT_S = 0.5
_PAUSE_S = 0.5
"""How long nothing is sent after a failure, so that requests do not wait for a frozen server one after the other."""


class RedisScript:
    """A script with its connection, which is opened on first use, and again after a failure."""

    def __init__(
        self, url: str, package: str, script: str, prefix: str, timeout_s: float, clock: Clock, *, may_evict: bool
    ) -> None:  # fmt: skip
        """`script` is a file of `package`, and gets `prefix` as its only key. Without `may_evict`, a server that may
        evict keys is refused."""
        self._open = partial(BlockingClient, url, timeout_s, _CONNECT_S, f"llm-guard-{script.removesuffix('.lua')}")
        self._text = files(package).joinpath(script).read_text()
        self._prefix = prefix
        self._clock = clock
        self._may_evict = may_evict
        self._client: BlockingClient | None = None
        self._script: Any = None
        self._paused_until = clock.now()
        self._problem = ""

    def run(self, *args: str | bytes | float) -> Any:
        """Runs the script. Raises StoreError; after one it is not known whether the script has run. Raises
        DiskFullError if the server has no memory left: then it has changed nothing."""
        if self._clock.now() < self._paused_until:
            raise StoreError(self._problem)
        try:
            if self._client is None:
                self._client = self._opened()
            return self._script(keys=[self._prefix], args=args)
        except ResponseError as error:
            raise _refusal(error) from None
        except StoreErrors as error:
            self.close()
            self._problem = f"fleet.store does not answer ({type(error).__name__})"
            self._paused_until = self._clock.now() + _PAUSE_S
            raise StoreError(self._problem) from None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _opened(self) -> BlockingClient:
        """Raises EvictingStoreError, and the client's errors."""
        client = self._open()
        try:
            policy = "" if self._may_evict else str(client.redis.info("memory").get("maxmemory_policy", ""))
            if policy.startswith("allkeys"):  # the other policies evict only keys that end by themselves
                raise EvictingStoreError(f"its maxmemory-policy {policy} may evict stored calls: set noeviction")
            self._script = client.redis.register_script(self._text)
        except BaseException:
            client.close()
            raise
        return client


def _refusal(error: ResponseError) -> StoreError:
    if isinstance(error, OutOfMemoryError):
        return DiskFullError("fleet.store has no memory left (maxmemory)")
    return StoreError(f"fleet.store: {str(error)[:200]}")
