"""A worker, in this process, and what it tells its parent."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from llm_guard.app import App
from llm_guard.clock import SystemClock
from llm_guard.storage.shared.memory_store import MemoryStore, SharedMemory
from llm_guard.workers.channel import Channel
from llm_guard.workers.messages import (
    Agree,
    Agreed,
    Beat,
    ConfigRead,
    ExchangeReply,
    ExchangeRequest,
    Message,
    MetricsTaken,
    ReadConfig,
    Reload,
    ReloadRefused,
    StartFailed,
    StartWorker,
    StopWorker,
    TakeMetrics,
    WorkerReady,
)
from llm_guard.workers.worker import Worker
from tests.fakes.waiting import eventually
from tests.tokens import OPS
from tests.unit.workers.test_merging import CONFIG


def text_of(tmp_path: Path, **server: Any) -> str:
    ops = {**OPS, "port": 0, "store": str(tmp_path / "store")}
    return json.dumps({**CONFIG, "server": {"port": 0, "workers": 2, **server}, "ops": ops})


class ParentOf:
    """The parent of one worker: notes what it is told, and agrees with each reload, or does not."""

    def __init__(self) -> None:
        self.told: list[Message] = []
        self.text = ""
        self.decision: Message = Agreed()
        self._store = MemoryStore(SharedMemory(), "worker-1", SystemClock())

    def of(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.told if isinstance(message, kind)]

    async def serve(self, message: Message) -> Message | None:
        self.told.append(message)
        match message:
            case ExchangeRequest(content, wanted, slots):
                return ExchangeReply(await self._store.exchange(content, wanted, slots))
            case ReadConfig():
                return ConfigRead(self.text)
            case Agree():
                return self.decision
            case _:
                return None


@asynccontextmanager
async def worker(tmp_path: Path, text: str) -> AsyncIterator[tuple[ParentOf, Channel, asyncio.Task[int]]]:
    parent, (ours, theirs) = ParentOf(), socket.socketpair()
    channel = Channel(parent.serve, SystemClock())
    await channel.open(ours)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(channel.run())
        running = tasks.create_task(Worker(lambda _: None).run(theirs))
        start = StartWorker(1, 2, port, str(tmp_path / "1"), str(tmp_path / "guard.yaml"), text, {}, {})
        channel.tell(start)
        yield parent, channel, running
        channel.close()


async def ready(parent: ParentOf) -> str:
    await eventually(lambda: parent.of(WorkerReady), 20.0)
    return str(parent.of(WorkerReady)[0].digest)


async def test_worker_is_ready_beats_and_stops_with_its_counts(tmp_path: Path) -> None:
    async with worker(tmp_path, text_of(tmp_path)) as (parent, channel, running):
        digest = await ready(parent)
        await eventually(lambda: len(parent.of(Beat)) >= 2)
        assert {(beat.digest, beat.drain_s) for beat in parent.of(Beat)} == {(digest, 30.0)}
        assert (tmp_path / "1").stat().st_mode & 0o777 == 0o600
        metrics = await channel.ask(TakeMetrics(), 5.0)
        assert isinstance(metrics, MetricsTaken)
        assert "llm_guard_calls" in [family.name for family in metrics.families]
        channel.tell(StopWorker())
        assert await running == 0
        await eventually(lambda: parent.of(MetricsTaken))
        assert parent.of(ExchangeRequest), "it shares with the others through its parent"


async def test_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    async with worker(tmp_path, "models: {}") as (parent, _, running):
        assert await running == 1
        await eventually(lambda: parent.of(StartFailed))
    (failed,) = parent.of(StartFailed)
    assert failed.is_config
    assert "upstreams" in failed.problem


async def test_worker_that_is_told_to_stop_while_it_starts_stops_once_it_has_started(tmp_path: Path) -> None:
    async with asyncio.timeout(30), worker(tmp_path, text_of(tmp_path)) as (_, channel, running):
        channel.tell(StopWorker())
        assert await running == 0


async def test_drain_goes_on_when_the_parent_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[App] = []
    tell_to_stop = App.tell_to_stop

    def noted(app: App) -> None:
        told.append(app)
        tell_to_stop(app)

    monkeypatch.setattr(App, "tell_to_stop", noted)
    async with asyncio.timeout(30), worker(tmp_path, text_of(tmp_path, drain_delay="1s")) as (parent, channel, running):
        await ready(parent)
        channel.tell(StopWorker())
        await eventually(lambda: told)
        channel.close()
        assert await running == 0
    assert len(told) == 1, "a second time ends the running calls"


async def test_worker_stops_when_its_parent_has_ended(tmp_path: Path) -> None:
    async with asyncio.timeout(30), worker(tmp_path, text_of(tmp_path)) as (parent, channel, running):
        await ready(parent)
        channel.close()
        assert await running == 0


@pytest.mark.parametrize("decision", [Agreed(), ReloadRefused(["worker 2: it does not respond"])])
async def test_reload_waits_for_the_decision(tmp_path: Path, decision: Message) -> None:
    async with worker(tmp_path, text_of(tmp_path)) as (parent, channel, running):
        before = await ready(parent)
        parent.text, parent.decision = text_of(tmp_path, drain="7s"), decision
        reply = await channel.ask(Reload("file"), 10.0)
        assert reply == decision
        (asked,) = parent.of(Agree)
        assert (asked.digest != before, asked.is_rollback) == (True, False)
        expected = asked.digest if isinstance(decision, Agreed) else before
        since = len(parent.told)
        await eventually(lambda: any(isinstance(message, Beat) for message in parent.told[since:]))
        assert parent.of(Beat)[-1].digest == expected
        channel.tell(StopWorker())
        assert await running == 0


async def test_worker_reads_no_config_that_is_invalid(tmp_path: Path) -> None:
    async with worker(tmp_path, text_of(tmp_path)) as (parent, channel, _):
        await ready(parent)
        parent.text = "models: ["
        assert isinstance(await channel.ask(Reload("file"), 10.0), ReloadRefused)
        assert parent.of(Agree) == []
