"""The exchange through Redis or Valkey. What is stored there beyond a call uses `storage.shared.redis_script`.

An exchange is one script, and a change of overrides another one. Keys begin with `llmg:1:{NAME}:`, 1 being the version
of what is stored. They end by themselves: within a minute, overrides after 30 days without a change.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import msgspec

from llm_guard.clock import Clock
from llm_guard.resilience.capacity.slot_sharing import SLOTS_HELD_S, TURN_S, SlotGrant, SlotRequest
from llm_guard.storage.shared.exchange_store import (
    NO_SLOTS,
    STALE_S,
    Exchanged,
    Leases,
    Override,
    Published,
    StoredOverride,
    StoredOverrides,
    StoreUnavailable,
)
from llm_guard.storage.shared.redis_client import AsyncClient, RedisError, StoreErrors
from llm_guard.worker_thread import WorkerThread

# One exchange in the background waits so long, and no call does. A frozen server accepts connections (the kernel does),
# so only this ends the wait: with the client's default retries it was five seconds.
_EXCHANGE_S = 0.3
# Each step of an exchange through Sentinels or with a cluster: a new connection takes several.
_TIMEOUT_S = 0.25
_CONNECT_S = 0.6
_MOST_REPLICAS = 256


@dataclass(frozen=True, slots=True)
class StoreDescription:
    """What is found of a server."""

    version: str
    eviction: str
    """Its `maxmemory-policy`."""
    is_persistent: bool
    """What it holds survives its restart (`appendonly yes`)."""
    replicas: int
    """Gateways of the fleet that have published lately."""
    took_s: float
    """Seconds of one request."""


class _Reply(msgspec.Struct, array_like=True):
    """The packed part of the reply of exchange.lua, behind its length and before the contents of the others."""

    others: list[tuple[str, float, int]]
    """Each with its age in milliseconds, and the length of its content."""
    held: list[tuple[str, float]]
    taken: list[tuple[str, float]]
    version: int
    slots: list[tuple[str, int, int]]


_LENGTH = 8
"""Digits of the length of the packed part."""

_read_reply = msgspec.msgpack.Decoder(_Reply).decode
_write = msgspec.msgpack.Encoder().encode


class RedisStore:
    """Implements `storage.shared.exchange_store.ExchangeStore`."""

    def __init__(self, url: str, name: str, replica: str) -> None:
        self._replica = replica
        self._keys = tuple(f"llmg:1:{{{name}}}:{kind}" for kind in ("replicas", "leases", "overrides", "slots"))
        self._replicas, _, self._overrides, _ = self._keys
        self._client = AsyncClient(url, _TIMEOUT_S, f"llm-guard/{replica}")
        self._exchange, self._change_overrides = (
            self._client.redis.register_script(files(__package__).joinpath(name).read_text())
            for name in ("exchange.lua", "overrides.lua")
        )
        self._lookup: asyncio.Future[Any] | None = None
        self._is_connected = False

    async def exchange(
        self, content: bytes, wanted: Mapping[str, float], slots: Mapping[str, SlotRequest] = NO_SLOTS
    ) -> Exchanged:
        leases = [(subject, max(1, int(seconds * 1000))) for subject, seconds in wanted.items()]
        requests = [(subject, one.limit, one.holds, one.need) for subject, one in slots.items()]
        gateways = max((request.gateways for request in slots.values()), default=1)
        times = int(STALE_S * 1000), int(SLOTS_HELD_S * 1000), int(TURN_S * 1000)
        request = _write((*times, gateways, leases, requests))
        found = await self._run(self._exchange, self._keys, (self._replica, content, request))
        # A reply of several elements takes the client as long for each of them as the whole of this.
        end = _LENGTH + int(found[:_LENGTH])
        reply = _read_reply(found[_LENGTH:end])
        others = []
        for replica, age_ms, length in reply.others[:_MOST_REPLICAS]:
            others.append(Published(replica, age_ms / 1000, found[end : end + length]))
            end += length
        return Exchanged(
            tuple(others),
            Leases(_seconds(reply.held), _seconds(reply.taken)),
            reply.version,
            {subject: SlotGrant(holds, fair) for subject, holds, fair in reply.slots},
        )

    async def change_overrides(self, changed: Mapping[str, Override]) -> StoredOverrides:
        args: list[str | bytes | int] = []
        for key, change in changed.items():
            left_ms = 0 if change.left_s is None else max(1, round(change.left_s * 1000))
            said = (b"-" if change.is_ended else b"+") + change.content
            args += [key, max(0, round(change.age_s * 1000)), left_ms, said]
        version, entries = await self._run(self._change_overrides, [self._overrides], args)
        return StoredOverrides(
            version,
            {
                key.decode(errors="replace"): StoredOverride(
                    age_ms / 1000,
                    content[1:],
                    content[:1] == b"-",
                    left_ms / 1000 if left_ms else None,
                    since_ms=since_ms,
                )
                for key, since_ms, age_ms, left_ms, content in entries
            },
        )

    async def _run(self, script: Any, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
        """Runs a script. Raises StoreUnavailable."""
        try:
            # The client closes the connection if a response was not read, so no response is taken for another one.
            async with asyncio.timeout(_EXCHANGE_S if self._is_connected else _CONNECT_S):
                if not self._is_connected:
                    await self._look_up()
                found = await script(keys=keys, args=args)
        except StoreErrors as error:
            self._is_connected = False
            raise StoreUnavailable(_kind_of(error)) from None
        self._is_connected = True
        return found

    async def describe(self, clock: Clock) -> StoreDescription:
        """Returns what is found of the server and of this fleet, for `llm-guard check`. Raises StoreUnavailable."""
        client = self._client.redis
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._look_up()
                server, memory = await client.info("server"), await client.info("memory")
                persistence = await client.info("persistence")
                began_at = clock.now()
                replicas: int = await client.hlen(self._replicas)
                took_s = clock.now() - began_at
        except StoreErrors as error:
            raise StoreUnavailable(_kind_of(error)) from None
        version, eviction = server.get("redis_version", "unknown"), memory.get("maxmemory_policy", "noeviction")
        is_persistent = bool(persistence.get("aof_enabled"))
        return StoreDescription(str(version), str(eviction), is_persistent, replicas, took_s)

    async def close(self) -> None:
        if self._is_connected:
            leaving: Any = self._client.redis.hdel(self._replicas, self._replica)
            with suppress(*StoreErrors):  # what was published ends by itself
                async with asyncio.timeout(_CONNECT_S):
                    await leaving
        await self._client.close()

    async def _look_up(self) -> None:
        """Looks the hosts up in a thread of its own, one at a time, before the client does. A lookup that hangs would
        take a thread from those that look up providers, and each try another one."""
        if self._lookup is None or self._lookup.done():
            self._lookup = WorkerThread("fleet store").run(_look_up, self._client.address.hosts)
        await asyncio.shield(self._lookup)


def _look_up(hosts: Iterable[tuple[str, int]]) -> None:
    """Raises OSError if none of the hosts is known."""
    problem: OSError | None = None
    for host, port in hosts:
        try:
            socket.getaddrinfo(host, port)
        except OSError as error:
            problem = error
        else:
            return
    if problem is not None:
        raise problem


def _seconds(leases: list[tuple[str, float]]) -> dict[str, float]:
    return {subject: left_ms / 1000 for subject, left_ms in leases}


def _kind_of(error: BaseException) -> str:
    """Returns the name of the error that caused it: a refused password comes as a failed connection."""
    while isinstance(error.__cause__, RedisError):
        error = error.__cause__
    return type(error).__name__
