from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from llm_guard.worker_thread import WorkerBusy, WorkerThread, wait_at_most
from tests.fakes.clock import SteppedClock, let_run
from tests.fakes.waiting import eventually


class Disk:
    """A call that does not return before `goes_on` is set."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.goes_on = threading.Event()

    def hang(self) -> None:
        self.begun.set()
        self.goes_on.wait(10)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.goes_on.set()


async def test_calls_run_in_one_thread_in_order_of_arrival() -> None:
    worker, seen = WorkerThread("disk"), []

    def act(number: int) -> None:
        seen.append((number, threading.current_thread().name))

    waiting = [worker.run(act, number) for number in range(5)]
    worker.shutdown()
    await asyncio.gather(*waiting)
    assert seen == [(number, "disk") for number in range(5)]


async def test_error_is_raised_at_the_waiter() -> None:
    worker = WorkerThread("disk")
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 / 0)
    assert await worker.run(lambda: 2) == 2


async def test_error_that_is_not_awaited_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    worker = WorkerThread("disk")
    with caplog.at_level(logging.ERROR, "asyncio"):
        _ = worker.run(lambda: 1 / 0)
        await worker.run(lambda: None)
        gc.collect()
    assert caplog.records == []


async def test_call_that_is_cancelled_before_its_turn_never_runs(disk: Disk) -> None:
    worker, done = WorkerThread("disk"), list[int]()
    first = worker.run(disk.hang)
    second = worker.run(done.append, 2)
    second.cancel()
    await let_run()
    disk.goes_on.set()
    await first
    await worker.run(done.append, 3)
    assert done == [3]


async def test_queue_of_a_hanging_disk_is_bounded(disk: Disk) -> None:
    worker = WorkerThread("disk", most_waiting=2)
    first = worker.run(disk.hang)
    await eventually(disk.begun.is_set)
    waiting = [worker.run(lambda: 1) for _ in range(2)]
    assert worker.is_full
    with pytest.raises(WorkerBusy, match="2 calls already wait for 'disk'"):
        await worker.run(lambda: 1)
    disk.goes_on.set()
    await first
    assert await asyncio.gather(*waiting) == [1, 1]
    assert await worker.run(lambda: 3) == 3


async def test_wait_has_a_limit_and_drops_a_call_before_its_turn(disk: Disk) -> None:
    worker, clock, done = WorkerThread("disk"), SteppedClock(), list[int]()
    first = worker.run(disk.hang)
    dropped = asyncio.ensure_future(wait_at_most(5.0, worker.run(done.append, 1), clock))
    shielded = asyncio.ensure_future(wait_at_most(5.0, asyncio.shield(worker.run(done.append, 2)), clock))
    await clock.pass_s(4.9)
    assert not dropped.done()
    await clock.pass_s(0.2)
    found = await asyncio.gather(dropped, shielded, return_exceptions=True)
    assert [type(error) for error in found] == [TimeoutError, TimeoutError]
    disk.goes_on.set()
    await first
    await eventually(lambda: done == [2])


async def test_thread_of_a_single_call_ends_with_it() -> None:
    assert await WorkerThread("single call").run(lambda: 1) == 1
    await eventually(lambda: all(thread.name != "single call" for thread in threading.enumerate()))


class Body:
    """Notes when it is deleted."""

    def __init__(self, is_deleted: threading.Event) -> None:
        self._is_deleted = is_deleted

    def __del__(self) -> None:
        self._is_deleted.set()


async def test_thread_keeps_nothing_of_the_last_call() -> None:
    worker, is_deleted = WorkerThread("disk"), threading.Event()
    await worker.run(lambda _: None, Body(is_deleted))
    await eventually(is_deleted.is_set)


async def test_close_runs_a_last_call_and_waits_only_so_long(disk: Disk) -> None:
    worker, done = WorkerThread("disk"), list[int]()
    first = worker.run(disk.hang)
    await worker.close(lambda: done.append(1), 0.01)
    assert not first.done()
    with pytest.raises(RuntimeError, match="the thread 'disk' has ended"):
        await worker.run(lambda: None)
    disk.goes_on.set()
    await eventually(lambda: done == [1] and not worker._thread.is_alive())


def test_result_for_a_closed_loop_is_dropped(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    worker = WorkerThread("disk")

    async def begin() -> None:
        _ = worker.run(disk.hang)

    asyncio.run(begin())
    disk.goes_on.set()
    worker.submit(lambda: None).result(10)
    assert caplog.records == []


def test_process_does_not_wait_for_it() -> None:
    text = """
import asyncio, threading
from llm_guard.worker_thread import WorkerThread

async def main():
    _ = WorkerThread("disk").run(threading.Event().wait)

asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", text], timeout=30).returncode == 0  # noqa: PLW1510 - it is the result
