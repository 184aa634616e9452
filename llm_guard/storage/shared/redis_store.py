"""A store on one Redis or Valkey server. The only module that imports redis.

An exchange is one script. Keys begin with `llmg:1:{NAME}:`, 1 being the version of what is stored, and end by
themselves within a minute.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from llm_guard.storage.shared.exchange_store import STALE_S, Exchanged, Leases, Published, StoreUnavailable
from llm_guard.worker_thread import WorkerThread

# One exchange in the background waits so long, and no call does. A frozen server accepts connections (the kernel does),
# so only this ends the wait: with the client's default retries it was five seconds.
_TIMEOUT_S = 0.25
# The client's own limit is for each step of them: a new connection takes several.
_EXCHANGE_S = 0.3
_CONNECT_S = 0.6
_MOST_REPLICAS = 256
_ERRORS = (RedisError, OSError, TimeoutError)


class RedisStore:
    """Implements `storage.shared.exchange_store.ExchangeStore`."""

    def __init__(self, url: str, name: str, replica: str) -> None:
        self._replica = replica
        self._keys = [f"llmg:1:{{{name}}}:replicas", f"llmg:1:{{{name}}}:leases"]
        self._client: Redis = Redis.from_url(
            url,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            single_connection_client=True,
            protocol=2,  # with 3 the server may raise the timeout to ten seconds
            client_name=f"llm-guard/{replica}",
        )
        self._script = self._client.register_script(files(__package__).joinpath("exchange.lua").read_text())
        self._host: str | None = self._client.connection_pool.connection_kwargs.get("host")
        self._lookup: asyncio.Future[Any] | None = None
        self._is_connected = False

    async def exchange(self, content: bytes, wanted: Mapping[str, float]) -> Exchanged:
        args: list[str | bytes | int] = [self._replica, content, int(STALE_S * 1000)]
        for subject, seconds in wanted.items():
            args += [subject, max(1, int(seconds * 1000))]
        try:
            # The client closes a connection whose response it did not read, so no response is taken for another one.
            async with asyncio.timeout(_EXCHANGE_S if self._is_connected else _CONNECT_S):
                if not self._is_connected:
                    await self._look_up()
                others, held, taken = await self._script(keys=self._keys, args=args)
        except _ERRORS as error:
            self._is_connected = False
            raise StoreUnavailable(_kind_of(error)) from None
        self._is_connected = True
        return Exchanged(
            tuple(
                Published(replica.decode(errors="replace"), age_ms / 1000, found)
                for replica, age_ms, found in others[:_MOST_REPLICAS]
            ),
            Leases(_seconds(held), _seconds(taken)),
        )

    async def close(self) -> None:
        if self._is_connected:
            leaving: Any = self._client.hdel(self._keys[0], self._replica)
            with suppress(*_ERRORS):  # what was published ends by itself
                async with asyncio.timeout(_CONNECT_S):
                    await leaving
        await self._client.aclose()

    async def _look_up(self) -> None:
        """Looks the host up in a thread of its own, one at a time, before the client does. A lookup that hangs would
        take a thread from those that look up providers, and each try another one."""
        if self._host is None:
            return
        if self._lookup is None or self._lookup.done():
            self._lookup = WorkerThread("fleet store").run(socket.getaddrinfo, self._host, None)
        await asyncio.shield(self._lookup)


def _seconds(leases: list[tuple[bytes, int]]) -> dict[str, float]:
    return {subject.decode(): left_ms / 1000 for subject, left_ms in leases}


def _kind_of(error: BaseException) -> str:
    """Returns the name of the error that caused it: a refused password comes as a failed connection."""
    while isinstance(error.__cause__, RedisError):
        error = error.__cause__
    return type(error).__name__
