from __future__ import annotations

import asyncio

import pytest

from llm_guard.clock import Clock
from tests.fakes.clock import ManualClock


async def test_sleep_moves_both_clocks_on_at_once_and_is_noted() -> None:
    clock: Clock = ManualClock(now=10.0, wall=500.0)
    await clock.sleep(60.0)
    assert (clock.now(), clock.wall()) == (70.0, 560.0)
    assert isinstance(clock, ManualClock)
    assert clock.slept == [60.0]


async def test_sleep_lets_others_run() -> None:
    clock = ManualClock()
    ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(ran.set)
    await clock.sleep(0.0)
    assert ran.is_set()


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(AssertionError):
        ManualClock().advance(-1.0)


async def test_a_limit_never_fires_by_itself() -> None:
    clock = ManualClock()
    async with clock.limit() as limit:
        limit.set(clock.now() + 1.0, "attempt")
        clock.advance(100.0)
        limit.set_idle(0.0, clock.now(), "total")
        await asyncio.sleep(0.01)
    assert limit.name == "total"


async def test_a_limit_that_is_told_to_fire_cancels_its_body_with_a_timeout() -> None:
    clock = ManualClock()

    async def attempt() -> None:
        async with clock.limit() as limit:
            limit.set(clock.now() + 1.0, "total")
            clock.limits[-1].fire("idle")
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await attempt()
    assert clock.limits[-1].name == "idle"


async def test_a_limit_shows_what_it_was_set_to() -> None:
    clock = ManualClock(now=5.0)
    limit = clock.limit()
    limit.set(7.0, "connect")
    assert (limit.at, limit.idle_s, limit.name) == (7.0, None, "connect")
    limit.set_idle(2.0, 30.0, "total")
    clock.advance(1.0)
    limit.touch()
    assert (limit.at, limit.idle_s, limit.touched_at) == (30.0, 2.0, 6.0)
