"""A walk through the cache stores, beside a plain table of their expected content."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from llm_guard.resilience.caching.freshness import CacheSettings, judge, lasts_s, may_serve_stale
from llm_guard.storage.cache.response_store import CachedResponse, CacheHit, CacheSnapshot, MemoryCache, cost_of
from llm_guard.storage.cache.sqlite_cache_file import CacheFile
from tests.fakes.clock import ManualClock

RULES = CacheSettings(ttl=10.0, stale_while_revalidate=5.0, stale_if_error=20.0)
KEYS = [bytes([number]) * 32 for number in range(4)]
SMALLEST = cost_of(
    CachedResponse(route="a", status=200, reason="", headers=(), body=b"", is_stream=False, deployment="")
)  # fmt: skip
MOST = 4 * SMALLEST
T = TypeVar("T")

keys = st.sampled_from(KEYS)
routes = st.sampled_from(["a", "b"])
sizes = st.sampled_from([0, 0, 1, SMALLEST // 2, SMALLEST, 2 * SMALLEST, 4 * SMALLEST])


def run(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise AssertionError("it waits for something")


class FileStore:
    """`CacheFile` with the interface of a store."""

    def __init__(self, folder: Path, clock: ManualClock, most: int) -> None:
        self._file = CacheFile(lambda: folder)
        self._clock = clock
        self._most = most
        self._touches: dict[bytes, float] = {}
        self._written = self._file.forget_ended(clock.wall(), most)

    async def get(self, key: bytes) -> CacheHit | None:
        found = self._file.get(key, self._clock.wall())
        if found is not None:
            self._touches[key] = self._clock.wall()
        return found

    async def put(self, key: bytes, answer: CachedResponse, lasts_s: float) -> None:
        touches, self._touches = self._touches, {}
        self._written = self._file.put(key, answer, self._clock.wall(), lasts_s, touches, self._most)

    async def purge(self, route: str | None) -> int:
        self._written = self._file.purge(route)
        return self._written.gone

    def sweep(self) -> None:
        self._written = self._file.forget_ended(self._clock.wall(), self._most)

    def snapshot(self) -> CacheSnapshot:
        routes = self._written.routes
        return CacheSnapshot(kind="sqlite", max_bytes=self._most, routes=routes, evictions=0, failures={})

    def close(self) -> None:
        self._file.close()


@dataclass(slots=True)
class Row:
    answer: CachedResponse
    stored_at: float
    used_at: float

    @property
    def ends_at(self) -> float:
        return self.stored_at + lasts_s(RULES)


class CacheWalk(RuleBasedStateMachine):
    met: ClassVar[Counter[str]] = Counter()
    is_in_file: ClassVar[bool]

    @initialize()
    def begin(self) -> None:
        self.clock = ManualClock()
        self.rows: dict[bytes, Row] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="llm-guard-cache-"))
        self.store: Any = MemoryCache(self.clock, MOST)
        if self.is_in_file:
            self.store = FileStore(self.folder, self.clock, MOST)

    def teardown(self) -> None:
        if self.is_in_file and hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(getattr(self, "folder", ""), ignore_errors=True)

    def tick(self) -> float:
        """Advances the clock, so that no two operations happen at the same instant."""
        self.clock.advance(0.001)
        return self.clock.now()

    def forget_ended(self, now: float) -> None:
        self.rows = {key: row for key, row in self.rows.items() if now < row.ends_at}

    @rule(key=keys, route=routes, size=sizes, is_stream=st.booleans())
    def put(self, key: bytes, route: str, size: int, is_stream: bool) -> None:
        now = self.tick()
        body = bytes([len(self.rows)]) * size
        answer = CachedResponse(
            route=route, status=200, reason="OK", headers=(), body=body, is_stream=is_stream, deployment="one/gpt"
        )
        run(self.store.put(key, answer, lasts_s(RULES)))
        self.rows.pop(key, None)
        self.forget_ended(now)
        if cost_of(answer) > MOST:
            self.met["too large"] += 1
            return
        while sum(cost_of(row.answer) for row in self.rows.values()) > MOST - cost_of(answer):
            del self.rows[min(self.rows, key=lambda each: self.rows[each].used_at)]
            self.met["evicted"] += 1
        self.rows[key] = Row(answer, now, now)

    @rule(key=keys)
    def get(self, key: bytes) -> None:
        now = self.tick()
        found, row = run(self.store.get(key)), self.rows.get(key)
        if row is None or now >= row.ends_at:
            assert found is None
            self.met["missed" if row is None else "ended"] += 1
            return
        assert found is not None
        assert found.answer == row.answer
        assert found.age_s == pytest.approx(now - row.stored_at, abs=1e-5)
        row.used_at = now
        self.check_age(found.age_s)

    def check_age(self, age_s: float) -> None:
        verdict = judge(age_s, RULES)
        expected = "hit" if age_s <= 10 else "stale" if age_s <= 15 else "miss"
        assert verdict == expected
        assert may_serve_stale(age_s, RULES) == (age_s <= 30)
        self.met[verdict] += 1

    @precondition(lambda self: self.rows)
    @rule(pick=st.integers(0, 10), age_s=st.sampled_from([0.0, 4.0, 9.99, 10.01, 14.99, 15.01, 29.99, 30.01]))
    def an_entry_of_this_age_is_requested(self, pick: int, age_s: float) -> None:
        """Steers the walk to ages at which behaviour changes."""
        key = list(self.rows)[pick % len(self.rows)]
        self.clock.advance(max(0.0, self.rows[key].stored_at + age_s - self.clock.now()))
        self.get(key)

    @rule()
    def sweep(self) -> None:
        now = self.tick()
        self.store.sweep()
        self.forget_ended(now)

    @rule(route=st.sampled_from([None, "a", "b"]))
    def purge(self, route: str | None) -> None:
        going = [key for key, row in self.rows.items() if route in (None, row.answer.route)]
        assert run(self.store.purge(route)) == len(going)
        for key in going:
            del self.rows[key]
        self.met["purged"] += len(going)

    @invariant()
    def numbers_are_right_and_bounded(self) -> None:
        if not hasattr(self, "store"):
            return
        routes = self.store.snapshot().routes
        held: Counter[str] = Counter()
        for row in self.rows.values():
            held[row.answer.route] += 1
        assert {route: each.entries for route, each in routes.items()} == dict(held)
        total = sum(each.bytes for each in routes.values())
        assert total == sum(cost_of(row.answer) for row in self.rows.values())
        assert total <= MOST


class MemoryWalk(CacheWalk):
    met: ClassVar[Counter[str]] = Counter()
    is_in_file = False


class FileWalk(CacheWalk):
    met: ClassVar[Counter[str]] = Counter()
    is_in_file = True


def walk(examples: int) -> settings:
    return settings(max_examples=examples, stateful_step_count=40, deadline=None, derandomize=True, database=None)


MET = ("too large", "evicted", "missed", "ended", "hit", "stale", "miss", "purged")


def test_memory_holds_on_every_walk() -> None:
    run_state_machine_as_test(MemoryWalk, settings=walk(150))
    assert all(MemoryWalk.met[each] for each in MET), MemoryWalk.met


def test_file_holds_on_every_walk() -> None:
    run_state_machine_as_test(FileWalk, settings=walk(30))
    assert all(FileWalk.met[each] for each in MET), FileWalk.met
