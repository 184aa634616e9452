"""The pace of calls to a provider with a rate limit, shared by several gateways through a real Redis server."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from llm_guard.app import App, create_app
from llm_guard.config import parse_config
from llm_guard.resilience.capacity.shared_gate import SharedGate
from tests.chaos.forms import CHAT
from tests.chaos.stand import config_text
from tests.fakes.limited_provider import LimitedProvider
from tests.fakes.redis_server import RedisServer, redis_server
from tests.fakes.waiting import eventually

RATE, GATEWAYS = 40.0, 3
_JSON = {"content-type": "application/json"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@asynccontextmanager
async def gateways(store: str, count: int = GATEWAYS) -> AsyncIterator[tuple[LimitedProvider, list[App]]]:
    """Runs gateways that see one another, before a provider."""
    provider = LimitedProvider(CHAT.answer, RATE, 0.05)
    runner, url = await provider.start()
    own = {"dialect": "openai", "base_url": f"{url}/v1", "api_key": "sk-own"}
    text = config_text(
        url, upstreams={"own": own}, models={"gpt": {"deployments": [{"upstream": "own"}]}}, timeout={"total": "30s"},
        retry={"max_attempts": 4},
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
        await eventually(lambda: all(app.fleet is not None and len(app.fleet.others) == count - 1 for app in apps))
        yield provider, apps


def gate_of(app: App) -> SharedGate:
    gates = next(each.gates for each in app.gateway.deployments() if each.label == "own/gpt")
    gate = gates.all()[0]
    assert isinstance(gate, SharedGate)
    return gate


class Load:
    """Calls that come at random at random gateways, whatever becomes of the others."""

    def __init__(self, apps: list[App], session: aiohttp.ClientSession) -> None:
        self._session = session
        self._urls = {app: f"{app.addresses[0]}{CHAT.path}" for app in apps}
        self._draw = random.Random(1)
        self.statuses = Counter[int]()
        self._tasks = set[asyncio.Task[None]]()

    def leave(self, app: App) -> None:
        """Sends that gateway no more calls."""
        del self._urls[app]

    async def run(self, rate: float, seconds: float) -> None:
        """Sends calls for so many seconds."""
        ends_at = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < ends_at:
            task = asyncio.ensure_future(self._call())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(self._draw.expovariate(rate))

    async def finish(self) -> None:
        await asyncio.gather(*self._tasks)

    async def _call(self) -> None:
        url = self._draw.choice(list(self._urls.values()))
        async with self._session.post(url, data=CHAT.body(), headers=_JSON) as response:
            await response.read()
            self.statuses[response.status] += 1


@asynccontextmanager
async def limited(store: str, count: int = GATEWAYS) -> AsyncIterator[tuple[LimitedProvider, list[App], Load]]:
    """Gateways that have found the provider's limit, with calls that wait at each."""
    async with gateways(store, count) as (provider, apps), aiohttp.ClientSession() as session:
        load = Load(apps, session)
        await load.run(2.5 * RATE, 3.0)
        await load.run(1.1 * RATE, 4.0)
        await eventually(lambda: all(gate_of(app).follows for app in apps))
        yield provider, apps, load
        await load.finish()


def kept(apps: list[App]) -> list[App]:
    """Returns the gateways that decide."""
    return [app for app in apps if app.fleet is not None and app.fleet.paces.kept]


async def test_gateways_keep_to_the_limit_together(server: RedisServer) -> None:
    async with limited(server.url) as (provider, apps, load):
        provider.begin()
        await load.run(1.2 * RATE, 4.0)
        assert provider.answered >= 0.5 * RATE * 4.0
        assert provider.requests <= 1.5 * provider.answered
        assert len(kept(apps)) == 1
        assert len({gate_of(app).snapshot(0.0).rate for app in apps}) <= 2  # one of them may be an exchange behind


async def test_without_the_store_each_gateway_has_a_part_and_shares_again_with_it(server: RedisServer) -> None:
    async with limited(server.url) as (provider, apps, load):
        server.freeze()
        await eventually(lambda: not any(gate_of(app).follows for app in apps), 10.0)
        rates = [gate_of(app).snapshot(asyncio.get_running_loop().time()).rate or 0.0 for app in apps]
        assert sum(rates) <= 3.0 * RATE
        provider.begin()
        await load.run(1.1 * RATE, 3.0)
        assert provider.answered >= 0.4 * RATE * 3.0
        server.thaw()
        await eventually(lambda: all(gate_of(app).follows for app in apps), 10.0)
        provider.begin()
        await load.run(1.1 * RATE, 2.0)
        assert provider.requests <= 2.0 * RATE * 2.0
        assert 503 not in load.statuses


async def test_another_gateway_decides_when_one_stops(server: RedisServer) -> None:
    async with limited(server.url) as (provider, apps, load):
        [keeper] = kept(apps)
        load.leave(keeper)
        await eventually(lambda: not gate_of(keeper).waiting, 20.0)
        assert keeper.fleet is not None
        await keeper.fleet.stop()
        others = [app for app in apps if app is not keeper]
        await load.run(1.1 * RATE, 2.0)
        assert len(kept(others)) == 1
        provider.begin()
        await load.run(1.1 * RATE, 3.0)
        assert provider.answered >= 0.4 * RATE * 3.0
        assert provider.requests <= 1.6 * provider.answered


async def test_nothing_is_exchanged_about_paces_while_no_provider_limits_calls(server: RedisServer) -> None:
    async with gateways(server.url, 2) as (_, apps), aiohttp.ClientSession() as session:
        load = Load(apps, session)
        await load.run(0.5 * RATE, 1.0)
        await load.finish()
        for app in apps:
            assert app.fleet is not None
            assert app.fleet.paces.are_quiet
            assert app.fleet.paces.reports(asyncio.get_running_loop().time()) == {}
