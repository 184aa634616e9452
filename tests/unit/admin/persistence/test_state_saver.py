"""Saving and restoring a gateway's state on a disk that is slow, full, or does not respond."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from structlog.testing import capture_logs

from llm_guard.admin.persistence.operator_state import SavedState
from llm_guard.admin.persistence.state_saver import AGAIN_S, PATIENCE_S, StateSaver
from llm_guard.storage.snapshot_file import SnapshotFile, TakenOver
from tests.fakes.clock import SteppedClock
from tests.fakes.waiting import eventually


class Disk(SnapshotFile):
    """A file in memory that fails with `problem`, and blocks until `goes_on` is set."""

    def __init__(self, content: bytes | None = None) -> None:
        super().__init__(Path, "")
        self.content = content
        self.writes = 0
        self.tried = 0
        self.problem: Exception | None = None
        self.goes_on = threading.Event()
        self.goes_on.set()

    def read(self) -> bytes | None:
        self._wait()
        return self.content

    def write(self, content: bytes) -> None:
        self.tried += 1
        self._wait()
        self.content = content
        self.writes += 1

    def levels(self) -> list[str]:
        return msgspec.json.decode(self.content or b"{}", type=SavedState).log_levels

    def _wait(self) -> None:
        self.goes_on.wait(10)
        if self.problem is not None:
            raise self.problem


@dataclass
class World:
    """State saving with `levels` as the entire state."""

    disk: Disk
    levels: list[str] = field(default_factory=list)
    recalled: list[SavedState] = field(default_factory=list)
    clock: SteppedClock = field(default_factory=SteppedClock)
    interval_s: float = 0.0

    def __post_init__(self) -> None:
        self.keeping = StateSaver(
            "operator state", SavedState, self.disk, lambda: SavedState(log_levels=[*self.levels]),
            self.recalled.append, self.clock, interval_s=self.interval_s,
        )  # fmt: skip

    async def look(self) -> None:
        """Evaluates once, and waits for the write that this may start."""
        self.keeping.look(self.clock.now())
        await eventually(lambda: self.keeping._writing is None)


@asynccontextmanager
async def world_on(disk: Disk) -> AsyncIterator[World]:
    world = World(disk)
    try:
        yield world
    finally:
        disk.goes_on.set()
        await world.keeping.close()


async def test_only_changed_state_is_written() -> None:
    async with world_on(Disk()) as world:
        await world.keeping.recall()
        await world.look()
        assert world.disk.writes == 0
        world.levels.append("a")
        await world.look()
        await world.look()
        assert (world.disk.writes, world.disk.levels()) == (1, ["a"])
        world.levels.clear()
        await world.look()
        assert (world.disk.writes, world.disk.levels()) == (2, [])
    assert world.recalled == []


async def test_state_with_an_interval_is_written_seldom_and_at_the_end() -> None:
    disk = Disk()
    world = World(disk, interval_s=300.0)
    for name in "abc":
        world.levels.append(name)
        await world.look()
    assert (disk.writes, disk.levels()) == (1, ["a"])
    world.clock.advance(300.0)
    await world.look()
    assert (disk.writes, disk.levels()) == (2, ["a", "b", "c"])
    world.levels.append("d")
    await world.keeping.close()
    assert (disk.writes, disk.levels()) == (3, ["a", "b", "c", "d"])


async def test_file_that_is_there_is_recalled_and_from_then_on_this_gateways() -> None:
    async with world_on(Disk(b'{"log_levels": ["a"], "of_a_later_version": 1}')) as world:
        await world.keeping.recall()
        assert [saved_state.log_levels for saved_state in world.recalled] == [["a"]]
        world.levels.append("a")
        await world.look()
        assert world.disk.writes == 1


async def test_event_loop_and_others_never_wait_for_a_stalled_disk_and_the_last_state_wins() -> None:
    async with world_on(Disk()) as world:
        world.disk.goes_on.clear()
        for name in "abc":
            world.levels.append(name)
            world.keeping.look(world.clock.now())
        await eventually(lambda: world.disk.tried == 1)
        world.disk.goes_on.set()
        await eventually(lambda: world.disk.writes == 1)
        await world.look()
        assert world.disk.levels() == ["a", "b", "c"]


async def test_write_that_fails_is_reported_once_and_retried() -> None:
    async with world_on(Disk()) as world:
        world.disk.problem = OSError(30, "Read-only file system")
        world.levels.append("a")
        with capture_logs() as lines:
            await world.look()
            await world.look()
            assert world.disk.tried == 1
            world.clock.advance(AGAIN_S)
            await world.look()
            assert world.disk.tried == 2
        assert [(line["log_level"], line["error"]) for line in lines] == [("error", "Read-only file system")]
        world.disk.problem = None
        world.clock.advance(AGAIN_S)
        await world.look()
        assert world.disk.levels() == ["a"]


async def test_gateway_whose_file_was_taken_over_writes_no_more() -> None:
    async with world_on(Disk()) as world:
        world.disk.problem = TakenOver()
        world.levels.append("a")
        with capture_logs() as lines:
            await world.look()
        assert "host name" in lines[0]["remedy"]
        world.disk.problem = None
        await world.look()
        assert world.disk.tried == 1
    assert world.disk.tried == 1


async def test_start_waits_a_bounded_time_for_a_disk_that_does_not_answer() -> None:
    async with world_on(Disk(b"{}")) as world:
        world.disk.goes_on.clear()
        with capture_logs() as lines:
            recalling = asyncio.ensure_future(world.keeping.recall())
            await eventually(lambda: bool(world.clock.limits))
            await world.clock.pass_s(PATIENCE_S)
            await recalling
        assert "does not respond" in lines[0]["event"]


async def test_lock_error_does_not_stop_the_gateway_from_starting() -> None:
    def recall(_kept: SavedState) -> None:
        raise ValueError("somebody else's hand")

    for content, problem in ((b"{}", None), (b"no JSON", OSError(13, "Permission denied")), (b"no JSON", None)):
        disk = Disk(content)
        disk.problem = problem
        keeping = StateSaver("operator state", SavedState, disk, SavedState, recall, SteppedClock())
        with capture_logs() as lines:
            await keeping.recall()
        assert len(lines) == 1
        await keeping.close()


async def test_shutdown_writes_new_state_also_after_a_running_write() -> None:
    disk = Disk()
    world = World(disk)
    disk.goes_on.clear()
    world.levels.append("a")
    world.keeping.look(world.clock.now())
    world.levels.append("b")
    closing = asyncio.ensure_future(world.keeping.close())
    await eventually(lambda: disk.tried == 1)
    disk.goes_on.set()
    await closing
    assert disk.levels() == ["a", "b"]


async def test_shutdown_waits_a_bounded_time_for_a_disk_that_does_not_answer() -> None:
    world = World(Disk())
    world.disk.goes_on.clear()
    world.levels.append("a")
    closing = asyncio.ensure_future(world.keeping.close())
    await eventually(lambda: world.disk.tried == 1)
    await world.clock.pass_s(PATIENCE_S)
    await closing
    world.disk.goes_on.set()
    await eventually(lambda: world.disk.writes == 1)


async def test_name_that_json_cannot_encode_is_reported_and_stops_nothing() -> None:
    with capture_logs() as lines:
        async with world_on(Disk()) as world:
            world.levels.append("\udcff")
            await world.look()
            assert world.disk.tried == 0
    assert [line["event"] for line in lines] == [
        "operator state not saved: a restart would lose alerts and overrides",
        "operator state not saved: the latest changes are lost",
    ]
