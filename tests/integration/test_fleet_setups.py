"""Tests a fleet on real servers, one of which freezes: a master that Sentinels name, or a node of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from llm_guard.app import App, create_app
from llm_guard.config import parse_config
from llm_guard.mock.provider import MockProvider
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


async def test_no_call_fails_while_the_store_does_and_all_is_shared_again(setup: Setup) -> None:
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(MockProvider())
        apps: list[App] = []
        for _ in range(2):
            folder = stack.enter_context(TemporaryDirectory())
            text = text_of(provider, Store(setup.url), folder, one={"api_key": "sk-own"}, cache={"ttl": "60s"})
            apps.append(create_app(parse_config(text, "setup.yaml", {})))
            await apps[-1].start()
            stack.push_async_callback(apps[-1].stop)
        await eventually(lambda: all(is_shared(app) for app in apps))
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


def is_shared(app: App) -> bool:
    return app.fleet is not None and app.fleet.is_connected and len(app.fleet.others) == 1
