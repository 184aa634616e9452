"""Several gateways that share their breakers through a real Redis server, and what happens when that fails."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from llm_guard.app import App, create_app
from llm_guard.clock import SystemClock
from llm_guard.config import ConfigError, parse_config
from llm_guard.config.fleet import store_address
from llm_guard.mock.provider import MockProvider
from llm_guard.outcome import Signal
from llm_guard.resilience.circuit_breaker.breaker import Breaker
from llm_guard.resilience.circuit_breaker.shared_breaker import SharedBreaker
from llm_guard.routing.route_table import compile_routes
from llm_guard.storage.calls.bodies import Bodies
from llm_guard.storage.calls.redis_store import RedisCallStore
from llm_guard.storage.shared.exchange_store import ExchangeStore, Leases, StoreUnavailable
from llm_guard.storage.shared.memory_store import MemoryStore, SharedMemory
from llm_guard.storage.shared.redis_store import RedisStore
from tests.chaos.lag import measured
from tests.chaos.stand import config_text, total
from tests.chaos.wire import Reply, ask, fetch
from tests.fakes.certificates import Authority
from tests.fakes.fleet_names import NAMES
from tests.fakes.redis_server import RedisServer, redis_server
from tests.fakes.waiting import eventually
from tests.integration.test_engines import free_port

KEY = "sk-of-the-fleet-0123456789"
PROMPT = "a prompt that nobody else may read"
BODY = json.dumps({"model": "gpt", "messages": [{"role": "user", "content": PROMPT}]}).encode()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


def config_with(provider: MockProvider, store: str | None) -> str:
    own = {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_key": KEY}
    text = config_text(
        provider.url, breaker={"consecutive_failures": 5}, upstreams={"own": own},
        models={"gpt": {"deployments": [{"upstream": "own"}]}},
    )  # fmt: skip
    return text if store is None else json.dumps({**json.loads(text), "fleet": {"store": store}})


@asynccontextmanager
async def fleet(store: str | None, gateways: int = 3) -> AsyncIterator[tuple[MockProvider, list[App]]]:
    """Runs gateways that see one another, before a provider."""
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(MockProvider())
        apps = []
        for _ in range(gateways):
            app = create_app(parse_config(config_with(provider, store), "fleet.yaml", {}))
            await app.start()
            stack.push_async_callback(app.stop)
            apps.append(app)
        if store is not None:
            await eventually(
                lambda: all(app.fleet is not None and len(app.fleet.others) == gateways - 1 for app in apps)
            )
        yield provider, apps


async def call(app: App) -> Reply:
    return await ask(app.addresses[0], "/v1/chat/completions", BODY)


def states(apps: list[App]) -> list[str]:
    return [breaker_of(app).state for app in apps]


def breaker_of(app: App) -> Breaker:
    return next(each.breaker for each in app.gateway.deployments() if each.label == "own/gpt")


def needs_no_lease(app: App) -> bool:
    """Returns whether the gateway may probe without the right."""
    breaker = breaker_of(app)
    return isinstance(breaker, SharedBreaker) and breaker.lease.is_free(time.monotonic())


async def fail(apps: list[App], provider: MockProvider, calls: int = 6) -> None:
    provider.switch("gpt", "status:503")
    for n in range(calls):
        await call(apps[n % len(apps)])


# what is shared


async def test_gateways_notice_an_outage_and_its_end_together(server: RedisServer) -> None:
    async with fleet(server.url) as (provider, apps):
        for app in apps:
            assert (await call(app)).status == 200
        await fail(apps, provider)
        await eventually(lambda: set(states(apps)) == {"open"})
        why = breaker_of(apps[0]).history.latest()[-1].why
        assert why.endswith("failures in a row at 3 gateways")

        provider.switch("gpt", "")
        await eventually(lambda: not any(map(needs_no_lease, apps)))
        await eventually(lambda: breaker_of(apps[1]).awaits_lease(time.monotonic()), 2.0)
        assert (await call(apps[1])).status == 200, "it waits for the right to be the probe"
        await eventually(lambda: "open" not in states(apps))
        await asyncio.gather(*map(call, apps))
        assert set(states(apps)) == {"closed"}


async def test_without_a_store_each_gateway_is_alone() -> None:
    async with fleet(None) as (provider, apps):
        await fail(apps, provider)
        await asyncio.sleep(0.3)
        assert states(apps) == ["closed"] * 3
        assert [app.fleet for app in apps] == [None] * 3
        assert "\nllm_guard_fleet_" not in (await fetch(f"{apps[0].addresses[0]}/metrics")).text


async def test_trouble_of_one_gateway_refuses_no_call_of_the_others(server: RedisServer) -> None:
    async with fleet(server.url) as (_provider, apps):
        struck, *others = apps
        deployment = next(each for each in struck.gateway.deployments() if each.label == "own/gpt")
        for n in range(30):
            permit = deployment.breaker.try_acquire(time.monotonic())
            if permit is not None:
                deployment.breaker.settle(permit, Signal.UNHEALTHY, time.monotonic())
            assert (await call(others[n % 2])).status == 200
        assert states(apps)[0] in ("open", "half_open")
        assert states(others) == ["closed", "closed"]


async def test_gateway_that_stops_is_forgotten_at_once(server: RedisServer) -> None:
    async with fleet(server.url) as (_provider, apps):
        await apps[2].stop()
        await eventually(lambda: all(app.fleet is not None and len(app.fleet.others) == 1 for app in apps[:2]), 1.0)


# the store fails


async def test_frozen_store_delays_no_call_and_is_used_again_at_once(server: RedisServer) -> None:
    async with fleet(server.url) as (_provider, apps):
        server.freeze()
        with measured() as lag:
            began_at, slowest_s = time.monotonic(), 0.0
            while time.monotonic() < began_at + 1.5:
                replies = await asyncio.gather(*map(call, apps))
                assert {reply.status for reply in replies} == {200}
                slowest_s = max(slowest_s, *(reply.took_s for reply in replies))
        assert slowest_s < 0.2 + lag.total_s
        text = (await fetch(f"{apps[0].addresses[0]}/metrics")).text
        assert total(text, "llm_guard_fleet_store_up") == 0
        assert total(text, "llm_guard_fleet_replicas") == 1
        assert total(text, "llm_guard_fleet_exchanges_total", outcome="TimeoutError") >= 1

        server.thaw()
        await eventually(
            lambda: all(app.fleet is not None and len(app.fleet.others) == 2 for app in apps), 1.5 + lag.total_s
        )


async def test_killed_store_is_used_again_when_it_is_back(server: RedisServer) -> None:
    async with fleet(server.url) as (_provider, apps):
        server.kill()
        await eventually(lambda: not any(app.fleet is not None and app.fleet.is_connected for app in apps))
        replies = await asyncio.gather(*(call(apps[n % 3]) for n in range(30)))
        assert {reply.status for reply in replies} == {200}
        server.start()
        await eventually(lambda: all(app.fleet is not None and len(app.fleet.others) == 2 for app in apps), 2.5)


async def test_gateway_that_is_alone_probes_without_the_store(server: RedisServer) -> None:
    async with fleet(server.url) as (provider, apps):
        await fail(apps, provider)
        await eventually(lambda: set(states(apps)) == {"open"})
        server.freeze()
        provider.switch("gpt", "")
        await eventually(lambda: not any(app.fleet is not None and app.fleet.is_connected for app in apps))
        assert {reply.status for reply in await asyncio.gather(*map(call, apps))} == {200}


async def test_gateway_starts_without_the_store(tmp_path: Path) -> None:
    async with MockProvider() as provider:
        config = parse_config(config_with(provider, f"unix://{tmp_path}/nothing.sock"), "fleet.yaml", {})
        app = create_app(config)
        await app.start()
        try:
            assert (await call(app)).status == 200
        finally:
            await app.stop()


# what is in the store


async def test_store_holds_no_key_and_no_prompt(server: RedisServer) -> None:
    async with fleet(server.url) as (provider, apps):
        await asyncio.gather(*map(call, apps))
        await fail(apps, provider)
        await eventually(lambda: set(states(apps)) == {"open"})
        with server.client() as client:
            found = {name: client.hgetall(name) for name in client.keys()}  # noqa: SIM118  # the client is no mapping
            ends = [client.ttl(name) for name in found]
        text = repr(found)
        assert len(found) >= 1
        assert "gpt" not in text
        assert KEY not in text
        assert PROMPT not in text
        assert all(0 < seconds <= 60 for seconds in ends)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x81\xa8breakers\x81\xa1x\x80", b"9" * 1_100_000])
async def test_what_cannot_be_read_is_counted_and_changes_nothing(server: RedisServer, content: bytes) -> None:
    async with fleet(server.url, 1) as (_provider, apps):
        member = apps[0].fleet
        assert member is not None
        before = member.exchanges
        with server.client() as client:
            client.hset("llmg:1:{default}:replicas", "stranger", b"%d:" % (time.time() * 1000) + content)
            client.hset("llmg:1:{default}:replicas", "nobody", b"no time")
        await eventually(lambda: member.exchanges > before + 2)
        assert member.others == ()
        assert member.unreadable >= 1
        assert (await call(apps[0])).status == 200


# the interface of a store


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_stores_exchange_contents_and_grant_leases(kind: str, server: RedisServer) -> None:
    shared = SharedMemory()
    stores: list[ExchangeStore] = [
        MemoryStore(shared, name, SystemClock()) if kind == "memory" else RedisStore(server.url, "a fleet", name)
        for name in ("first", "second")
    ]
    first, second = stores
    found = await first.exchange(b"1:\x00", {"a": 5.0})
    assert (found.others, found.leases) == ((), Leases({"a": 5.0}, {}))
    found = await second.exchange(b"2", {"a": 5.0, "b": 0.02})
    assert [(each.replica, each.content) for each in found.others] == [("first", b"1:\x00")]
    assert 0 <= found.others[0].age_s < 1.0
    assert dict(found.leases.held) == {"b": 0.02}
    assert found.leases.taken == {"a": pytest.approx(5.0, abs=1.0)}
    found = await first.exchange(b"", {"a": 1.5, "b": 1.0})
    assert [(each.replica, each.content) for each in found.others] == [("second", b"2")]
    assert dict(found.leases.held) == {"a": 1.5}
    await asyncio.sleep(0.03)
    assert dict((await first.exchange(b"", {"b": 1.0})).leases.held) == {"b": 1.0}
    await first.close()
    assert (await second.exchange(b"2", {})).others == ()
    await second.close()


async def test_dates_in_the_future_are_nonsense(server: RedisServer) -> None:
    """They would be leases that never end, and recoveries that have not happened yet."""
    store = RedisStore(server.url, "x", "a")
    later = str(int((time.time() + 3600) * 1000)).encode()
    with server.client() as client:
        for number, at in enumerate((later, b"nan", b"inf", b"9" * 400)):
            client.hset("llmg:1:{x}:leases", f"s{number}", at + b":other")
            client.hset("llmg:1:{x}:replicas", f"r{number}", at + b":content")
    found = await store.exchange(b"", {f"s{number}": 1.0 for number in range(4)})
    assert len(found.leases.held) == 4
    assert [each.age_s for each in found.others if each.age_s < 0] == []
    await store.close()


async def test_slow_store_is_given_up_as_a_whole() -> None:
    """Each step of a new connection may take its time, but not all together."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        has_ended.clear()
        while await reader.read(1 << 16):
            await asyncio.sleep(0.2)
            writer.write(b"+OK\r\n")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        has_ended.set()

    has_ended = asyncio.Event()
    has_ended.set()  # on a busy machine there may be no connection in time
    slow = await asyncio.start_server(answer, "127.0.0.1", 0)
    store = RedisStore(f"redis://127.0.0.1:{slow.sockets[0].getsockname()[1]}/0", "x", "a")
    with measured() as lag:
        began_at = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await store.exchange(b"", {})
        took_s = time.monotonic() - began_at
    assert took_s < 0.8 + lag.total_s
    await store.close()
    await has_ended.wait()
    slow.close()
    await slow.wait_closed()


