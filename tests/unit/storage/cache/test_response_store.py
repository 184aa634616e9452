"""The bounds of the response cache in memory."""

from __future__ import annotations

from llm_guard.storage.cache.response_store import CachedResponse, MemoryCache, cost_of
from tests.fakes.clock import ManualClock

ANSWER = CachedResponse(route="a", status=200, reason="", headers=(), body=b"x" * 100, is_stream=False, deployment="")


async def test_answer_that_is_replaced_for_ever_takes_the_room_of_one() -> None:
    cache = MemoryCache(ManualClock(), 100 * cost_of(ANSWER))
    for _ in range(1000):
        await cache.put(b"k", ANSWER, 60.0)
    assert cache.snapshot().routes["a"].entries == 1
    assert len(cache._ends) <= 2 * 1 + 64 + 1


async def test_smaller_limit_holds_at_once() -> None:
    cache = MemoryCache(ManualClock(), 4 * cost_of(ANSWER))
    for number in range(4):
        await cache.put(bytes([number]), ANSWER, 60.0)
    cache.limit(2 * cost_of(ANSWER))
    assert [await cache.get(bytes([number])) is not None for number in range(4)] == [False, False, True, True]
    assert cache.snapshot().evictions == 2
