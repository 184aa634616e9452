"""Deferred calls of a gateway with two workers: whichever of them gets a request about a call, and though the one that
executes it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from llm_guard.mock.provider import MockProvider
from tests.chaos.process import write
from tests.chaos.wire import Reply, ask
from tests.fakes.redis_server import redis_server
from tests.fakes.waiting import eventually
from tests.integration.calls_on_disk import ASYNC
from tests.integration.test_engines import free_port
from tests.integration.test_shared_storage import ENCRYPTION_KEY
from tests.integration.worker_processes import BODY, Stand, parent_of, replaced, text_of

CALLS = 12
REQUESTS = 16
"""So many connections reach both workers, but for one time in 32,000."""


class Receiver:
    """Receives the webhooks of finished calls; refuses the first two."""

    def __init__(self) -> None:
        self.refused = set[str]()
        self.deliveries: dict[str, set[str]] = {}
        """Ids of the deliveries, by call."""

    async def receive(self, request: web.Request) -> web.Response:
        call = str((await request.json())["id"])
        self.deliveries.setdefault(call, set()).add(request.headers["x-llm-guard-delivery"])
        if len(self.refused) < 2 and call not in self.refused:
            self.refused.add(call)
            return web.Response(status=503)
        return web.Response()


@asynccontextmanager
async def workers(tmp_path: Path, store: str | None = None) -> AsyncIterator[tuple[Stand, Receiver]]:
    receiver, app = Receiver(), web.Application()
    app.router.add_post("/", receiver.receive)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    async with MockProvider() as provider:
        config = json.loads(text_of(provider, tmp_path, server={"port": free_port()}))
        config["upstreams"]["one"]["api_key"] = "sk-own"
        config["models"]["gpt"]["deferred"] = {"webhook": "team", "deadline": "2m"}
        config["store"] = {"webhooks": [{"name": "team", "url": url, "secret": "s" * 32}]}
        if store is not None:
            config |= {"fleet": {"store": store}}
            config["store"] |= {
                "calls": {"kind": "redis"}, "dead_letters": {"bodies": "encrypted"}, "encryption_key": ENCRYPTION_KEY,
            }  # fmt: skip
        path = write(tmp_path / "gateway.yaml", json.dumps(config))
        parent = parent_of(path)
        await parent.start()
        try:
            yield Stand(parent.addresses, provider, path, parent), receiver
        finally:
            await parent.stop()
            await runner.cleanup()


async def defer(stand: Stand) -> str:
    reply = await ask(stand.calls_url, "/v1/chat/completions", BODY, ASYNC)
    assert reply.status == 202, reply.text
    return str(reply.json["id"])


async def shown(stand: Stand, call: str, method: str = "GET") -> Reply:
    """Requests the state of a call, over a connection of its own."""
    return await ask(stand.calls_url, f"/v1/llm-guard/calls/{call}", method=method)


async def answer_of(stand: Stand, call: str, within_s: float = 60.0) -> bytes:
    """Returns the answer of a call once both workers show the same one."""
    async with asyncio.timeout(within_s):
        while (reply := await shown(stand, call)).status == 202:
            pass
    replies = [reply, *[await shown(stand, call) for _ in range(REQUESTS)]]
    assert {one.status for one in replies} == {200}
    assert len({one.body for one in replies}) == 1
    return reply.body


async def test_call_is_known_at_every_worker(tmp_path: Path) -> None:
    async with workers(tmp_path) as (stand, receiver):
        calls = [await defer(stand) for _ in range(CALLS)]
        for call in calls:
            assert await answer_of(stand, call)
        await eventually(lambda: set(receiver.deliveries) == set(calls), 20)
        assert stand.provider.stats().requests == CALLS


async def test_call_that_is_cancelled_at_one_worker_ends_at_the_other(tmp_path: Path) -> None:
    async with workers(tmp_path) as (stand, receiver):
        stand.provider.switch("gpt", "latency:2s")
        calls = [await defer(stand) for _ in range(CALLS)]
        assert {(await shown(stand, call, "DELETE")).status for call in calls} == {200}
        for call in calls:
            assert {(await shown(stand, call)).status for _ in range(REQUESTS)} == {404}
        await asyncio.sleep(3.0)  # what ran would have ended
        assert {(await shown(stand, call)).status for call in calls} == {404}
        assert receiver.deliveries == {}


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_killed_worker_leaves_each_call_with_one_answer(tmp_path: Path, kind: str) -> None:
    with redis_server(tmp_path) as server:
        async with workers(tmp_path, server.url if kind == "redis" else None) as (stand, receiver):
            stand.provider.switch("gpt", "latency:1s")
            calls = [await defer(stand) for _ in range(CALLS)]
            await eventually(lambda: stand.provider.stats().requests > 2, 10)
            for number in (0, 1):
                pid = (await stand.workers())[number]["pid"]
                os.kill(pid, signal.SIGKILL)
                await replaced(stand, pid)
            stand.provider.switch("gpt", "")
            for call in calls:
                assert await answer_of(stand, call)
            await eventually(lambda: set(receiver.deliveries) == set(calls), 20)
            ids = Counter(delivery for found in receiver.deliveries.values() for delivery in found)
            assert {len(found) for found in receiver.deliveries.values()} == {1}
            assert set(ids.values()) == {1}
