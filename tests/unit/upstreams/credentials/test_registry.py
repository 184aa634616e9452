"""The credentials of a config's upstreams, over reloads."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from llm_guard.config import AwsSettings, CloudSettings, GoogleSettings
from llm_guard.proxy.http_client.authorized_origin import AuthorizedOrigin
from llm_guard.proxy.http_client.connection_pool import ConnectionPool
from llm_guard.routing.deployment import Upstream
from llm_guard.upstreams.credentials import providers
from llm_guard.upstreams.credentials.registry import UpstreamCredentials
from llm_guard.upstreams.credentials.source import CloudCredential
from tests.fakes.clock import SteppedClock
from tests.fakes.waiting import eventually

RUNTIME = AwsSettings(region="us-east-1", service="bedrock")
MANTLE = AwsSettings(region="us-east-1", service="bedrock-mantle")


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[CloudSettings] = []
        self.clock = SteppedClock()
        self.connections = ConnectionPool()
        self.credentials = UpstreamCredentials(self.connections, self.clock, lambda: 0.0)
        monkeypatch.setattr(providers, "fetcher_of", lambda settings: lambda: self._fetch(settings))

    def _fetch(self, settings: CloudSettings) -> CloudCredential:
        self.asked.append(settings)
        if isinstance(settings, GoogleSettings):
            raise OSError("down")
        return CloudCredential("token", None, "access", "secret")

    def adopt(self, **clouds: CloudSettings) -> dict[str, Upstream]:
        upstreams = {
            name: Upstream(name, "openai", f"https://{name}.example/v1", None, "aws", cloud=cloud)
            for name, cloud in clouds.items()
        }
        self.credentials.adopt(upstreams)
        return upstreams


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    world = World(monkeypatch)
    yield world
    await world.credentials.stop()
    await world.connections.close()


async def test_upstreams_of_one_account_share_its_credentials(world: World) -> None:
    upstreams = world.adopt(a=RUNTIME, b=MANTLE, c=RUNTIME)
    await eventually(lambda: world.asked)
    await world.clock.pass_s(1)
    assert world.asked == [AwsSettings(region="us-east-1")]
    assert all(isinstance(world.connections.origin(one.link), AuthorizedOrigin) for one in upstreams.values())


async def test_credentials_that_no_upstream_needs_any_more_are_not_renewed(world: World) -> None:
    world.adopt(a=RUNTIME)
    await eventually(lambda: world.asked)
    world.adopt(a=AwsSettings(region="eu-west-1", service="bedrock"))
    await eventually(lambda: len(world.asked) == 2)
    await world.clock.pass_s(301)
    await eventually(lambda: len(world.asked) == 3)
    assert [settings.region for settings in world.asked if isinstance(settings, AwsSettings)] == [
        "us-east-1", "eu-west-1", "eu-west-1",
    ]  # fmt: skip


async def test_reload_keeps_credentials_that_are_still_needed(world: World) -> None:
    world.adopt(a=RUNTIME)
    await eventually(lambda: world.asked)
    world.adopt(a=RUNTIME, b=RUNTIME)
    await world.clock.pass_s(1)
    assert len(world.asked) == 1


async def test_problems_are_named_by_upstream(world: World) -> None:
    world.adopt(a=RUNTIME, b=GoogleSettings())
    assert await world.credentials.problem_of("a") is None
    assert await world.credentials.problem_of("b") == "OSError: down"
    assert await world.credentials.problem_of("without a cloud") is None
    assert world.credentials.problems() == {"a": None, "b": "OSError: down"}
