"""Tests a fleet on real servers, one of which freezes: a master that Sentinels name, or a node of a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from llm_guard.app import App, create_app
from llm_guard.config import parse_config
from llm_guard.mock.provider import MockProvider
from tests.chaos.wire import Reply
from tests.effort import some
from tests.fakes.redis_server import RedisServer
from tests.fakes.redis_setups import cluster_setup, sentinel_setup
from tests.fakes.waiting import eventually
from tests.integration.test_shared_storage import accepted_by, call, result, text_of


@dataclass(frozen=True, slots=True)
class Setup:
    url: str
    break_it: Callable[[], None]
    mend_it: Callable[[], None]


@pytest.fixture(params=some(["sentinel", "cluster"]))
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    if request.param == "sentinel":
        with sentinel_setup(tmp_path) as servers:
            yield Setup(servers.url, servers.master.freeze, lambda: None)  # the Sentinels name another master
    else:
        with cluster_setup(tmp_path) as cluster:
            owner = cluster.owner("default")
            yield Setup(cluster.url, owner.freeze, owner.thaw)


class Store(RedisServer):
    """Stands for the servers where a test needs only their URL."""

    def __init__(self, url: str) -> None:
        self.url = url


@asynccontextmanager
async def gateways(store: str) -> AsyncIterator[tuple[MockProvider, list[App]]]:
    """Runs two gateways that see one another."""
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(MockProvider())
        apps: list[App] = []
        for _ in range(2):
            folder = stack.enter_context(TemporaryDirectory())
            text = text_of(provider, Store(store), folder, one={"api_key": "sk-own"}, cache={"ttl": "60s"})
            apps.append(create_app(parse_config(text, "setup.yaml", {})))
            await apps[-1].start()
            stack.push_async_callback(apps[-1].stop)
        await eventually(lambda: all(is_shared(app) for app in apps))
        yield provider, apps


async def test_no_call_fails_while_the_store_does_and_all_is_shared_again(setup: Setup) -> None:
    async with gateways(setup.url) as (_, apps):
        assert (await result(apps[1], (await accepted_by(apps[0])).json["id"])).status == 200

        setup.break_it()
        statuses = set()
        while any(is_shared(app) for app in apps):
            statuses |= {(await call(app)).status for app in apps}
        setup.mend_it()
        while not all(is_shared(app) for app in apps):
            statuses |= {(await call(app)).status for app in apps}
        assert statuses == {200}
        deferred = (await accepted_by(apps[0])).json["id"]
        async with asyncio.timeout(15):  # a request that met the frozen server holds the others up for 5 s
            while (reply := await result(apps[1], deferred)).status == 503:
                assert reply.headers["retry-after"]
        assert reply.status == 200


async def test_deferred_calls_that_have_reached_the_replica_outlive_a_master_that_freezes(tmp_path: Path) -> None:
    with sentinel_setup(tmp_path) as servers:
        async with gateways(servers.url) as (provider, apps):
            provider.switch("gpt", "latency:3s")
            calls = [(await accepted_by(apps[number % 2])).json["id"] for number in range(8)]
            await eventually(lambda: provider.stats().requests >= 2)
            provider.switch("gpt", "")
            assert servers.master.client().wait(1, 5000) == 1

            servers.master.freeze()
            statuses = set()
            while any(is_shared(app) for app in apps):
                statuses |= {(await call(app)).status for app in apps}
            while await asyncio.to_thread(servers.master_port) == servers.master.port:
                statuses |= {(await call(app)).status for app in apps}
            named_at = time.monotonic()
            while not all(is_shared(app) for app in apps):
                statuses |= {(await call(app)).status for app in apps}
            shared_s = time.monotonic() - named_at
            assert statuses == {200}
            assert shared_s < 5.0, "0.8 s on a machine that is not busy"
            replies = [[await served(app, each) for app in apps] for each in calls]
            assert all(one.status == other.status == 200 for one, other in replies)
            assert all(one.body == other.body for one, other in replies)


async def served(app: App, call_id: str) -> Reply:
    """Returns the response of a deferred call; a request that met the frozen server holds others up for 5 s."""
    async with asyncio.timeout(40):
        while (reply := await result(app, call_id, 40)).status == 503:
            pass
    return reply


def is_shared(app: App) -> bool:
    return app.fleet is not None and app.fleet.is_connected and len(app.fleet.others) == 1
