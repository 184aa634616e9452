"""What the parent does with workers that end, and when all are stopped; the workers are not processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from llm_guard.clock import SystemClock
from llm_guard.config import CommandLineOverrides
from llm_guard.workers import supervisor
from llm_guard.workers.child import Child, EndReason
from llm_guard.workers.messages import Message, StopWorker, WorkerReady
from llm_guard.workers.supervisor import Place, WorkerSupervisor
from tests.fakes.waiting import eventually


class OneWorker:
    """The supervisor of one worker; the test decides how its process starts and ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.begun: list[Child] = []
        self.told: list[Message] = []
        self.has_resources = True
        self._over: list[asyncio.Event] = []
        place = Place(1, folder, folder / "guard.yaml", CommandLineOverrides({}, {}))
        monkeypatch.setattr(Child, "begin", self._begin())
        monkeypatch.setattr(Child, "ended", self._ended())
        monkeypatch.setattr(Child, "kill", self._kill())
        monkeypatch.setattr(Child, "pid", 1)
        monkeypatch.setattr(Child, "exit_code", 1)
        self.supervisor = WorkerSupervisor(1, place, "", SystemClock(), 15)

    def end(self) -> None:
        """Ends the process begun last."""
        self._over[-1].set()

    def _begin(self) -> Callable[[Child], object]:
        async def begin(child: Child) -> None:
            await asyncio.sleep(0)
            if not self.has_resources:
                raise OSError("no resources")
            self.begun.append(child)
            self._over.append(asyncio.Event())
            child.channel.tell = self.told.append  # type: ignore[method-assign, assignment]
            await child._take(WorkerReady("digest"))

        return begin

    def _ended(self) -> Callable[[Child], object]:
        async def ended(child: Child) -> None:
            await self._over[self.begun.index(child)].wait()

        return ended

    def _kill(self) -> Callable[[Child, EndReason], None]:
        def kill(child: Child, reason: EndReason) -> None:
            child.killed_for = reason
            self._over[self.begun.index(child)].set()

        return kill


def _has_begun(one: OneWorker, processes: int) -> bool:
    return len(one.begun) == processes


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OneWorker:
    monkeypatch.setattr(supervisor, "_AFTER_DRAIN_S", 0.0)
    monkeypatch.setattr(supervisor, "_LOOK_S", 0.01)
    return OneWorker(monkeypatch, tmp_path)


async def test_stop_ends_while_a_worker_cannot_be_started(one: OneWorker) -> None:
    await one.supervisor.start()
    one.has_resources = False
    one.end()
    await eventually(lambda: one.supervisor.restarts)
    async with asyncio.timeout(10):
        await one.supervisor.stop()


async def test_waits_grow_with_the_ends_of_a_worker_alone(one: OneWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def pause(_: WorkerSupervisor, seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(WorkerSupervisor, "_pause", pause)
    await one.supervisor.start()
    for number in (2, 3, 4):
        one.end()
        await eventually(partial(_has_begun, one, number))
    await one.supervisor.stop()
    assert waits == [0.0, 0.5, 1.0]


async def test_worker_is_started_again_on_a_file_system_that_cannot_be_written(
    one: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlink(path: Path, *, missing_ok: bool = False) -> None:
        raise OSError(30, "read-only file system")

    await one.supervisor.start()
    monkeypatch.setattr(Path, "unlink", unlink)
    one.end()
    await eventually(lambda: len(one.begun) == 2)
    await one.supervisor.stop()


async def test_worker_that_drains_already_is_not_told_again_when_all_stop(one: OneWorker) -> None:
    await one.supervisor.start()
    one.supervisor.reloads.note_ready("another")
    await eventually(lambda: StopWorker() in one.told)
    await one.supervisor.stop()
    assert one.told == [StopWorker()], "a second time ends its calls"
