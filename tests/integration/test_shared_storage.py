"""Gateways without a common folder that share deferred calls, dead letters and cached responses on a Redis server."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner

from llm_guard.app import App, create_app
from llm_guard.cli.main import main
from llm_guard.config import ConfigError, parse_config
from llm_guard.mock.provider import MockProvider
from tests.chaos.stand import config_text
from tests.chaos.wire import Reply, ask
from tests.fakes.redis_server import RedisServer, redis_server
from tests.fakes.waiting import eventually
from tests.integration.calls_on_disk import ASYNC, DEAD_LETTER
from tests.tokens import BEARER

PROMPT = "a prompt that nobody else may read"
BODY = json.dumps({"model": "gpt", "messages": [{"role": "user", "content": PROMPT}]}).encode()
ENCRYPTION_KEY = base64.b64encode(b"n" * 32).decode()
CALLERS_KEY = "sk-of-the-caller-0123456789"
CALLER = {"authorization": f"Bearer {CALLERS_KEY}"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


def text_of(provider: MockProvider, server: RedisServer, folder: str, **rules: Any) -> str:
    config = json.loads(config_text(provider.url, ops={"store": folder}))
    config["upstreams"]["one"] |= {"api_key": None} | rules.pop("one", {})
    config["defaults"] |= rules
    config["fleet"] = {"store": server.url}
    config["store"] = {
        "encryption_key": ENCRYPTION_KEY, "cache": {"kind": "redis"}, "calls": {"kind": "redis"},
        "dead_letters": {"bodies": "encrypted"},
    }  # fmt: skip
    return json.dumps(config)


@asynccontextmanager
async def gateways(server: RedisServer, count: int = 2, **rules: Any) -> AsyncIterator[tuple[MockProvider, list[App]]]:
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(MockProvider())
        apps = []
        for _ in range(count):
            folder = stack.enter_context(TemporaryDirectory())
            app = create_app(parse_config(text_of(provider, server, folder, **rules), "shared.yaml", {}))
            await app.start()
            stack.push_async_callback(app.stop)
            apps.append(app)
        yield provider, apps


async def call(app: App, **headers: str) -> Reply:
    return await ask(app.addresses[0], "/v1/chat/completions", BODY, {**CALLER, **headers})


async def accepted_by(app: App) -> Reply:
    """Defers a call as soon as the store takes it."""
    async with asyncio.timeout(20):
        while (reply := await call(app, **ASYNC)).status != 202:
            pass
    return reply


async def result(app: App, call_id: str, within_s: float = 10.0) -> Reply:
    path = f"/v1/llm-guard/calls/{call_id}"
    async with asyncio.timeout(within_s):
        while (reply := await ask(app.addresses[0], path, headers=CALLER, method="GET")).status == 202:
            pass
    return reply


# deferred calls


async def test_call_that_one_gateway_accepts_is_answered_by_every_gateway(server: RedisServer) -> None:
    async with gateways(server, one={"api_key": "sk-own"}) as (provider, apps):
        accepted = await call(apps[0], **ASYNC)
        assert accepted.status == 202
        replies = [await result(app, accepted.json["id"]) for app in apps]
        assert [reply.status for reply in replies] == [200, 200]
        assert replies[0].body == replies[1].body
        assert provider.stats().requests == 1
        strangers = {"authorization": "Bearer sk-another"}
        path = f"/v1/llm-guard/calls/{accepted.json['id']}"
        assert (await ask(apps[1].addresses[0], path, headers=strangers, method="GET")).status == 404


async def test_calls_with_their_callers_keys_are_sent_by_the_gateways_that_have_the_keys(server: RedisServer) -> None:
    async with gateways(server) as (provider, apps):
        accepted = [await call(apps[number % 2], **ASYNC) for number in range(20)]
        for number, reply in enumerate(accepted):
            assert (await result(apps[1 - number % 2], reply.json["id"])).status == 200
        sent = [seen.header("authorization") for seen in provider.seen]
        assert sent == [f"Bearer {CALLERS_KEY}"] * 20


async def test_call_survives_the_gateway_that_accepted_it(server: RedisServer) -> None:
    async with gateways(server, one={"api_key": "sk-own"}) as (provider, apps):
        provider.switch("gpt", "status:503")
        accepted = await call(apps[0], **ASYNC)
        await eventually(lambda: provider.stats().requests > 0)
        await apps[0].stop()
        provider.switch("gpt", "")
        assert (await result(apps[1], accepted.json["id"], 20.0)).status == 200


# dead letters


async def test_dead_letter_of_one_gateway_is_requeued_at_another(server: RedisServer) -> None:
    async with gateways(server, one={"api_key": "sk-own"}) as (provider, apps):
        provider.switch("gpt", "status:500")
        failed = await call(apps[0], **DEAD_LETTER)
        letter = failed.headers["x-llm-guard-dead-letter"]
        provider.switch("gpt", "")
        headers = {"host": "localhost", **BEARER}
        url = apps[1].addresses[0]
        shown = (await ask(url, "/admin/dead-letters", headers=headers, method="GET")).json
        assert [one["id"] for one in shown["calls"]] == [letter]
        body = json.dumps({"ids": [letter], "reason": "it was mended"}).encode()
        assert (await ask(url, "/admin/dead-letters/requeue", body, headers)).json["now"]["count"] == 1
        assert (await result(apps[0], letter)).status == 200


# cached responses


async def test_response_that_one_gateway_got_is_served_by_all(server: RedisServer) -> None:
    async with gateways(server, one={"api_key": "sk-own"}, cache={"ttl": "60s"}) as (provider, apps):
        first = await call(apps[0])
        with server.client() as store:
            await eventually(lambda: store.keys("*:cache:*"))  # stored after the client has its response
        second = await call(apps[1])
        assert [reply.headers["x-llm-guard-cache"] for reply in (first, second)] == ["miss", "hit"]
        assert first.body == second.body
        purged = json.dumps({"all": True, "reason": "stale"}).encode()
        headers = {"host": "localhost", **BEARER}
        assert (await ask(apps[1].addresses[0], "/admin/cache/purge", purged, headers)).status == 200
        assert (await call(apps[0])).headers["x-llm-guard-cache"] == "miss"
        assert provider.stats().requests == 2


# the server


async def test_frozen_server_delays_no_call_but_those_that_need_it(server: RedisServer) -> None:
    async with gateways(server, 1, one={"api_key": "sk-own"}, cache={"ttl": "60s"}) as (_provider, (app,)):
        accepted = await call(app, **ASYNC)
        assert (await result(app, accepted.json["id"])).status == 200
        server.freeze()
        replies = [await call(app, **{"cache-control": "no-store"}) for _ in range(20)]
        assert {reply.status for reply in replies} == {200}
        refused = await call(app, **ASYNC)
        assert (refused.status, refused.json["error"]["code"]) == (503, "deferral_failed")
        assert (await call(app)).status == 200  # the cache is skipped
        server.thaw()
        assert (await result(app, (await accepted_by(app)).json["id"])).status == 200


async def test_server_that_may_evict_calls_is_refused_at_the_start(server: RedisServer, tmp_path: Path) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    async with MockProvider() as provider:
        path = tmp_path / "guard.yaml"
        path.write_text(text_of(provider, server, str(tmp_path / "s")))
        app = create_app(parse_config(path.read_text(), str(path), {}), path=path)
        with pytest.raises(ConfigError, match=r"fleet\.store: its maxmemory-policy allkeys-lru may evict stored calls"):
            await app.start()
        checked = await asyncio.to_thread(
            CliRunner().invoke, main, ["check", "-c", str(path), "--online"], catch_exceptions=False
        )
    assert "may evict stored calls, so the gateway does not start: set noeviction" in checked.output
    assert "are lost when the server restarts: set appendonly yes" in checked.output


async def test_gateway_starts_without_the_server(server: RedisServer) -> None:
    server.kill()
    async with gateways(server, 1, one={"api_key": "sk-own"}) as (_provider, (app,)):
        assert (await call(app)).status == 200
        assert (await call(app, **ASYNC)).status == 503
        server.start()
        assert (await result(app, (await accepted_by(app)).json["id"])).status == 200


async def test_server_sees_no_key_and_no_prompt(server: RedisServer) -> None:
    seen = bytearray()
    with server.client() as watching, watching.monitor() as monitor:
        reading = threading.Thread(target=_read, args=(monitor, seen), daemon=True)
        reading.start()
        async with gateways(server, cache={"ttl": "60s"}) as (provider, apps):
            accepted = await call(apps[0], **ASYNC)
            assert (await result(apps[1], accepted.json["id"])).status == 200
            assert (await call(apps[0])).status == 200
            provider.switch("gpt", "status:500")
            other = json.dumps({"model": "gpt", "messages": [{"role": "user", "content": PROMPT + "!"}]}).encode()
            failed = await ask(apps[0].addresses[0], "/v1/chat/completions", other, {**CALLER, **DEAD_LETTER})
            assert "x-llm-guard-dead-letter" in failed.headers
        with server.client() as client:
            client.ping()
        await eventually(lambda: b"PING" in seen)
    for secret in (PROMPT, CALLERS_KEY, ENCRYPTION_KEY):
        assert secret.encode() not in seen
    assert b"calls:" in seen


def _read(monitor: Any, seen: bytearray) -> None:
    for command in monitor.listen():
        seen.extend(command["command"].encode("utf-8", "replace"))
        if command["command"] == "PING":
            return
