"""Clients of a Redis or Valkey server, of the master that Sentinels name, or of a cluster. The only module that imports
redis.

They never retry, since what they are for is tried again anyway, and a retry of the client's doubles each wait.
"""

from __future__ import annotations

from typing import Any

import redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.cluster import RedisCluster as AsyncCluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import NoPermissionError, OutOfMemoryError, RedisClusterException, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel

from llm_guard.config.fleet import StoreAddress, store_address

StoreErrors = (RedisError, RedisClusterException, OSError, TimeoutError)
"""What the clients raise."""

__all__ = [
    "AsyncClient", "BlockingClient", "NoPermissionError", "OutOfMemoryError", "RedisError", "ResponseError",
    "StoreErrors",
]  # fmt: skip

_SENTINEL_S = 0.15
"""Timeout of a request to one Sentinel, in seconds. After it the next one is asked."""


class AsyncClient:
    """A client for one event loop, with one connection that is used by one request at a time. `url` as in the config.
    It connects on first use."""

    def __init__(self, url: str, timeout_s: float, name: str) -> None:
        """`timeout_s`: of each step of a request to a cluster or through Sentinels, and of a connection; `name`: shown
        at the server."""
        self.address = address = store_address(url)
        retry = AsyncRetry(NoBackoff(), 0)
        usual = {**_login(address), **_usual(timeout_s, name), "retry": retry}
        self._sentinel: AsyncSentinel | None = None
        self.redis: AsyncRedis | AsyncCluster
        if address.kind == "sentinel":
            sentinels = {**_tls(address), **_usual(_SENTINEL_S, name), "retry": retry}
            self._sentinel = AsyncSentinel(address.hosts, sentinel_kwargs=sentinels)  # type: ignore[no-untyped-call]  # untyped in redis
            self.redis = self._sentinel.master_for(address.service, db=address.database, **usual)
        elif address.kind == "cluster":
            nodes = [AsyncClusterNode(host, port) for host, port in address.hosts]
            self.redis = AsyncCluster(startup_nodes=nodes, **usual)
        else:
            usual["socket_timeout"] = None  # it takes a task and two turns of the loop, and the caller has a timeout
            self.redis = AsyncRedis(**_place(address), single_connection_client=True, **usual)

    async def close(self) -> None:
        await self.redis.aclose()
        if self._sentinel is not None:
            await self._sentinel.aclose()


class BlockingClient:
    """A client for one thread. A cluster's connects at once; then the constructor raises `StoreErrors`."""

    def __init__(self, url: str, timeout_s: float, connect_s: float, name: str) -> None:
        address = store_address(url)
        retry = Retry(NoBackoff(), 0)
        usual = {**_login(address), **_usual(timeout_s, name), "socket_connect_timeout": connect_s, "retry": retry}
        self._sentinel: Sentinel | None = None
        self.redis: redis.Redis | RedisCluster
        if address.kind == "sentinel":
            sentinels = {**_tls(address), **_usual(_SENTINEL_S, name), "retry": retry}
            self._sentinel = Sentinel(address.hosts, sentinel_kwargs=sentinels)  # type: ignore[no-untyped-call]  # untyped in redis
            self.redis = self._sentinel.master_for(address.service, db=address.database, **usual)  # type: ignore[no-untyped-call]  # untyped in redis
        elif address.kind == "cluster":
            nodes = [ClusterNode(host, port) for host, port in address.hosts]  # type: ignore[no-untyped-call]  # untyped in redis
            self.redis = RedisCluster(startup_nodes=nodes, **usual)
        else:
            self.redis = redis.Redis(**_place(address), **usual)

    def close(self) -> None:
        self.redis.close()
        if self._sentinel is not None:
            self._sentinel.close()


def _usual(timeout_s: float, name: str) -> dict[str, Any]:
    return {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,  # with 3 the server may raise the timeout to ten seconds
        "client_name": name,
    }


def _place(address: StoreAddress) -> dict[str, Any]:
    if address.path:
        return {"unix_socket_path": address.path, "db": address.database}
    host, port = address.hosts[0]
    return {"host": host, "port": port, "db": address.database}


def _login(address: StoreAddress) -> dict[str, Any]:
    found = {"username": address.username, "password": address.password}
    return {**{name: value for name, value in found.items() if value is not None}, **_tls(address)}


def _tls(address: StoreAddress) -> dict[str, Any]:
    return {"ssl": True, **address.options} if address.is_tls else {}
