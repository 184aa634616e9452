"""Cached responses on a Redis server that several gateways share, and one that is slow, full, evicting or gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from llm_guard.clock import Clock
from llm_guard.storage.cache.blocking_cache import READ_S, REST_S, BlockingCache
from llm_guard.storage.cache.redis_cache import RedisCacheEntries
from llm_guard.storage.cache.response_store import CachedResponse, cost_of
from llm_guard.storage.calls.encryption import BodyEncryption
from tests.fakes.clock import SteppedClock
from tests.fakes.redis_server import RedisServer, redis_server
from tests.fakes.waiting import eventually

KEY, OTHER = b"k" * 32, b"o" * 32
KEYS = BodyEncryption([b"n" * 32])


def answer(body: bytes = b"{}", route: str = "gpt") -> CachedResponse:
    return CachedResponse(
        route=route, status=200, reason="OK", headers=(("content-type", "application/json"),), body=body,
        is_stream=False, deployment="one/gpt",
    )  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


def new_cache(
    server: RedisServer, clock: Clock, max_bytes: int = 1 << 20, sealing: BodyEncryption = KEYS
) -> BlockingCache:
    return BlockingCache(RedisCacheEntries(server.url, "prod", lambda: sealing, clock), "redis", clock, max_bytes)


@pytest.fixture
async def cache(server: RedisServer, clock: SteppedClock) -> AsyncIterator[BlockingCache]:
    cache = new_cache(server, clock)
    yield cache
    await cache.close()


async def test_response_is_served_by_another_gateway_and_ages(
    server: RedisServer, cache: BlockingCache, clock: SteppedClock
) -> None:
    await cache.put(KEY, answer(), 60)
    clock.advance(10)
    other = new_cache(server, clock)
    found = await other.get(KEY)
    assert found is not None
    assert (found.answer, found.age_s) == (answer(), 10)
    assert await other.get(OTHER) is None
    clock.advance(50)
    assert await other.get(KEY) is None
    await other.close()


async def test_nothing_is_stored_that_could_be_read_or_guessed(server: RedisServer, cache: BlockingCache) -> None:
    await cache.put(KEY, answer(b"a secret answer"), 60)
    with server.client() as client:
        keys = list(client.scan_iter())
        content = b"".join(part for key in keys if b":entry:" in key for part in client.hvals(key))
    assert b"a secret answer" not in content
    assert not any(KEY.hex().encode() in key for key in keys)
    stranger = new_cache(server, SteppedClock(), sealing=BodyEncryption([b"o" * 32]))
    assert await stranger.get(KEY) is None
    await stranger.close()


async def test_numbers_are_by_route_and_a_purge_holds_everywhere(
    server: RedisServer, cache: BlockingCache, clock: SteppedClock
) -> None:
    other = new_cache(server, clock)
    await cache.put(KEY, answer(), 60)
    for number in range(1200):
        await other.put(number.to_bytes(32, "big"), answer(b"x", "of: another\nroute"), 60)
    routes = other.snapshot().routes
    assert {route: (size.entries, size.bytes) for route, size in routes.items()} == {
        "gpt": (1, cost_of(answer())), "of: another\nroute": (1200, 1200 * cost_of(answer(b"x"))),
    }  # fmt: skip
    assert await cache.purge("of: another\nroute") == 1200
    assert await other.get((7).to_bytes(32, "big")) is None
    assert await other.get(KEY) is not None
    assert await other.purge(None) == 1
    assert other.snapshot().routes == {}
    await other.close()


async def test_replaced_entry_takes_the_room_of_one(cache: BlockingCache) -> None:
    for size in (10, 20, 30):
        await cache.put(KEY, answer(b"x" * size), 60)
    assert cache.snapshot().routes["gpt"].bytes == cost_of(answer(b"x" * 30))
    assert cache.snapshot().routes["gpt"].entries == 1


async def test_least_recently_used_entry_makes_room(server: RedisServer, clock: SteppedClock) -> None:
    cache = new_cache(server, clock, 3 * cost_of(answer()))
    for number in range(3):
        await cache.put(bytes([number]) * 32, answer(), 60)
        clock.advance(1)
    assert await cache.get(bytes(32)) is not None
    clock.advance(1)
    await cache.put(KEY, answer(), 60)
    assert [await cache.get(bytes([number]) * 32) is not None for number in range(3)] == [True, False, True]
    assert cache.snapshot().evictions == 1
    await cache.put(OTHER, answer(b"x" * 100_000), 60)  # larger than all
    assert await cache.get(OTHER) is None
    assert await cache.get(KEY) is not None
    await cache.close()


async def test_expired_entries_are_forgotten(server: RedisServer, cache: BlockingCache, clock: SteppedClock) -> None:
    await cache.put(KEY, answer(), 60)
    clock.advance(61)
    cache.sweep()
    await eventually(lambda: cache.snapshot().routes == {})
    with server.client() as client:
        assert [key for key in client.scan_iter() if b":entry:" in key] == []


@pytest.mark.parametrize("body", [b"[]", b"[1]"], ids=["of the same size", "of another size"])
async def test_entry_that_was_deleted_is_a_miss_and_is_stored_again(
    server: RedisServer, cache: BlockingCache, body: bytes
) -> None:
    await cache.put(KEY, answer(), 60)
    with server.client() as client:
        (entry,) = [key for key in client.scan_iter() if b":entry:" in key]
        client.delete(entry)
    assert await cache.get(KEY) is None
    await cache.put(KEY, answer(body), 60)
    found = await cache.get(KEY)
    assert found is not None
    assert found.answer.body == body
    assert await cache.purge(None) == 1 + (body != b"[]")  # an entry of another size still counts
    assert cache.snapshot().routes == {}


async def test_full_server_costs_the_cache_and_no_call(server: RedisServer, cache: BlockingCache) -> None:
    await cache.put(KEY, answer(), 60)
    with server.client() as client:
        client.config_set("maxmemory", 1)
    await cache.put(OTHER, answer(), 60)
    assert cache.snapshot().failures == {"write_failed": 1}


async def test_frozen_server_makes_one_call_wait_every_five_seconds(
    server: RedisServer, cache: BlockingCache, clock: SteppedClock
) -> None:
    await cache.put(KEY, answer(), 60)
    server.freeze()
    first = asyncio.create_task(cache.get(KEY))
    await asyncio.sleep(0)
    await clock.pass_s(READ_S)
    assert await first is None
    for _ in range(3):
        await clock.pass_s(REST_S)
        trying = asyncio.create_task(cache.get(KEY))
        await asyncio.sleep(0)
        beside = asyncio.create_task(cache.get(KEY))
        await asyncio.sleep(0)
        assert beside.done()
        await clock.pass_s(READ_S)
        assert await trying is None
    server.thaw()
    await eventually(lambda: not cache._worker.is_full)
    await clock.pass_s(REST_S)
    async with asyncio.timeout(10):
        while await cache.get(KEY) is None:  # the reads that were given up end first
            await clock.pass_s(REST_S)
