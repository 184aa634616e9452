"""Runs a script on a Redis or Valkey server, for what is stored there beyond a call: stored calls and cached responses.

Blocking; used by one thread. What gateways exchange about each other is in `storage.shared.redis_store`.
"""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from typing import Any

from llm_guard.clock import Clock
from llm_guard.storage.errors import DiskFullError, EvictingStoreError, RefusedError, StoreError
from llm_guard.storage.shared.redis_client import (
    BlockingClient,
    NoPermissionError,
    OutOfMemoryError,
    ResponseError,
    StoreErrors,
)

_CONNECT_S = 0.5
_PAUSE_S = 0.5
"""How long nothing is sent after a failure, so that requests do not wait for a frozen server one after the other."""


class RedisScript:
    """A script with its connection, which is opened on first use, and again after a failure."""

    def __init__(
        self, url: str, package: str, script: str, prefix: str, timeout_s: float, clock: Clock
    ) -> None:  # fmt: skip
        """`script` is a file of `package`, and gets `prefix` as its only key. A server that may evict any key is
        refused."""
        self._open = partial(BlockingClient, url, timeout_s, _CONNECT_S, f"llm-guard-{script.removesuffix('.lua')}")
        self._text = files(package).joinpath(script).read_text()
        self._prefix = prefix
        self._clock = clock
        self._client: BlockingClient | None = None
        self._script: Any = None
        self._paused_until = clock.now()
        self._problem = ""

    def run(self, *args: str | bytes | float) -> Any:
        """Runs the script. Raises RefusedError if it has changed nothing (DiskFullError: the server has no memory
        left), and any other StoreError if that is not known."""
        if self._clock.now() < self._paused_until:
            raise RefusedError(self._problem)
        try:
            if self._client is None:
                self._client = self._opened()
            return self._script(keys=[self._prefix], args=args)
        except OutOfMemoryError:
            raise DiskFullError("fleet.store has no memory left (maxmemory)") from None
        except ResponseError as error:  # a master that has become a replica answers so to every write
            self._pause(f"fleet.store: {str(error)[:200]}")
            raise RefusedError(self._problem) from None
        except StoreErrors as error:
            self._pause(f"fleet.store does not answer ({type(error).__name__})")
            raise StoreError(self._problem) from None

    def _pause(self, problem: str) -> None:
        """The next request after a pause opens a new connection."""
        self.close()
        self._problem = problem
        self._paused_until = self._clock.now() + _PAUSE_S

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _opened(self) -> BlockingClient:
        """Raises EvictingStoreError, and the client's errors."""
        client = self._open()
        try:
            refuse_evicting(client)
            self._script = client.redis.register_script(self._text)
        except BaseException:
            client.close()
            raise
        return client


def refuse_evicting(client: BlockingClient) -> None:
    """Raises EvictingStoreError if the server may evict any key, and the client's errors."""
    try:
        policy = str(client.redis.info("memory").get("maxmemory_policy", ""))
    except NoPermissionError:
        return
    if policy.startswith("allkeys"):  # the other policies evict only keys that end by themselves
        raise EvictingStoreError(f"its maxmemory-policy {policy} may evict stored calls and responses: set noeviction")


def check_server(url: str) -> None:
    """Raises EvictingStoreError if the server may evict any key, and StoreError if it does not answer in time."""
    try:
        client = BlockingClient(url, _CONNECT_S, _CONNECT_S, "llm-guard")
        try:
            refuse_evicting(client)
        finally:
            client.close()
    except StoreErrors as error:
        raise StoreError(f"fleet.store does not answer ({type(error).__name__})") from None
