"""Gateways that share their evidence through a real Redis server: a caller whose calls always fail must not take
the deployment from other callers at other gateways."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import blake2b
from pathlib import Path

import pytest
import redis
from aiohttp import web

from llm_guard.app import App, create_app
from llm_guard.config import parse_config
from tests.chaos.forms import CHAT
from tests.chaos.stand import config_text
from tests.chaos.wire import ask
from tests.fakes.redis_server import RedisServer, redis_server
from tests.fakes.waiting import eventually

POISONER, VICTIM = "poisoner", "victim"
POISON = "a prompt that crashes the engine"
GATEWAYS = 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


async def answer(request: web.Request) -> web.Response:
    if POISON in await request.text():
        return web.Response(status=500, text='{"error":{"message":"crashed","type":"server_error"}}')
    return web.Response(body=CHAT.answer, content_type="application/json")


@asynccontextmanager
async def fleet(store: str) -> AsyncIterator[list[App]]:
    provider = web.Application()
    provider.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(provider, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    text = config_text(
        url, server={"client_keys": [{"name": name, "key": f"sk-{name}"} for name in (POISONER, VICTIM)]},
        breaker={"consecutive_failures": 5}, retry={"max_attempts": 1},
        upstreams={"own": {"dialect": "openai", "base_url": f"{url}/v1", "api_key": "sk-own"}},
        models={"gpt": {"deployments": [{"upstream": "own"}]}},
    )  # fmt: skip
    text = json.dumps({**json.loads(text), "fleet": {"store": store}})
    async with AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        apps = []
        for _ in range(GATEWAYS):
            app = create_app(parse_config(text, "fleet.yaml", {}))
            await app.start()
            stack.push_async_callback(app.stop)
            apps.append(app)
        await eventually(lambda: all(app.fleet is not None and len(app.fleet.others) == GATEWAYS - 1 for app in apps))
        yield apps


async def call(app: App, name: str) -> int:
    prompt = POISON if name == POISONER else "hello"
    body = json.dumps({"model": "gpt", "messages": [{"role": "user", "content": prompt}]}).encode()
    return (await ask(app.addresses[0], CHAT.path, body, {"authorization": f"Bearer sk-{name}"})).status


async def run(apps: Sequence[App], name: str, per_s: float, seconds: float, statuses: Counter[int]) -> None:
    for number in range(round(per_s * seconds)):
        statuses[await call(apps[number % len(apps)], name)] += 1
        await asyncio.sleep(1 / per_s)


@pytest.mark.parametrize("poisoned", [2, GATEWAYS])
async def test_poisoner_takes_no_call_from_a_victim_at_other_gateways(server: RedisServer, poisoned: int) -> None:
    async with fleet(server.url) as apps:
        poisoners, victims = Counter[int](), Counter[int]()
        poison = asyncio.create_task(run(apps[:poisoned], POISONER, 25, 4.0, poisoners))
        await run(apps[2:], VICTIM, 3, 4.0, victims)
        await poison
        assert poisoners[500] >= 5
        assert victims[200] >= 0.95 * victims.total(), victims
        assert [state_of(app) for app in apps[2:]] == ["closed"] * 2


async def test_store_has_no_name_of_a_caller_and_no_digest_that_could_be_guessed(server: RedisServer) -> None:
    async with fleet(server.url) as apps:
        for app in apps[:2]:
            await call(app, VICTIM)
            await call(app, POISONER)
        await eventually(lambda: b"in_run" in stored(server) and b"ok_caller" in stored(server))
        found = stored(server)
        for name in (POISONER, VICTIM):
            guess = blake2b(name.encode(), digest_size=8).hexdigest().encode()
            assert name.encode() not in found
            assert guess not in found


def stored(server: RedisServer) -> bytes:
    client = redis.Redis.from_url(server.url)
    contents: list[bytes] = []
    for key in client.scan_iter():
        if client.type(key) == b"hash":
            contents += [value for value in client.hgetall(key).values() if isinstance(value, bytes)]
        else:
            contents.append(client.dump(key) or b"")
    client.close()
    return b"\n".join(contents)


def state_of(app: App) -> str:
    return next(one.breaker.state for one in app.gateway.deployments() if one.label == "own/gpt")
