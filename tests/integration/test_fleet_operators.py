"""Operators of a fleet: overrides that hold at all gateways, alerts that are sent once, and the list of gateways."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llm_guard.app import App, create_app
from llm_guard.cli.main import main
from llm_guard.config import parse_config
from llm_guard.mock.provider import MockProvider
from llm_guard.storage.shared.exchange_store import ExchangeStore, Override
from llm_guard.storage.shared.memory_store import MemoryStore, SharedMemory
from llm_guard.storage.shared.redis_store import RedisStore
from tests.chaos.stand import config_text
from tests.chaos.wire import Reply, ask
from tests.fakes.clock import ManualClock
from tests.fakes.provider import ScriptedProvider, whole
from tests.fakes.redis_server import RedisServer, redis_server
from tests.fakes.waiting import eventually
from tests.integration.operating import audit, change, get, post
from tests.tokens import SHARED

BODY = json.dumps({"model": "gpt", "messages": [{"role": "user", "content": "hello"}]}).encode()
TAKEN = [whole(200, b"{}")]
QUICK = {"below": 0.95, "for": "0s", "resolve_after": "0s"}
RULES: Mapping[str, Any] = {
    "success_rate": QUICK, "breaker_open": {"resolve_after": "0s"}, "calls_refused": "off", "failure_spike": "off",
    "budget_exhausted": "off", "loop_lag": "off", "group_wait": "1s",
}  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


async def start(stack: AsyncExitStack, provider: MockProvider, store: str, **sections: Any) -> App:
    degraded = {"gpt": {"deployments": [{"upstream": "one"}], "degraded": {"window": "10s"}}}
    own = {"store": stack.enter_context(TemporaryDirectory())}  # else all would have one audit trail
    sections["ops"] = {**own, **sections.get("ops", {})}
    text = config_text(
        provider.url, breaker={"consecutive_failures": 5, "open_for": "300ms"}, **{"models": degraded, **sections}
    )  # fmt: skip
    config = parse_config(json.dumps({**json.loads(text), "fleet": {"store": store, "name": "prod"}}), "fleet.yaml", {})
    app = create_app(config)
    await app.start()
    stack.push_async_callback(app.stop)
    return app


@asynccontextmanager
async def fleet(
    server: RedisServer, gateways: int = 3, **sections: Any
) -> AsyncIterator[tuple[MockProvider, list[App]]]:
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(MockProvider())
        apps = [await start(stack, provider, server.url, **sections) for _ in range(gateways)]
        await eventually(lambda: all(app.fleet is not None and len(app.fleet.others) == gateways - 1 for app in apps))
        yield provider, apps


async def call(app: App) -> Reply:
    return await ask(app.addresses[0], "/v1/chat/completions", BODY)


async def statuses(apps: list[App]) -> list[int]:
    return [reply.status for reply in await asyncio.gather(*map(call, apps))]


async def hold_everywhere(apps: list[App], status: int, within_s: float = 5.0) -> None:
    """Waits until each gateway responds so. How soon it does is measured in `benchmarks.fleet`."""
    async with asyncio.timeout(within_s):
        while set(await statuses(apps)) != {status}:
            pass


async def noted(app: App, entry: tuple[str, str, str, str]) -> None:
    """Waits until the gateway has this entry in its audit trail, which is written in the background."""
    async with asyncio.timeout(5.0):
        while entry not in await audit(app.addresses[0]):
            pass


# overrides


async def test_override_holds_at_all_gateways_until_it_is_reset_at_another(server: RedisServer) -> None:
    async with fleet(server) as (_provider, apps):
        assert await statuses(apps) == [200] * 3
        await change(apps[0].addresses[0], "breakers/force-open", deployment="one/gpt", reason="it leaks")
        await hold_everywhere(apps, 503)
        (seen,) = [one for one in await get(apps[2].addresses[0], "deployments") if one["deployment"] == "one/gpt"]
        assert (seen["breaker"]["state"], seen["breaker"]["reason"]) == ("forced_open", "it leaks")
        await noted(apps[2], ("ann from 127.0.0.1", "breakers.force-open", "one/gpt", "it leaks"))

        await change(apps[1].addresses[0], "breakers/reset", deployment="one/gpt", reason="it was mended")
        await hold_everywhere(apps, 200)
        await noted(apps[0], ("ann from 127.0.0.1", "breakers.reset", "one/gpt", "it was mended"))


async def test_every_kind_of_override_is_shared_and_ended(server: RedisServer) -> None:
    kinds = [
        ("deployments/drain", {"deployment": "one/gpt"}, "deployments/uncordon"),
        ("deployments/cordon", {"deployment": "one/gpt", "for_": "1h"}, "deployments/uncordon"),
        ("breakers/force-closed", {"upstream": "one"}, "breakers/reset"),
        ("degraded/enter", {"model": "gpt"}, "degraded/auto"),
        ("degraded/exit", {}, "degraded/auto"),
        ("alerts/silence", {"alert": "latency", "subject": "gpt", "for_": "1h"}, "alerts/unsilence"),
    ]
    async with fleet(server, 2) as (_provider, (one, two)):
        assert one.fleet is not None
        for path, body, ending in kinds:
            await change(one.addresses[0], path, **body)
            await eventually(lambda: len(_overrides(two)) == 1)
            assert _targets(two) == _targets(one), path
            target = {name: value for name, value in body.items() if name != "for_"}
            await change(two.addresses[0], ending, **target)
            await eventually(lambda: _overrides(one) == [])


def _targets(app: App) -> list[str]:
    assert app.ops._shared_overrides is not None
    return list(app.ops._shared_overrides.current())


def _overrides(app: App) -> list[object]:
    return list(app.ops._operator_state.overrides())


async def test_override_outlives_a_restart_of_all_gateways(server: RedisServer) -> None:
    async with fleet(server, 2) as (_provider, apps):
        await change(apps[0].addresses[0], "breakers/force-open", deployment="one/gpt", for_="1h")
        await hold_everywhere(apps, 503)
    async with fleet(server, 2) as (_provider, apps):
        assert await statuses(apps) == [503, 503], "also the first call"


async def test_override_ends_everywhere_at_its_end(server: RedisServer) -> None:
    async with fleet(server, 2) as (_provider, apps):
        await change(apps[0].addresses[0], "breakers/force-open", deployment="one/gpt", for_="1s")
        await hold_everywhere(apps, 503)
        await hold_everywhere(apps, 200, 3.0)
        for app in apps:
            await noted(app, ("expiry", "breakers.reset", "one/gpt", "the override expired"))
    async with fleet(server, 1) as (_provider, apps):
        assert await statuses(apps) == [200]
        assert await audit(apps[0].addresses[0]) == [], "an override that has ended is not put into effect again"


async def test_change_without_the_store_is_shared_when_it_is_back(server: RedisServer) -> None:
    async with fleet(server, 2) as (_provider, apps):
        server.freeze()
        await change(apps[0].addresses[0], "breakers/force-open", deployment="one/gpt")
        assert await statuses(apps) == [503, 200]
        server.thaw()
        await hold_everywhere(apps, 503, 3.0)


async def test_store_that_was_emptied_gets_the_overrides_again(server: RedisServer) -> None:
    async with fleet(server, 2) as (provider, apps):
        await change(apps[0].addresses[0], "breakers/force-open", deployment="one/gpt")
        await hold_everywhere(apps, 503)
        server.kill()
        server.start()
        await eventually(lambda: all(app.fleet is not None and len(app.fleet.others) == 1 for app in apps), 4.0)
        async with AsyncExitStack() as stack:
            new = await start(stack, provider, server.url)
            await hold_everywhere([new], 503)


async def test_reload_that_ends_an_override_here_ends_it_nowhere_else(server: RedisServer, tmp_path: Path) -> None:
    """Each gateway ends it at its own reload: their configs are changed one after the other."""
    async with fleet(server, 2) as (_provider, (one, two)):
        await change(one.addresses[0], "deployments/drain", deployment="one/gpt")
        await eventually(lambda: len(_overrides(two)) == 1)
        one.ops._controls.holds.adopt(set())
        assert one.ops._shared_overrides is not None
        one.ops._shared_overrides.follow()
        await change(one.addresses[0], "alerts/silence", alert="latency", for_="1h")
        await eventually(lambda: len(_overrides(two)) == 2)


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ('["breaker","one/gpt",null,null]', b"nonsense"),
        ('["breaker","one/gpt",null,null]', b'{"deployment": "one/other"}'),
        ("nonsense", b"{}"),
        ("[[[", b"{}"),
        ('["unknown","x"]', b'{"label": "x"}'),
        ('["hold","one/gpt"]', b'{"label":"one/gpt","kind":"x","reason":"","who":"","since":1,"until":null}'),
        ('["hold","one/gpt"]', b'{"label":"one/gpt","kind":"drained","reason":"","who":"","since":1e300,"until":null}'),
        ('["hold","one/gpt"]', b'{"label":"one/gpt","kind":"drained","reason":"","who":"","since":1,"until":1}'),
        ('["hold","one/gpt"]', b'{"label":"' + b"x" * 9000 + b'"}'),
    ],
)
async def test_override_that_cannot_be_read_is_counted_and_changes_nothing(
    server: RedisServer, key: str, content: bytes
) -> None:
    async with fleet(server, 1) as (_provider, apps):
        stranger = RedisStore(server.url, "prod", "stranger")
        await stranger.change_overrides({key: Override(0.0, content, is_ended=False)})
        await stranger.close()
        await eventually(lambda: apps[0].fleet is not None and apps[0].fleet.unreadable == 1)
        assert _overrides(apps[0]) == []
        assert await statuses(apps) == [200]


@pytest.mark.parametrize("version", [b"nan", b"1e300", b"-5", b"text"])
async def test_version_that_is_nonsense_hides_no_change(server: RedisServer, version: bytes) -> None:
    async with fleet(server, 2) as (_provider, apps):
        with server.client() as client:
            client.hset("llmg:1:{prod}:overrides", "", version)
        await change(apps[0].addresses[0], "breakers/force-open", deployment="one/gpt")
        await hold_everywhere(apps, 503)


async def test_overrides_of_a_wrong_type_do_not_end_the_exchanges(server: RedisServer) -> None:
    async with fleet(server, 2) as (_provider, apps):
        with server.client() as client:
            client.delete("llmg:1:{prod}:overrides")
            client.set("llmg:1:{prod}:overrides", "text")
        await change(apps[0].addresses[0], "breakers/force-open", deployment="one/gpt")
        member = apps[0].fleet
        assert member is not None
        await eventually(lambda: "ResponseError" in member.failures)
        assert member.is_connected
        assert await statuses(apps) == [503, 200]


async def test_override_that_a_new_config_overrules_ends_nowhere_else(server: RedisServer) -> None:
    async with fleet(server, 2) as (_provider, (one, two)):
        await change(one.addresses[0], "breakers/force-closed", deployment="one/gpt")
        await eventually(lambda: len(_overrides(two)) == 1)
        for deployment in one.gateway.deployments():
            if deployment.label == "one/gpt":
                deployment.breaker.force("metrics_only", time.monotonic())  # as a reload does
        one.ops.follow(one.reloads.current)
        assert _overrides(one) == []
        await change(one.addresses[0], "alerts/silence", alert="latency", for_="1h")
        await eventually(lambda: len(_overrides(two)) == 2)


async def test_change_that_fails_halfway_holds_everywhere(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(server, 2) as (_provider, apps):
        monkeypatch.setattr(apps[0].ops._controls, "_view", lambda _label: 1 / 0)
        reply = await post(apps[0].addresses[0], "breakers/force-open", deployment="one/gpt")
        assert reply.status == 500
        await hold_everywhere(apps, 503)


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_latest_change_of_an_override_wins(kind: str, server: RedisServer) -> None:
    shared, clock = SharedMemory(), ManualClock()
    stores: list[ExchangeStore] = [
        MemoryStore(shared, name, clock) if kind == "memory" else RedisStore(server.url, "x", name)
        for name in ("first", "second")
    ]
    first, second = stores
    assert (await first.exchange(b"", {})).overrides_version == 0
    clock.advance(100.0)
    found = await first.change_overrides({"a": Override(1.0, b"1", is_ended=False)})
    assert (found.entries["a"].content, found.entries["a"].is_ended) == (b"1", False)
    assert (await second.exchange(b"", {})).overrides_version == found.version > 0
    late = await second.change_overrides({"a": Override(60.0, b"2", is_ended=False)})
    assert late.entries["a"].content == b"1", "it is older, and only its gateway was cut off"
    ended = await second.change_overrides({"a": Override(0.0, b"3", is_ended=True)})
    assert (ended.entries["a"].content, ended.entries["a"].is_ended) == (b"3", True)
    assert ended.version > found.version
    again = await first.change_overrides({})
    assert (again.version, again.entries["a"].since_ms) == (ended.version, ended.entries["a"].since_ms)
    timed = await first.change_overrides({"b": Override(0.0, b"4", is_ended=False, left_s=60.0)})
    left_s = timed.entries["b"].left_s
    assert left_s is not None
    assert 50 < left_s <= 60
    for store in stores:
        await store.close()


# alerts


async def test_outage_that_all_gateways_see_is_one_notice_and_one_end(server: RedisServer) -> None:
    async with ScriptedProvider(TAKEN) as receiver:
        ops = {"alerts": RULES, "webhooks": [{"url": receiver.url, "name": "team"}]}
        async with fleet(server, ops=ops) as (provider, apps):
            provider.switch("gpt", "status:503")
            async with asyncio.timeout(20):
                while not all([await _fires(app) for app in apps]):
                    await statuses(apps)
            await eventually(lambda: len(receiver.requests) >= 1, 10.0)
            provider.switch("gpt", "")
            async with asyncio.timeout(30):
                while any([await _fires(app) for app in apps]):
                    await asyncio.gather(*map(statuses, [apps] * 20))
            await eventually(lambda: len(receiver.requests) >= 2, 10.0)
            await asyncio.sleep(1.5)  # another gateway would have sent by now
        bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in receiver.requests]
    told = [(alert["state"], alert["id"]) for body in bodies for alert in body["alerts"]]
    assert [state for state, _ in told if state == "resolved"] == ["resolved"]
    assert len({id_ for _, id_ in told}) == 1
    assert {body["source"] for body in bodies} == {"fleet prod"}
    severities = [alert["severity"] for body in bodies for alert in body["alerts"] if alert["state"] == "firing"]
    assert len(severities) == len(set(severities)), "a second notice only for a more severe alert"


async def _fires(app: App) -> bool:
    return bool((await get(app.addresses[0], "alerts"))["firing"])


# logins


async def test_login_at_one_gateway_is_valid_at_all(server: RedisServer) -> None:
    async with fleet(server, 2) as (_provider, apps):
        first, second = (app.addresses[0] for app in apps)
        body = json.dumps({"token": SHARED}).encode()
        reply = await ask(first, "/dashboard/login", body, {"host": "localhost"})
        assert reply.status == 200, reply.text
        cookie = reply.headers["set-cookie"].partition(";")[0]
        headers = {"host": "localhost", "cookie": cookie}
        assert (await ask(second, "/admin/session", headers=headers, method="GET")).status == 200


# the list of gateways


async def test_gateways_are_listed_with_their_load(server: RedisServer, tmp_path: Path) -> None:
    async with fleet(server, ops={"store": str(tmp_path / "same")}) as (provider, apps):
        provider.switch("gpt", "status:503")
        for _ in range(3):
            assert await statuses(apps) == [503] * 3
        await eventually(lambda: _shown(apps[0]) == [(3, 1)] * 3, 4.0)
        seen = await get(apps[0].addresses[0], "replicas")
        assert (seen["name"], seen["is_connected"], seen["problem"]) == ("prod", True, None)
        assert [one["is_this"] for one in seen["replicas"]] == [True, False, False]
        assert [one["has_same_config"] for one in seen["replicas"]] == [True, True, True]
        assert [one["has_same_token"] for one in seen["replicas"]] == [True, True, True]
        snapshot = await get(apps[0].addresses[0], "metrics")
        assert [one["id"] for one in snapshot["fleet"]["replicas"]] == [one["id"] for one in seen["replicas"]]
        server.freeze()
        await eventually(lambda: apps[0].fleet is not None and not apps[0].fleet.is_connected)
        alone = await get(apps[0].addresses[0], "replicas")
        assert (alone["is_connected"], alone["problem"], len(alone["replicas"])) == (False, "TimeoutError", 1)


async def test_gateways_with_another_config_are_marked(server: RedisServer) -> None:
    async with fleet(server) as (_provider, apps):  # each has an `ops.store` of its own
        seen = await get(apps[0].addresses[0], "replicas")
        assert [one["has_same_config"] for one in seen["replicas"]] == [True, False, False]


def _shown(app: App) -> list[tuple[int, int]]:
    assert app.fleet is not None
    return [(one.status.calls, one.open_breakers) for one in (app.fleet.own(), *app.fleet.others)]


async def test_gateway_without_a_fleet_lists_none() -> None:
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(MockProvider())
        app = create_app(parse_config(config_text(provider.url), "alone.yaml", {}))
        await app.start()
        stack.push_async_callback(app.stop)
        assert await get(app.addresses[0], "replicas") is None
        assert (await get(app.addresses[0], "metrics"))["fleet"] is None


# the command


def test_check_says_what_it_finds_of_the_store(server: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    text = config_text("http://localhost:1", server={"port": 8080})

    def check(store: str | None, *options: str) -> Result:
        fleet = {} if store is None else {"fleet": {"store": store, "name": "prod"}}
        path.write_text(json.dumps({**json.loads(text), **fleet}))
        return CliRunner().invoke(main, ["check", "-c", str(path), *options])

    assert re.search(
        r"fleet prod: Redis \d+\.\d+.* answers in .* ms, .*noeviction; .*: 0", check(server.url, "--online").stdout
    )
    assert "Redis" not in check(server.url).stdout
    assert "fleet: none" in check(None, "--online").stdout
    for policy in ("allkeys-lru", "volatile-lru"):
        with server.client() as client:
            client.config_set("maxmemory-policy", policy)
        assert f"fleet.store: maxmemory-policy {policy} may evict" in check(server.url, "--online").stderr
    gone = check(f"unix://{tmp_path}/nothing.sock", "--online", "--strict")
    assert "fleet.store: does not answer (ConnectionError)" in gone.stderr
    assert gone.exit_code == 2
