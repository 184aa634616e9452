"""A gateway with two worker processes, and what tests do with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_guard.config import CommandLineOverrides, load_config
from llm_guard.mock.provider import MockProvider
from llm_guard.workers.parent import ParentProcess
from tests.admin_client import HOST, look
from tests.chaos.process import Served, serving, write
from tests.chaos.stand import config_text, total
from tests.chaos.wire import Connection, Reply, ask, fetch
from tests.fakes.client import raw_request

BODY = json.dumps({"model": "gpt", "messages": [{"role": "user", "content": "hello"}]}).encode()
STREAM = json.dumps({"model": "gpt", "stream": True, "messages": [{"role": "user", "content": "hello"}]}).encode()


@dataclass
class Stand:
    """A gateway with workers, before a provider."""

    urls: list[str]
    provider: MockProvider
    path: Path
    parent: ParentProcess | None = None
    """None: it is a process of its own."""

    @property
    def calls_url(self) -> str:
        return self.urls[0]

    @property
    def admin_url(self) -> str:
        return self.urls[1]

    async def call(self) -> Reply:
        """Makes a call over a connection of its own, which the kernel gives to either worker."""
        return await ask(self.calls_url, "/v1/chat/completions", BODY)

    async def workers(self) -> list[dict[str, Any]]:
        reply = await look(self.admin_url, "/workers")
        assert reply.status == 200, reply.text
        return list(reply.json)

    async def metric(self, name: str, **labels: str) -> float:
        return total((await fetch(f"{self.admin_url}/metrics")).text, f"llm_guard_{name}", **labels)

    async def at(self, worker: int, path: str) -> Any:
        """Fetches an admin page of one worker."""
        reply = await look(self.admin_url, f"/workers/{worker}{path}")
        assert reply.status == 200, reply.text
        return reply.json

    async def states(self) -> list[str]:
        """Returns the state of the breaker at each worker."""
        pages = [await self.at(number, "/admin/deployments") for number in (1, 2)]
        return [next(one["breaker"]["state"] for one in page if one["deployment"] == "one/gpt") for page in pages]

    async def spread(self) -> None:
        """Makes calls until both workers have had some."""
        async with asyncio.timeout(20):
            while True:
                await self.call()
                if all([await self.calls_of(number) for number in (1, 2)]):
                    return

    async def calls_of(self, worker: int) -> int:
        """Returns the calls that ended at one worker."""
        fleet = await self.at(worker, "/admin/replicas")
        return next(int(one["calls"]) for one in fleet["replicas"] if one["is_this"])


def text_of(provider: MockProvider, tmp_path: Path, **sections: Any) -> str:
    server = {"workers": 2, "drain": "5s", **sections.pop("server", {})}
    ops = {"port": 0, "store": str(tmp_path / "store"), **sections.pop("ops", {})}
    fleet = sections.pop("fleet", None)
    text = config_text(provider.url, server=server, ops=ops, **sections)
    return text if fleet is None else json.dumps({**json.loads(text), "fleet": fleet})


def parent_of(path: Path, hangs_after: int = 15) -> ParentProcess:
    """`hangs_after`: seconds."""
    return ParentProcess(load_config(path), path, CommandLineOverrides({}, {}), 2, most_silent_looks=hangs_after)


@asynccontextmanager
async def gateway(
    tmp_path: Path, *, tokens: int = 8, token_delay_s: float = 0.0, hangs_after: int = 15, **sections: Any
) -> AsyncIterator[Stand]:
    """Runs the parent in this process; the workers have their own. `hangs_after`: seconds."""
    async with MockProvider(tokens=tokens, token_delay_s=token_delay_s) as provider:
        path = write(tmp_path / "gateway.yaml", text_of(provider, tmp_path, **sections))
        parent = parent_of(path, hangs_after)
        await parent.start()
        try:
            yield Stand(parent.addresses, provider, path, parent)
        finally:
            await parent.stop()


@asynccontextmanager
async def process(
    tmp_path: Path, *, tokens: int = 8, token_delay_s: float = 0.0
) -> AsyncIterator[tuple[Served, Stand]]:
    """Runs the gateway as users do."""
    async with MockProvider(tokens=tokens, token_delay_s=token_delay_s) as provider:
        path = tmp_path / "gateway.yaml"
        async with serving(path, text_of(provider, tmp_path)) as served:
            yield served, Stand(served.urls, provider, path)


async def stream(stand: Stand) -> Reply:
    async with Connection(stand.calls_url) as connection:
        connection.writer.write(raw_request("/v1/chat/completions", STREAM))
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            return await connection.reply()
        return Reply(0, {})


async def change(stand: Stand, path: str, **fields: Any) -> Reply:
    body = json.dumps({"reason": "a test", **fields}).encode()
    return await ask(stand.admin_url, path, body, {**HOST, "content-type": "application/json"})


async def kill(stand: Stand, number: int) -> None:
    """Kills a worker; returns when it is back."""
    pid = next(worker["pid"] for worker in await stand.workers() if worker["number"] == number)
    os.kill(pid, signal.SIGKILL)
    await replaced(stand, pid)


async def replaced(stand: Stand, pid: int) -> None:
    """Returns when both workers are ready, and none of them is this process."""

    async def is_so() -> bool:
        found = await stand.workers()
        return all(worker["state"] == "ready" and worker["pid"] != pid for worker in found)

    await until(is_so, 60.0)


async def digests(stand: Stand) -> set[str]:
    return {worker["config"] for worker in await stand.workers()}


async def other_digest(stand: Stand, before: set[str]) -> set[str]:
    """Returns the digest of the config once both workers have another one."""

    async def is_so() -> bool:
        found = await digests(stand)
        return len(found) == 1 and found != before

    await until(is_so)
    return await digests(stand)


async def settled(stand: Stand, states: list[str]) -> None:
    async def is_so() -> bool:
        return await stand.states() == states

    await until(is_so)


async def eventually_metric(stand: Stand, value: float, name: str, **labels: str) -> None:
    async def is_so() -> bool:
        return await stand.metric(name, **labels) == value

    await until(is_so)


async def until(is_so: Callable[[], Awaitable[object]], within_s: float = 30.0) -> None:
    """Returns once `await is_so()` is true; raises TimeoutError after `within_s`."""
    async with asyncio.timeout(within_s):
        while not await is_so():  # noqa: ASYNC110 - another process decides when
            await asyncio.sleep(0.05)


def modes(folder: Path, pattern: str) -> dict[Path, int]:
    return {path: path.stat().st_mode & 0o777 for path in folder.glob(pattern)}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