async def test_late_response_is_not_taken_for_that_of_the_next_exchange(server: RedisServer) -> None:
    store = RedisStore(server.url, "x", "a")
    await store.exchange(b"", {})
    server.freeze()
    with pytest.raises(StoreUnavailable, match="TimeoutError"):
        await store.exchange(b"", {"first": 5.0})
    cancelled = asyncio.ensure_future(store.exchange(b"", {"second": 5.0}))
    await asyncio.sleep(0.01)
    cancelled.cancel()
    await asyncio.wait((cancelled,))
    server.thaw()
    assert (await store.exchange(b"", {"third": 5.0})).leases.held == {"third": 5.0}
    await store.close()


async def test_store_with_tls_is_verified(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path)
    pair, port = authority.pair("redis"), free_port()
    options = ("--tls-port", str(port), "--tls-cert-file", pair["cert"], "--tls-key-file", pair["key"])
    with redis_server(tmp_path, *options, "--tls-ca-cert-file", str(authority.file), "--tls-auth-clients", "no"):
        store = RedisStore(f"rediss://localhost:{port}/0?ssl_ca_certs={authority.file}", "x", "a")
        assert (await store.exchange(b"", {"lease": 5.0})).leases.held == {"lease": 5.0}
        await store.close()
        script = RedisCallStore(
            f"rediss://localhost:{port}/0?ssl_ca_certs={authority.file}", "x", "a", Bodies("plain", None), SystemClock()
        )
        assert script.stats().count == {}
        script.close()
        stranger = RedisStore(f"rediss://localhost:{port}/0?ssl_ca_certs={other.file}", "x", "a")
        with pytest.raises(StoreUnavailable):
            await stranger.exchange(b"", {})
        await stranger.close()


