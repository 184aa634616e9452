"""Limits that several gateways have together through a real Redis server: concurrent calls of a deployment, and the
limits of client keys."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llm_guard.app import App, create_app
from llm_guard.clock import SystemClock
from llm_guard.config import parse_config
from llm_guard.resilience.capacity.slot_sharing import SLOTS_HELD_S, SlotRequest
from llm_guard.storage.shared import memory_store, redis_store
from llm_guard.storage.shared.memory_store import MemoryStore, SharedMemory
from llm_guard.storage.shared.redis_store import RedisStore
from tests.chaos.forms import CHAT
from tests.chaos.stand import config_text
from tests.chaos.wire import ask
from tests.effort import repeated
from tests.fakes.counted_provider import CountedProvider
from tests.fakes.redis_server import RedisServer, redis_server
from tests.fakes.waiting import eventually

LIMIT, GATEWAYS = 8, 4
TAKES_S = 0.05


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@asynccontextmanager
async def gateways(
    store: str, capacity: dict[str, Any] | None = None, count: int = GATEWAYS, **limits: float
) -> AsyncIterator[tuple[CountedProvider, list[App]]]:
    """Runs gateways that see one another, before a provider. `limits` are those of the client key."""
    provider = CountedProvider(CHAT.answer, TAKES_S)
    runner, url = await provider.start()
    keys = [{"name": "app", "key": "k-app", "limits": limits}]
    own = {"dialect": "openai", "base_url": f"{url}/v1", "api_key": "sk-own"}
    text = config_text(
        url, server={"client_keys": keys}, defaults={"capacity": capacity or {}}, upstreams={"own": own},
        models={"gpt": {"deployments": [{"upstream": "own"}]}}, timeout={"total": "30s"},
    )  # fmt: skip
    text = json.dumps({**json.loads(text), "fleet": {"store": store}})
    async with AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        apps = []
        for _ in range(count):
            app = create_app(parse_config(text, "fleet.yaml", {}))
            await app.start()
            stack.push_async_callback(app.stop)
            apps.append(app)
        await eventually(lambda: all(len(others(app)) == count - 1 for app in apps))
        yield provider, apps


def others(app: App) -> tuple[object, ...]:
    assert app.fleet is not None
    return app.fleet.others


class Load:
    """Calls by clients that each wait for their answer, at random gateways."""

    def __init__(self, apps: list[App], clients: int) -> None:
        self._urls = [f"{app.addresses[0]}{CHAT.path}" for app in apps]
        self._clients = clients
        self.statuses = Counter[int]()

    async def run(self, seconds: float, *, pause_s: float = 0.0) -> None:
        async with aiohttp.ClientSession(headers={"authorization": "Bearer k-app"}) as session:
            ends_at = time.monotonic() + seconds
            await asyncio.gather(*(self._call_on(session, ends_at, pause_s) for _ in range(self._clients)))

    async def _call_on(self, session: aiohttp.ClientSession, ends_at: float, pause_s: float) -> None:
        while time.monotonic() < ends_at:
            async with session.post(random.choice(self._urls), data=CHAT.body(), headers=_JSON) as response:
                await response.read()
                self.statuses[response.status] += 1
            await asyncio.sleep(pause_s)


_JSON = {"content-type": "application/json"}


# concurrency of a deployment


async def test_no_more_calls_are_in_flight_than_one_gateway_may_have(server: RedisServer) -> None:
    async with gateways(server.url, {"concurrency": LIMIT}) as (provider, apps):
        load = Load(apps, clients=5 * LIMIT)
        await load.run(2.0)
        assert set(load.statuses) == {200}
        assert provider.most == LIMIT
        # One gateway alone would answer LIMIT calls each TAKES_S; some slots are on their way to another gateway.
        assert provider.answered >= 0.5 * LIMIT * 2.0 / TAKES_S


async def test_gateway_with_all_the_calls_gets_nearly_all_the_slots(server: RedisServer) -> None:
    async with gateways(server.url, {"concurrency": LIMIT}) as (provider, apps):
        load = Load(apps[:1], clients=5 * LIMIT)
        await load.run(1.5)
        assert set(load.statuses) == {200}
        assert provider.most == LIMIT


async def test_without_the_store_each_gateway_has_a_part(server: RedisServer) -> None:
    async with gateways(server.url, {"concurrency": LIMIT}) as (provider, apps):
        load = Load(apps, clients=5 * LIMIT)
        await load.run(0.5)
        server.kill()
        await load.run(1.0)
        assert set(load.statuses) == {200}
        assert LIMIT <= provider.most <= LIMIT + GATEWAYS


async def test_gateway_that_stops_leaves_its_slots_to_the_others(server: RedisServer) -> None:
    async with gateways(server.url, {"concurrency": 2}, count=2) as (_, apps):
        await Load(apps[1:], clients=4).run(0.5)
        assert apps[1].fleet is not None
        await apps[1].fleet.stop()
        load = Load(apps[:1], clients=4)
        await load.run(0.5)
        # It counts for three seconds, since a store that was emptied would show none either.
        await eventually(lambda: limit_of(apps[0]) == 2, SLOTS_HELD_S - 0.5)
        assert set(load.statuses) == {200}


def limit_of(app: App) -> int | None:
    gates = next(each.gates for each in app.gateway.deployments() if each.label == "own/gpt")
    return gates.all()[0].snapshot(time.monotonic()).limit


# limits of client keys


async def test_rate_of_a_key_holds_for_all_gateways(server: RedisServer) -> None:
    rate, seconds = 40.0, 4.0
    async with gateways(server.url, rate=rate) as (provider, apps):
        load = Load(apps, clients=8)
        await load.run(seconds, pause_s=0.02)
        allowed = rate * seconds + rate  # a second's worth may come at once
        assert set(load.statuses) == {200, 429}
        assert 0.8 * rate * seconds <= provider.answered <= 1.1 * allowed


async def test_rate_of_a_key_is_divided_without_the_store(server: RedisServer) -> None:
    rate, seconds = 40.0, 3.0
    async with gateways(server.url, rate=rate) as (provider, apps):
        server.kill()
        await eventually(lambda: not any(app.fleet is None or app.fleet.is_connected for app in apps))
        load = Load(apps[:1], clients=8)
        await load.run(seconds, pause_s=0.02)
        part = rate / GATEWAYS
        assert 0.8 * part * seconds <= provider.answered <= 1.1 * (part * seconds + part)


async def test_tokens_that_one_gateway_has_used_are_used_everywhere(server: RedisServer) -> None:
    async with gateways(server.url, tokens_per_day=1000, tokens_per_minute=500) as (_, apps):
        headers = {"authorization": "Bearer k-app"}
        assert (await ask(apps[0].addresses[0], CHAT.path, CHAT.body(), headers)).status == 200
        [(_, _, used)] = apps[0].gateway.quotas.days()
        assert used > 0
        for app in apps[1:]:
            await eventually(lambda app=app: left(app)["tokens_per_day"] == 1000 - used)  # type: ignore[misc]
            assert left(app)["tokens_per_minute"] <= 500 - used + 60


async def test_calls_at_once_of_a_key_hold_for_all_gateways(server: RedisServer) -> None:
    async with gateways(server.url, concurrency=LIMIT) as (provider, apps):
        load = Load(apps, clients=4 * LIMIT)
        await load.run(2.0, pause_s=0.01)
        assert provider.most <= LIMIT
        assert set(load.statuses) == {200, 429}
        assert provider.answered >= 0.2 * LIMIT * 2.0 / TAKES_S


def left(app: App) -> dict[str, float]:
    clock = SystemClock()
    return {one.limit: one.left for one in app.gateway.quotas.by_name["app"].left(clock.now(), clock.wall())}


# the interface of a store


async def test_stores_grant_the_same_slots(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory_store, redis_store):
        monkeypatch.setattr(module, "TURN_S", 1e8)  # both have the same turn, by whichever clock
    draw = random.Random(1)
    shared = SharedMemory()
    names = ("a", "b", "c")
    stores = {name: (MemoryStore(shared, name, SystemClock()), RedisStore(server.url, "f", name)) for name in names}
    for _ in range(repeated(300)):
        name = draw.choice(names)
        limit = draw.randrange(12)
        request = SlotRequest(limit, draw.randrange(limit + 1), draw.randrange(15), draw.randrange(1, 5))
        memory, redis = [(await store.exchange(b"", {}, {"x": request, "y": request})).slots for store in stores[name]]
        assert memory == redis
    for both in stores.values():
        for store in both:
            await store.close()


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_slots_of_a_gateway_that_has_died_are_free_again(
    kind: str, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (memory_store, redis_store):
        monkeypatch.setattr(module, "SLOTS_HELD_S", 0.3)
    shared = SharedMemory()
    dead, alive = (
        MemoryStore(shared, name, SystemClock()) if kind == "memory" else RedisStore(server.url, "f", name)
        for name in ("dead", "alive")
    )
    request = SlotRequest(5, 0, 5)
    assert (await dead.exchange(b"", {}, {"x": request})).slots["x"].holds == 5
    assert (await alive.exchange(b"", {}, {"x": request})).slots["x"].holds == 0
    await asyncio.sleep(0.35)
    assert (await alive.exchange(b"", {}, {"x": request})).slots["x"].holds == 5
    for store in (dead, alive):
        await store.close()


async def test_slots_that_cannot_be_read_are_ignored(server: RedisServer) -> None:
    store = RedisStore(server.url, "f", "a")
    with server.client() as client:
        for content in (b"", b"\xc1", b"\x80", b"\x81\xa1b\x01", b"\x81\xa1b\x93\xff\x01\x02", b"nonsense"):
            client.hset("llmg:1:{f}:slots", "x", content)
            found = await store.exchange(b"", {}, {"x": SlotRequest(5, 0, 1)})
            assert found.slots["x"].holds == 5
    await store.close()
