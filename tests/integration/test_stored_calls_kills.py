"""After kill -9 at random moments, everything acknowledged is still there, is answered in the end, and is not
executed again after that."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic

import pytest

from llm_guard.app import App
from llm_guard.clock import SystemClock
from llm_guard.config import parse_config
from llm_guard.mock.provider import MockProvider
from tests.chaos.forms import CHAT
from tests.chaos.process import serving
from tests.chaos.stand import config_text
from tests.chaos.wire import ask
from tests.effort import repeated
from tests.fakes.provider import Hold, ScriptedProvider
from tests.fakes.redis_server import RedisServer, redis_server
from tests.fakes.waiting import eventually
from tests.integration.calls_on_disk import ASYNC
from tests.tokens import BEARER

KILLS = repeated(5)
RULES = {"deployments": [{"upstream": "one"}], "dead_letter": "always"}


class LateClock(SystemClock):
    """A clock a minute ahead, at which every lease of a killed process has expired."""

    def wall(self) -> float:
        return SystemClock.wall() + 60


@dataclass(slots=True)
class Client:
    """Sends calls as fast as possible and records what was acknowledged."""

    deferred: list[str] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    answered: dict[str, tuple[float, bytes]] = field(default_factory=dict)
    """When the response was first seen, and the response, by id."""

    async def work(self, url: str) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):  # the gateway was killed
            while True:
                reply = await ask(url, "/v1/chat/completions", b'{"model":"gpt","messages":[]}', ASYNC)
                if reply.status == 202 and reply.is_whole:
                    self.deferred.append(reply.json["id"])
                failed = await ask(url, "/v1/chat/completions", b'{"model":"bad","messages":[]}')
                if failed.is_whole and (letter := failed.headers.get("x-llm-guard-dead-letter")):
                    self.letters.append(letter)
                if self.deferred:
                    await self.look(url, self.deferred[len(self.deferred) // 2])

    async def look(self, url: str, kept_id: str) -> int:
        reply = await ask(url, f"/v1/llm-guard/calls/{kept_id}", method="GET")
        if reply.status == 200 and reply.is_whole:
            _, answer = self.answered.setdefault(kept_id, (monotonic(), reply.body))
            assert reply.body == answer
        return reply.status


@pytest.fixture(params=["sqlite", "redis"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer | None]:
    """Runs a server for the calls; None: they are in a file."""
    if request.param == "sqlite":
        yield None
        return
    with redis_server(tmp_path) as server:
        yield server


def text_of(url: str, folder: Path, server: RedisServer | None) -> str:
    config = json.loads(config_text(url, models={"gpt": RULES, "bad": RULES}, ops={"store": str(folder)}))
    config["upstreams"]["one"]["api_key"] = "sk-own"
    config["store"] = {"dead_letters": {"requeue_rate": 1000}, "deferred": {"concurrency": 4}}
    if server is not None:
        config["fleet"] = {"store": server.url}
        config["store"] |= {"calls": {"kind": "redis"}, "encryption_key": base64.b64encode(b"n" * 32).decode()}
        config["store"]["dead_letters"]["bodies"] = "encrypted"
    return json.dumps(config)


@asynccontextmanager
async def late_gateway(text: str) -> AsyncIterator[str]:
    app = App(parse_config(text, "test.yaml", {}), clock=LateClock())
    await app.start()
    try:
        yield app.addresses[0]
    finally:
        await app.stop()


async def test_acknowledged_call_is_never_lost_or_repeated_after_its_answer(
    tmp_path: Path, server: RedisServer | None
) -> None:
    client, dice = Client(), Random(8)
    async with MockProvider(latency_s=0.02) as provider:
        provider.switch("bad", "status:500")
        text = text_of(provider.url, tmp_path / "s", server)
        for _ in range(KILLS):
            async with serving(tmp_path / "guard.yaml", text) as served:
                working = [asyncio.create_task(client.work(served.url)) for _ in range(2)]
                await asyncio.sleep(0.1 + 0.3 * dice.random())
                served.signal(signal.SIGKILL)
                await asyncio.gather(*working)
        assert min(len(client.deferred), len(client.letters)) > KILLS
        async with late_gateway(text) as url:
            await _until_answered(client, url, client.deferred)
            await _until_requeued_calls_are_answered(client, url, provider)
    asked: dict[str, list[float]] = {}
    for seen in provider.seen:
        asked.setdefault(seen.header("idempotency-key") or "", []).append(seen.at)
    for kept_id, (answered_at, _) in client.answered.items():
        assert max(asked[kept_id]) < answered_at, f"{kept_id} was asked again after it was answered"


async def _until_answered(client: Client, url: str, ids: list[str]) -> None:
    async with asyncio.timeout(15):
        for kept_id in ids:
            while (status := await client.look(url, kept_id)) == 202:  # noqa: ASYNC110  # of a thread
                await asyncio.sleep(0.02)
            assert status == 200, f"{kept_id} was lost: {status}"


async def _until_requeued_calls_are_answered(client: Client, url: str, provider: MockProvider) -> None:
    for letter in client.letters:
        assert (await ask(url, f"/v1/llm-guard/calls/{letter}", method="GET")).status == 500
    provider.switch("bad", "")
    before = provider.stats().requests
    headers = {"host": "localhost", **BEARER}
    body = json.dumps({"all": True, "reason": "the provider is back"}).encode()
    done = (await ask(url, "/admin/dead-letters/requeue", body, headers)).json
    assert done["now"]["count"] >= len(client.letters)
    await _until_answered(client, url, client.letters)
    await eventually(lambda: provider.stats().requests == before + done["now"]["count"])


async def test_call_in_execution_at_a_kill_is_sent_again_within_two_seconds_of_the_restart(
    tmp_path: Path, server: RedisServer | None
) -> None:
    with socket.socket() as reserved:  # a port chosen by the system would change at the restart
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    async with ScriptedProvider((Hold(),), CHAT.ok) as provider:
        text = json.loads(text_of(provider.url, tmp_path / "s", server))
        text["server"]["port"] = port
        async with serving(tmp_path / "guard.yaml", json.dumps(text)) as served:
            body = b'{"model":"gpt","messages":[]}'
            kept_id = (await ask(served.url, "/v1/chat/completions", body, ASYNC)).json["id"]
            await eventually(lambda: len(provider.requests) == 1, within_s=10)
            served.signal(signal.SIGKILL)
            await served.exit_code()
        async with serving(tmp_path / "guard.yaml", json.dumps(text)) as served:
            await eventually(lambda: len(provider.requests) == 2, within_s=2)  # its lease lasts at least 7.5 s
            await served.logged("stored calls of an ended process taken over")
            client = Client()
            await _until_answered(client, served.url, [kept_id])
