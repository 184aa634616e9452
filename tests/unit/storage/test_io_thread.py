from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from llm_guard.storage.errors import StoreError
from llm_guard.storage.io_thread import IoThread


def test_work_is_done_in_one_thread_in_order_of_arrival() -> None:
    worker, seen = IoThread("disk"), []

    def act(number: int) -> None:
        seen.append((number, threading.current_thread().name))

    waiting: list[Future[None]] = [worker.submit(act, number) for number in range(5)]
    worker.shutdown()
    for each in waiting:
        each.result(10)
    assert seen == [(number, "disk") for number in range(5)]


def test_error_is_the_askers() -> None:
    worker = IoThread("disk")
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 / 0).result(10)
    assert worker.submit(lambda: 2).result(10) == 2
    worker.shutdown()


def test_work_that_is_cancelled_before_its_turn_is_not_done() -> None:
    worker, goes_on, done = IoThread("disk"), threading.Event(), list[int]()
    first = worker.submit(goes_on.wait, 10)
    second = worker.submit(done.append, 2)
    assert second.cancel()
    goes_on.set()
    first.result(10)
    worker.submit(done.append, 3).result(10)
    worker.shutdown()
    assert done == [3]


def test_no_more_waits_for_a_disk_that_hangs_than_there_is_room_for() -> None:
    worker, goes_on, begun = IoThread("disk", most_waiting=2), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        goes_on.wait(10)

    first = worker.submit(hang)
    begun.wait(10)
    waiting = [worker.submit(lambda: 1) for _ in range(2)]
    assert worker.is_full
    with pytest.raises(StoreError, match="2 reads and writes are queued"):
        worker.submit(lambda: 1).result(10)
    goes_on.set()
    first.result(10)
    assert [each.result(10) for each in waiting] == [1, 1]
    assert worker.submit(lambda: 3).result(10) == 3
    worker.shutdown()


def test_process_does_not_wait_for_it() -> None:
    worker = IoThread("disk")
    worker.submit(lambda: None).result(10)
    assert worker._thread.daemon
    worker.shutdown()
    worker._thread.join(10)
    assert not worker._thread.is_alive()
