"""Writing of audit entries to a disk that is slow, full, or does not respond."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from llm_guard.admin.audit.writer import _MOST_WAITING, KEPT, MOST_READING, PATIENCE_S, AuditWriter
from llm_guard.admin.http.endpoint import Refused
from llm_guard.storage.audit_log import AuditFile, Entry
from llm_guard.storage.errors import StoreError
from tests.fakes.clock import SteppedClock
from tests.fakes.waiting import eventually


class Disk(AuditFile):
    """A file in memory that fails with `problem`, and blocks until `goes_on` is set."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.threads: set[str] = set()
        self.problem: str | None = None
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.is_closed = False

    def append(self, entries: Sequence[Entry]) -> None:
        self.threads.add(threading.current_thread().name)
        self.goes_on.wait(10)
        if self.problem is not None:
            raise StoreError(self.problem)
        self.written += [entry.reason for entry in entries]

    def latest(self, limit: int, before: int | None) -> list[Entry]:
        self.goes_on.wait(10)
        if self.problem is not None:
            raise StoreError(self.problem)
        return [entry(each) for each in reversed(self.written)][:limit]

    def close(self) -> None:
        self.is_closed = True


def entry(reason: str) -> Entry:
    return Entry(at="", actor="ann", action="breakers.reset", target="a/x", reason=reason, detail={}, instance="")


@asynccontextmanager
async def trail_on(disk: Disk, clock: SteppedClock | None = None) -> AsyncIterator[AuditWriter]:
    trail = AuditWriter(disk, clock or SteppedClock())
    try:
        yield trail
    finally:
        disk.goes_on.set()
        await trail.close()


async def shown(trail: AuditWriter, limit: int = 100, before: int | None = None) -> list[str]:
    return [entry.reason for entry in await trail.latest(limit, before)]


async def test_changes_are_written_in_order_and_not_by_the_event_loop() -> None:
    disk = Disk()
    async with trail_on(disk) as trail:
        assert [await each for each in [trail.add(entry(str(number))) for number in range(5)]] == [None] * 5
    assert disk.written == ["0", "1", "2", "3", "4"]
    assert len(disk.threads) == 1
    assert threading.current_thread().name not in disk.threads


async def test_unwritable_change_is_logged_whole_shown_and_written_with_the_next() -> None:
    disk = Disk()
    disk.problem = "the disk is full"
    async with trail_on(disk) as trail:
        with capture_logs() as log:
            assert await trail.add(entry("one")) == "the disk is full"
            assert await trail.add(entry("two")) == "the disk is full"
        assert [(line["log_level"], line["entry"]["reason"]) for line in log] == [("error", "one"), ("error", "two")]
        with pytest.raises(Refused, match="2 changes are not written yet; the log has them"):
            await trail.latest(10, None)
        disk.problem = None
        assert await shown(trail) == ["two", "one"]
        assert await shown(trail, before=7) == []
        assert await trail.add(entry("three")) is None
        assert disk.written == ["one", "two", "three"]
        assert await shown(trail, limit=2) == ["three", "two"]


async def test_disk_that_does_not_answer_is_not_waited_for_but_may_answer_later() -> None:
    disk, clock = Disk(), SteppedClock()
    disk.goes_on.clear()
    async with trail_on(disk, clock) as trail:
        written = trail.add(entry("one"))
        waiting = asyncio.create_task(trail.wait_written(written))
        await clock.pass_s(PATIENCE_S - 0.01)
        assert not waiting.done()
        with capture_logs() as log:
            await clock.pass_s(0.01)
        assert "has not responded in 5 s" in (await waiting or "")
        assert [line["log_level"] for line in log] == ["error"]
        reading = asyncio.create_task(trail.latest(10, None))
        await clock.pass_s(PATIENCE_S)
        with pytest.raises(Refused, match="1 changes are not written yet"):
            await reading
        disk.goes_on.set()
        assert await written is None
        assert await trail.wait_written(written) is None


async def test_disconnect_while_the_disk_is_slow_does_not_cancel_the_change() -> None:
    disk = Disk()
    disk.goes_on.clear()
    async with trail_on(disk) as trail:
        written = trail.add(entry("one"))
        waiting = asyncio.create_task(trail.wait_written(written))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
        disk.goes_on.set()
        assert await written is None
    assert disk.written == ["one"]