async def test_fleets_with_other_names_do_not_meet(server: RedisServer) -> None:
    names = ("one", "two", "one:replicas", "{one}", "one}:replicas", "one\n")
    stores = [RedisStore(server.url, name, "same") for name in names]
    for store in stores:
        assert (await store.exchange(b"x", {"a": 5.0})).leases.held == {"a": 5.0}
    assert [(await store.exchange(b"x", {})).others for store in stores] == [()] * len(names)
    for store in stores:
        await store.close()


def test_names_of_models_are_no_part_of_a_key() -> None:
    models = {name: {"deployments": [{"upstream": "own"}]} for name in ("a:b", "a", "{a}", "b/1", "a/1:b")}
    upstreams = {"own": {"dialect": "openai", "base_url": "https://provider.example/v1"}}
    config = parse_config(json.dumps({"upstreams": upstreams, "models": models}), "fleet.yaml", {})
    deployments = compile_routes(config, 0.0, new_breaker=SharedBreaker).deployments()
    subjects = [NAMES.subject(each) for each in deployments]
    assert len(set(subjects)) == len({each.model for each in deployments}) >= len(models)
    assert all(re.fullmatch("[0-9a-f]{16}", subject) for subject in subjects)


async def test_failure_of_the_store_says_what_failed_and_quotes_no_secret(server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("requirepass", "secret-of-redis")
    store = RedisStore(server.url, "x", "a")
    with pytest.raises(StoreUnavailable) as caught:
        await store.exchange(b"", {})
    assert "secret" not in str(caught.value)
    assert str(caught.value) == "AuthenticationError"
    await store.close()


# the config


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6379",
        "http://redis:6379",
        "redis://",
        "unix://",
        "redis://h:99999",
        "redis://h:0/0",
        "redis://one,two/0",
        "redis+sentinel://h:26379",
        "redis+sentinel://h,:26379/prod",
        "redis+sentinel://h/prod/x",
        "redis+cluster://h/1",
        "redis+cluster://",
        "redis://h/x",
        "unix:///s?db=x",
    ],
)
def test_store_that_is_no_url_of_redis_is_refused(url: str) -> None:
    text = json.dumps({"fleet": {"store": url}, "upstreams": {}, "models": {}})
    with pytest.raises(ConfigError, match=r"fleet\.store: must be a URL such as redis://HOST:6379/0"):
        parse_config(text, "fleet.yaml", {})


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("redis://redis", ("server", (("redis", 6379),), "", "", 0, None, None, False)),
        ("rediss://u:p%40ss@[::1]:7000/2", ("server", (("::1", 7000),), "", "", 2, "u", "p@ss", True)),
        ("redis://:secret@h:1?db=3", ("server", (("h", 1),), "", "", 3, None, "secret", False)),
        ("unix:///run/redis.sock?db=4", ("server", (), "/run/redis.sock", "", 4, None, None, False)),
        ("unix://:secret@/redis.sock", ("server", (), "/redis.sock", "", 0, None, "secret", False)),
        ("redis+sentinel://a,b:7/prod/1", ("sentinel", (("a", 26379), ("b", 7)), "", "prod", 1, None, None, False)),
        ("rediss+cluster://u:p@a:1,b", ("cluster", (("a", 1), ("b", 6379)), "", "", 0, "u", "p", True)),
    ],
)  # fmt: skip
def test_url_of_a_store_names_its_servers(url: str, found: tuple[object, ...]) -> None:
    address = store_address(url)
    assert (
        address.kind, address.hosts, address.path, address.service, address.database, address.username,
        address.password, address.is_tls,
    ) == found  # fmt: skip


