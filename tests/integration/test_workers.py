"""A gateway with two worker processes: what they share, their metrics together, and what happens if one fails."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llm_guard.config import CommandLineOverrides, ConfigError, load_config
from llm_guard.mock.provider import MockProvider
from llm_guard.workers.parent import ParentProcess
from tests.admin_client import HOST, look
from tests.chaos.process import Served, outcome_of, serving, write
from tests.chaos.stand import config_text, total
from tests.chaos.wire import Connection, Reply, ask, fetch
from tests.fakes.client import raw_request
from tests.fakes.waiting import eventually

BODY = json.dumps({"model": "gpt", "messages": [{"role": "user", "content": "hello"}]}).encode()
STREAM = json.dumps({"model": "gpt", "stream": True, "messages": [{"role": "user", "content": "hello"}]}).encode()


@dataclass
class Stand:
    """A gateway with workers, before a provider."""

    urls: list[str]
    provider: MockProvider
    path: Path

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
    return config_text(provider.url, server=server, ops=ops, **sections)


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
            yield Stand(parent.addresses, provider, path)
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


async def test_metrics_are_the_sums_of_both_workers(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        await stand.spread()
        made = await stand.metric("calls_total", model="gpt", outcome="ok")
        for _ in range(20):
            assert (await stand.call()).status == 200
        assert await stand.metric("calls_total", model="gpt", outcome="ok") == made + 20


async def test_breakers_of_both_open_together(tmp_path: Path) -> None:
    async with gateway(tmp_path, breaker={"consecutive_failures": 5}) as stand:
        await stand.spread()
        stand.provider.switch("gpt", "status:503")
        for _ in range(12):
            await stand.call()
        await settled(stand, ["open", "open"])
        assert await stand.metric("breaker_state", deployment="one/gpt", state="open") == 1


async def test_forced_breaker_holds_at_both_and_survives_a_restarted_worker(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        reply = await change(stand, "/admin/breakers/force-open", deployment="one/gpt", **{"for": "10m"})
        assert reply.status == 200, reply.text
        await settled(stand, ["forced_open", "forced_open"])
        await kill(stand, 2)
        assert await stand.states() == ["forced_open", "forced_open"]


async def test_change_of_what_is_not_shared_is_made_at_both(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        reply = await change(stand, "/admin/log-levels", logger="llm_guard.fleet", level="error")
        assert reply.status == 200, reply.text
        pages = [json.dumps(await stand.at(number, "/admin/log-levels")) for number in (1, 2)]
        assert all('"llm_guard.fleet"' in page for page in pages)
        records = await stand.at(1, "/admin/audit")
        found = re.findall(r"operator from [^\"]*", json.dumps(records))
        assert found == ["operator from 127.0.0.1"] * 2


async def test_killed_worker_loses_its_own_calls_alone_and_comes_back(tmp_path: Path) -> None:
    async with gateway(tmp_path, tokens=60, token_delay_s=0.05) as stand:
        await stand.spread()
        before = await stand.metric("calls_total", model="gpt", outcome="ok")
        streams = [asyncio.ensure_future(stream(stand)) for _ in range(30)]
        await eventually_metric(stand, 30, "in_flight_calls", model="gpt")
        running = {number: (await stand.at(number, "/admin/replicas")) for number in (1, 2)}
        of_two = next(one["in_flight"] for one in running[2]["replicas"] if one["is_this"])
        await kill(stand, 2)
        whole = [reply.is_whole for reply in await asyncio.gather(*streams)]
        assert whole.count(False) == of_two
        assert 0 < of_two < 30
        assert await stand.metric("calls_total", model="gpt", outcome="ok") == before + 30 - of_two
        assert await stand.metric("worker_restarts_total", reason="exit") == 1
        assert await stand.metric("workers_ready") == await stand.metric("workers") == 2
        await stand.spread()


async def test_blocked_worker_is_killed_and_restarted(tmp_path: Path) -> None:
    async with gateway(tmp_path, hangs_after=4) as stand:
        first, second = [worker["pid"] for worker in await stand.workers()]
        os.kill(second, signal.SIGSTOP)
        await replaced(stand, second)
        assert (await stand.workers())[0]["pid"] == first
        assert await stand.metric("worker_restarts_total", reason="hang") == 1


async def test_drain_waits_for_the_calls_of_both(tmp_path: Path) -> None:
    async with process(tmp_path, tokens=20, token_delay_s=0.1) as (served, stand):
        streams = [asyncio.ensure_future(stream(stand)) for _ in range(10)]
        await eventually_metric(stand, 10, "in_flight_calls", model="gpt")
        served.signal(signal.SIGTERM)
        assert all(reply.is_whole for reply in await asyncio.gather(*streams))
        assert await served.exit_code(20) == 0


async def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    async with process(tmp_path) as (served, stand):
        pids = [worker["pid"] for worker in await stand.workers()]
        served.process.kill()
        await served.process.wait()
        await eventually(lambda: not any(map(is_running, pids)), within_s=20)


async def test_reload_changes_both_or_none(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        before = await digests(stand)
        write(stand.path, text_of(stand.provider, tmp_path, models={"new": {"deployments": [{"upstream": "one"}]}}))
        after = await other_digest(stand, before)
        write(stand.path, "models: [")
        await eventually_metric(stand, 0, "config_last_reload_successful")
        assert await digests(stand) == after
        await kill(stand, 1)
        assert await digests(stand) == after, "a worker that restarts gets the config in use, not the file's"
        reply = await change(stand, "/admin/config/rollback")
        assert reply.status in (200, 409), reply.text


async def test_operator_can_reload_and_roll_back(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        before = await digests(stand)
        text = text_of(stand.provider, tmp_path, models={"new": {"deployments": [{"upstream": "one"}]}})
        write(stand.path, text)
        reply = await change(stand, "/admin/config/reload")
        assert reply.status == 200, reply.text
        after = await other_digest(stand, before)
        reply = await change(stand, "/admin/config/rollback")
        assert reply.status == 200, reply.text
        assert await other_digest(stand, after) == before


async def test_port_that_is_taken_is_said_at_start(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        server = {"port": int(stand.calls_url.rpartition(":")[2])}
        path = write(tmp_path / "other.yaml", text_of(stand.provider, tmp_path, server=server))
        with pytest.raises(OSError, match="in use"):
            await parent_of(path).start()
        code, said = await outcome_of(path)
        assert (code, "cannot listen on" in said, "Traceback" in said) == (1, True, False), said
        alone = text_of(stand.provider, tmp_path, server={**server, "workers": 1})
        code, said = await outcome_of(write(path, alone))
        assert (code, "cannot listen on" in said) == (1, True), said


async def test_config_that_a_worker_cannot_use_is_an_error_of_the_start(tmp_path: Path) -> None:
    key = {"one": {"dialect": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key_file": str(tmp_path / "none")}}
    async with MockProvider() as provider:
        path = write(tmp_path / "gateway.yaml", text_of(provider, tmp_path, upstreams=key))
        with pytest.raises(ConfigError, match="api_key_file"):
            await parent_of(path).start()
        code, said = await outcome_of(path)
    assert (code, "api_key_file" in said, "Traceback" in said) == (2, True, False), said


async def test_stop_frees_both_ports_and_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with gateway(tmp_path) as stand:
        (folder,) = modes(tmp_path, "llm-guard-*").items()
        assert folder[1] == 0o700
        assert list(modes(tmp_path, "llm-guard-*/*").values()) == [0o600, 0o600]
    assert modes(tmp_path, "llm-guard-*") == {}
    for url in stand.urls:
        with pytest.raises(ConnectionRefusedError):
            await fetch(f"{url}/healthz")


async def test_readiness_health_and_tokens(tmp_path: Path) -> None:
    async with gateway(tmp_path) as stand:
        assert (await fetch(f"{stand.admin_url}/healthz")).text == "ok\n"
        assert (await fetch(f"{stand.admin_url}/readyz")).text == "ready\n"
        assert (await fetch(f"{stand.admin_url}/workers")).status == 401
        assert (await look(stand.admin_url, "/workers/3/admin/health")).status == 503
        replicas = [await stand.at(number, "/admin/replicas") for number in (1, 2)]
        names = [one["id"] for page in replicas for one in page["replicas"] if one["is_this"]]
        assert [name.rpartition(":")[2] for name in names] == ["worker-1", "worker-2"]
        assert (await ask(stand.admin_url, "/workers/2/admin/log-levels", b"{}", HOST)).status == 405
        assert (await look(stand.admin_url, "/dashboard")).status == 200
        async with Connection(stand.admin_url) as connection:
            connection.writer.write(raw_request("/admin/events", b"", HOST, "GET"))
            head = await connection.head()
            assert head.status == 200
            assert b"hello" in await connection.reader.readuntil(b"\n\n")


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
