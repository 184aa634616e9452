"""A store on Redis or Valkey. The only module that imports redis.

An exchange is one script. Keys begin with `llmg:1:NAME:`, 1 being the version of what is stored; the braces in them put
both keys of a fleet into one slot of a cluster. Every key ends by itself within a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from llm_guard.storage.shared.exchange_store import STALE_S, Exchanged, Published, StoreUnavailable

# One exchange in the background waits so long, and no call does. A frozen server accepts connections (the kernel does),
# so only this ends the wait: with the client's default retries it was five seconds.
_TIMEOUT_S = 0.25
_MOST_REPLICAS = 256


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
            client_name=f"llm-guard/{replica}",
        )
        self._script = self._client.register_script(files(__package__).joinpath("exchange.lua").read_text())

    async def exchange(self, content: bytes, wanted: Mapping[str, float]) -> Exchanged:
        args: list[str | bytes | int] = [self._replica, content, int(STALE_S * 1000)]
        for subject, seconds in wanted.items():
            args += [subject, max(1, int(seconds * 1000))]
        try:
            others, held = await self._script(keys=self._keys, args=args)
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailable(_kind_of(error)) from None
        return Exchanged(
            tuple(
                Published(replica.decode(errors="replace"), age_ms / 1000, found)
                for replica, age_ms, found in others[:_MOST_REPLICAS]
            ),
            {subject.decode(): wanted_ms / 1000 for subject, wanted_ms in held},
        )

    async def close(self) -> None:
        leaving: Any = self._client.hdel(self._keys[0], self._replica)
        with suppress(RedisError, OSError, TimeoutError):  # what was published ends by itself
            await leaving
        await self._client.aclose()


def _kind_of(error: BaseException) -> str:
    """Returns the name of the error that caused it: a refused password comes as a failed connection."""
    while isinstance(error.__cause__, RedisError):
        error = error.__cause__
    return type(error).__name__