@pytest.mark.parametrize("option", ["decode_responses=true", "socket_timeout=9", "ssl_cert_reqs=none", "nonsense=1"])
def test_options_that_would_change_the_client_are_refused(option: str) -> None:
    text = json.dumps({"fleet": {"store": f"redis://h/0?{option}"}, "upstreams": {}, "models": {}})
    with pytest.raises(ConfigError, match=f"unknown option after `\\?`: {option.partition('=')[0]}"):
        parse_config(text, "fleet.yaml", {})


def test_missing_client_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_guard.config.fleet.find_spec", lambda _name: None)
    text = json.dumps({"fleet": {"store": "redis://h"}, "upstreams": {}, "models": {}})
    with pytest.raises(ConfigError, match=r"pip install 'llm-guard-proxy\[redis\]'"):
        parse_config(text, "fleet.yaml", {})


def test_nothing_of_the_fleet_is_imported_without_one() -> None:
    program = (
        "import sys, asyncio, json; from llm_guard.app import create_app; from llm_guard.config import parse_config; "
        "text = json.dumps({'server': {'port': 0}, 'upstreams': {'one': {'dialect': 'openai', 'base_url': "
        "'http://localhost:1/v1'}}, 'models': {'gpt': {'deployments': [{'upstream': 'one'}]}}})\n"
        "async def main():\n"
        "    app = create_app(parse_config(text, 'x', {}))\n    await app.start()\n    await app.stop()\n"
        "asyncio.run(main())\n"
        "parts = ('redis', 'llm_guard.fleet', 'llm_guard.storage.shared.')\n"
        "policies = ('shared_breaker', 'shared_evidence', 'probe_lease')\n"
        "print([name for name in sys.modules if name.startswith(parts) or name.endswith(policies)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
