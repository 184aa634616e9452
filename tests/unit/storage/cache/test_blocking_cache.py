"""A cache in a SQLite file as seen from the event loop, on a disk that is slow, full, broken or gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from llm_guard.clock import Clock, SystemClock
from llm_guard.storage.cache import blocking_cache
from llm_guard.storage.cache.blocking_cache import REST_S, BlockingCache
from llm_guard.storage.cache.response_store import CachedResponse, cost_of
from llm_guard.storage.cache.sqlite_cache_file import FILE, CacheFile
from llm_guard.worker_thread import MOST_WAITING
from tests.fakes.clock import SteppedClock, let_run
from tests.fakes.waiting import eventually

KEY, OTHER = b"k" * 32, b"o" * 32


def answer(body: bytes = b"{}", route: str = "gpt") -> CachedResponse:
    return CachedResponse(
        route=route, status=200, reason="OK", headers=(("content-type", "application/json"),), body=body,
        is_stream=False, deployment="one/gpt",
    )  # fmt: skip


def new_cache(folder: Callable[[], Path], clock: Clock, max_bytes: int) -> BlockingCache:
    return BlockingCache(CacheFile(folder), "sqlite", clock, max_bytes)


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
async def cache(tmp_path: Path, clock: SteppedClock) -> AsyncIterator[BlockingCache]:
    cache = new_cache(lambda: tmp_path, clock, 1 << 20)
    yield cache
    await cache.close()


async def test_answer_is_there_after_a_restart_and_ages_on(
    cache: BlockingCache, clock: SteppedClock, tmp_path: Path
) -> None:  # fmt: skip
    await cache.put(KEY, answer(), 60)
    await cache.close()
    clock.advance(10)
    again = new_cache(lambda: tmp_path, clock, 1 << 20)
    found = await again.get(KEY)
    assert found is not None
    assert (found.answer, found.age_s) == (answer(), 10)
    assert await again.get(OTHER) is None
    clock.advance(50)
    assert await again.get(KEY) is None
    await again.close()


async def test_no_other_user_can_read_the_file(cache: BlockingCache, tmp_path: Path) -> None:
    await cache.put(KEY, answer(), 60)
    assert {path.stat().st_mode & 0o077 for path in files(tmp_path)} == {0}


async def test_reading_creates_nothing(cache: BlockingCache, tmp_path: Path) -> None:
    assert await cache.get(KEY) is None
    assert not files(tmp_path)


async def test_numbers_are_by_route(cache: BlockingCache) -> None:
    await cache.put(KEY, answer(), 60)
    await cache.put(OTHER, answer(b"x", "other"), 60)
    routes = cache.snapshot().routes
    assert {route: (size.entries, size.bytes) for route, size in routes.items()} == {
        "gpt": (1, cost_of(answer())), "other": (1, cost_of(answer(b"x"))),
    }  # fmt: skip
    assert await cache.purge("gpt") == 1
    assert await cache.get(KEY) is None
    assert await cache.get(OTHER) is not None
    assert await cache.purge(None) == 1
    assert cache.snapshot().routes == {}


async def test_purged_data_is_removed_from_the_disk(cache: BlockingCache, tmp_path: Path) -> None:
    await cache.put(KEY, answer(b'"a secret answer"'), 60)
    assert any(b"a secret answer" in path.read_bytes() for path in files(tmp_path))
    await cache.purge(None)
    assert not any(b"a secret answer" in path.read_bytes() for path in files(tmp_path))


async def test_expired_entries_are_removed_gradually(cache: BlockingCache, clock: SteppedClock) -> None:
    await cache.put(KEY, answer(), 60)
    clock.advance(61)
    cache.sweep()
    await eventually(lambda: cache.snapshot().routes == {})


async def test_smaller_limit_holds_from_the_next_sweep_on(cache: BlockingCache) -> None:
    await cache.put(KEY, answer(b"x" * 5000), 60)
    cache.limit(4000)
    cache.sweep()
    await eventually(lambda: cache.snapshot().evictions == 1)
    assert cache.snapshot().routes == {}
    assert await cache.get(KEY) is None


async def test_response_from_the_future_is_not_returned(cache: BlockingCache, clock: SteppedClock) -> None:
    await cache.put(KEY, answer(), 1e6)
    clock._wall_offset_s -= 30
    assert (await cache.get(KEY)) is not None
    clock._wall_offset_s -= 100
    assert await cache.get(KEY) is None


async def test_broken_file_is_moved_aside(cache: BlockingCache, clock: SteppedClock, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 1000)
    with capture_logs() as log:
        assert await cache.get(KEY) is None
        assert cache.snapshot().failures == {"read_failed": 1}
        clock.advance(REST_S)
        await cache.put(KEY, answer(), 60)
        assert await cache.get(KEY) is not None
    assert (tmp_path / f"{FILE}.broken-1").exists()
    assert any("is corrupt" in line["event"] for line in log)


async def test_answer_that_cannot_be_read_is_not_there(cache: BlockingCache, tmp_path: Path) -> None:
    await cache.put(KEY, answer(), 60)
    file = CacheFile(lambda: tmp_path)
    with file._database.writing() as connection:
        connection.execute("UPDATE answers SET answer = x'00'")
    assert await cache.get(KEY) is None
    file.close()


async def test_missing_folder_costs_the_cache_and_no_call(clock: SteppedClock) -> None:
    def nowhere() -> Path:
        raise FileNotFoundError(2, "there is no home directory")

    cache = new_cache(nowhere, clock, 1 << 20)
    with capture_logs() as log:
        assert await cache.get(KEY) is None
        assert await cache.get(KEY) is None
        await cache.put(KEY, answer(), 60)
    assert cache.snapshot().failures == {"read_failed": 1}  # the cache is suspended
    assert [line["log_level"] for line in log] == ["warning"]
    clock.advance(REST_S)
    await cache.put(KEY, answer(), 60)
    assert cache.snapshot().failures == {"read_failed": 1, "write_failed": 1}
    assert await cache.purge(None) is None
    await cache.close()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], threading.Event]:
    """Makes a method of the file wait until the event is set."""

    def make(name: str) -> threading.Event:
        go_on, method = threading.Event(), getattr(CacheFile, name)

        def slow(*arguments: Any) -> Any:
            go_on.wait(20)
            return method(*arguments)

        monkeypatch.setattr(CacheFile, name, slow)
        return go_on

    return make


async def test_disk_that_hangs_makes_a_call_wait_a_tenth_of_a_second(
    cache: BlockingCache, clock: SteppedClock, stuck: Callable[[str], threading.Event]
) -> None:
    await cache.put(KEY, answer(), 60)
    go_on = stuck("get")
    asked = asyncio.create_task(cache.get(KEY))
    await let_run()
    await clock.pass_s(blocking_cache.READ_S)
    assert await asked is None
    assert await cache.get(KEY) is None  # at once, because the cache is suspended
    assert cache.snapshot().failures == {"timeout": 1}
    go_on.set()
    await clock.pass_s(REST_S)
    assert await cache.get(KEY) is not None


async def test_answers_that_wait_for_a_disk_are_bounded(
    cache: BlockingCache, clock: SteppedClock, stuck: Callable[[str], threading.Event]
) -> None:
    go_on = stuck("put")
    body = b"x" * (blocking_cache.MOST_UNWRITTEN_BYTES // 2)
    writing = [asyncio.create_task(cache.put(bytes([number]) * 32, answer(body), 60)) for number in range(2)]
    await let_run()
    await cache.put(KEY, answer(), 60)
    assert cache.snapshot().failures == {"queue_full": 1}
    go_on.set()
    await asyncio.gather(*writing)
    await clock.pass_s(REST_S)
    await cache.put(KEY, answer(), 60)
    assert await cache.get(KEY) is not None


async def test_response_that_is_written_late_is_stored_all_the_same(
    cache: BlockingCache, clock: SteppedClock, stuck: Callable[[str], threading.Event]
) -> None:
    go_on = stuck("put")
    writing = [asyncio.create_task(cache.put(key, answer(), 60)) for key in (KEY, OTHER)]
    await let_run()
    await clock.pass_s(blocking_cache.WRITE_S)
    await asyncio.gather(*writing)
    assert cache.snapshot().failures == {"timeout": 2}
    go_on.set()
    await clock.pass_s(REST_S)
    assert await cache.get(OTHER) is not None


async def test_disk_that_has_much_to_do_is_not_taken_for_one_that_hangs(
    cache: BlockingCache, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cache.put(KEY, answer(), 60)
    turns, get = threading.Semaphore(0), CacheFile.get

    def in_turn(file: CacheFile, key: bytes, now: float) -> Any:
        turns.acquire(timeout=20)
        return get(file, key, now)

    monkeypatch.setattr(CacheFile, "get", in_turn)
    first, second = (asyncio.create_task(cache.get(KEY)) for _ in range(2))
    await let_run()
    turns.release()
    assert await first is not None
    await clock.pass_s(blocking_cache.READ_S)
    assert await second is None
    turns.release(2)
    assert await cache.get(KEY) is not None
    assert cache.snapshot().failures == {"timeout": 1}


async def test_loop_that_is_late_itself_is_not_taken_for_a_disk_that_hangs(tmp_path: Path) -> None:
    cache = new_cache(lambda: tmp_path, SystemClock(), 1 << 20)
    await cache.put(KEY, answer(), 60)
    asked = asyncio.create_task(cache.get(KEY))
    await asyncio.sleep(0)
    threading.Event().wait(2 * blocking_cache.READ_S)  # blocks the loop; the disk responds long before
    assert await asked is not None
    assert cache.snapshot().failures == {}
    await cache.close()


async def test_overflow_of_pending_writes_leaves_the_cache_to_other_calls(
    cache: BlockingCache, stuck: Callable[[str], threading.Event]
) -> None:
    await cache.put(KEY, answer(), 60)
    go_on = stuck("get")
    asked = [asyncio.create_task(cache.get(KEY)) for _ in range(MOST_WAITING + 10)]
    await let_run()
    assert cache.snapshot().failures["queue_full"] > 0
    go_on.set()
    found = await asyncio.gather(*asked)
    assert found[0] is not None
    assert found[-1] is None
    assert await cache.get(KEY) is not None


async def test_call_that_is_cancelled_during_its_lookup_leaves_nothing(
    cache: BlockingCache, stuck: Callable[[str], threading.Event]
) -> None:
    await cache.put(KEY, answer(), 60)
    go_on = stuck("get")
    asked = asyncio.create_task(cache.get(KEY))
    await let_run()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    go_on.set()
    assert await cache.get(KEY) is not None


async def test_closed_store_stores_and_returns_nothing(cache: BlockingCache) -> None:
    await cache.put(KEY, answer(), 60)
    await cache.close()
    await cache.close()
    assert await cache.get(KEY) is None
    await cache.put(OTHER, answer(), 60)
    assert OTHER not in cache._touches
