"""Runs a script on a Redis or Valkey server, for what is stored there beyond a call: stored calls and cached responses.

Blocking; used by one thread. What gateways exchange about each other is in `storage.shared.redis_store`.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError
from redis.retry import Retry

from llm_guard.clock import Clock
from llm_guard.storage.errors import DiskFullError, EvictingStoreError, StoreError

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
        self._client = Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=_CONNECT_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,  # with 3 the server may raise the timeout to ten seconds
            client_name=f"llm-guard-{script.removesuffix('.lua')}",
        )
        self._script = self._client.register_script(files(package).joinpath(script).read_text())
        self._prefix = prefix
        self._clock = clock
        self._may_evict = may_evict
        self._is_checked = False
        self._paused_until = clock.now()
        self._problem = ""

    def run(self, *args: str | bytes | float) -> Any:
        """Runs the script. Raises StoreError; after one it is not known whether the script has run. Raises
        DiskFullError if the server has no memory left: then it has changed nothing."""
        if self._clock.now() < self._paused_until:
            raise StoreError(self._problem)
        try:
            if not self._is_checked:
                self._check()
            return self._script(keys=[self._prefix], args=args)
        except ResponseError as error:
            raise _refusal(error) from None
        except (RedisError, OSError) as error:
            self._is_checked = False
            self._problem = f"fleet.store does not answer ({type(error).__name__})"
            self._paused_until = self._clock.now() + _PAUSE_S
            raise StoreError(self._problem) from None

    def close(self) -> None:
        self._client.close()

    def _check(self) -> None:
        """Raises EvictingStoreError, and the client's errors."""
        policy = "" if self._may_evict else str(self._client.info("memory").get("maxmemory_policy", ""))
        if policy.startswith("allkeys"):  # the other policies evict only keys that end by themselves
            raise EvictingStoreError(f"its maxmemory-policy {policy} may evict stored calls: set noeviction")
        self._is_checked = True


def _refusal(error: ResponseError) -> StoreError:
    if isinstance(error, OutOfMemoryError):
        return DiskFullError("fleet.store has no memory left (maxmemory)")
    return StoreError(f"fleet.store: {str(error)[:200]}")