async def test_queue_for_a_disk_that_hangs_is_bounded() -> None:
    disk = Disk()
    disk.goes_on.clear()
    async with trail_on(disk) as trail:
        first = [trail.add(entry("x")) for _ in range(_MOST_WAITING)]
        assert "already wait for the disk" in (await trail.add(entry("late")) or "")
        disk.goes_on.set()
        await asyncio.gather(*first)
        assert await trail.add(entry("next")) is None
    assert disk.written[-2:] == ["late", "next"]


async def test_process_may_end_while_the_disk_hangs() -> None:
    disk = Disk()
    disk.goes_on.clear()
    async with trail_on(disk) as trail:
        written = trail.add(entry("x"))
        (thread,) = (each for each in threading.enumerate() if each.name == "audit")
        assert thread.daemon
        disk.goes_on.set()
        await written


async def test_no_change_is_lost_for_any_disk_error() -> None:
    disk = Disk()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "append", lambda _entries: 1 // 0)
        async with trail_on(disk) as trail:
            assert await trail.add(entry("x")) == "ZeroDivisionError: integer division or modulo by zero"
            patch.undo()
            assert await trail.add(entry("y")) is None
    assert disk.written == ["x", "y"]


async def test_memory_for_unwritable_changes_is_bounded() -> None:
    disk = Disk()
    disk.problem = "the disk is full"
    async with trail_on(disk) as trail:
        for number in range(KEPT + 2):
            await trail.add(entry(str(number)))
        disk.problem = None
        assert len(await shown(trail, limit=10_000)) == KEPT
        assert (await shown(trail))[0] == str(KEPT + 1)


async def test_end_waits_for_pending_changes() -> None:
    disk = Disk()
    disk.goes_on.clear()
    trail = AuditWriter(disk, SteppedClock())
    _ = trail.add(entry("one"))
    closing = asyncio.create_task(trail.close())
    await asyncio.sleep(0)
    disk.goes_on.set()
    await closing
    assert (disk.written, disk.is_closed) == (["one"], True)
    await trail.close()
    assert await trail.add(entry("late")) == "the gateway has stopped"


async def read_in_vain(trail: AuditWriter, clock: SteppedClock) -> None:
    """Starts as many readers as are allowed at once, all of which time out or are cancelled."""
    readers = [asyncio.create_task(trail.latest(10, None)) for _ in range(MOST_READING)]
    await clock.pass_s(PATIENCE_S - 0.01)
    for reader in readers[::2]:
        reader.cancel()
    await clock.pass_s(0.01)
    told = await asyncio.gather(*readers, return_exceptions=True)
    assert [type(each) for each in told] == [asyncio.CancelledError, Refused] * (MOST_READING // 2)


async def test_readers_of_a_hanging_disk_are_bounded_though_they_disconnect() -> None:
    disk, clock = Disk(), SteppedClock()
    disk.goes_on.clear()
    async with trail_on(disk, clock) as trail:
        await read_in_vain(trail, clock)
        for _ in range(3):
            with pytest.raises(
                Refused, match=r"reads of the disk of ops\.store are already pending.*the log has them"
            ) as refused:
                await trail.latest(10, None)
            assert (refused.value.status, refused.value.code) == (503, "audit_busy")
            assert refused.value.headers == (("Retry-After", "5"),)
        assert trail._thread._work.qsize() == MOST_READING - 1
        disk.goes_on.set()
        await eventually(lambda: trail._reading == 0)
        assert await shown(trail) == []


async def test_readers_that_are_answered_make_room() -> None:
    disk = Disk()
    async with trail_on(disk) as trail:
        for _ in range(2):
            found = await asyncio.gather(*(shown(trail) for _ in range(MOST_READING)))
            assert found == [[]] * MOST_READING
        disk.problem = "the disk is gone"
        for _ in range(MOST_READING + 1):
            with pytest.raises(Refused, match="the disk is gone"):
                await trail.latest(10, None)


async def test_change_is_written_though_readers_have_filled_the_queue() -> None:
    disk, clock = Disk(), SteppedClock()
    disk.goes_on.clear()
    async with trail_on(disk, clock) as trail:
        await read_in_vain(trail, clock)
        written = trail.add(entry("one"))
        disk.goes_on.set()
        assert await written is None
