from __future__ import annotations

import asyncio

import pytest

from llm_guard.clock import Clock
from tests.fakes.clock import ManualClock, SteppedClock, let_run


async def test_sleep_moves_both_clocks_on_at_once_and_is_noted() -> None:
    clock: Clock = ManualClock(now=10.0, wall=500.0)
    await clock.sleep(60.0)
    assert (clock.now(), clock.wall()) == (70.0, 560.0)
    assert isinstance(clock, ManualClock)
    assert clock.slept == [60.0]


async def test_sleep_runs_other_tasks() -> None:
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
    with clock.limit() as limit:
        limit.set(clock.now() + 1.0, "attempt")
        clock.advance(100.0)
        limit.set_idle(0.0, clock.now(), "total")
        await asyncio.sleep(0.01)
    assert limit.name == "total"


async def test_limit_that_is_made_to_fire_cancels_its_body_with_a_timeout() -> None:
    clock = ManualClock()

    async def attempt() -> None:
        with clock.limit() as limit:
            limit.set(clock.now() + 1.0, "total")
            clock.limits[-1].fire("idle")
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await attempt()
    assert clock.limits[-1].name == "idle"


async def test_limit_shows_its_setting() -> None:
    clock = ManualClock(now=5.0)
    limit = clock.limit()
    limit.set(7.0, "connect")
    assert (limit.at, limit.idle_s, limit.name) == (7.0, None, "connect")
    limit.set_idle(2.0, 30.0, "total")
    clock.advance(1.0)
    limit.touch()
    assert (limit.at, limit.idle_s, limit.touched_at) == (30.0, 2.0, 6.0)


def test_alarms_that_are_due_ring_once_in_the_order_of_their_instants() -> None:
    clock = ManualClock(now=10.0)
    rung: list[str] = []
    clock.call_at(12.0, lambda: rung.append("second"))
    clock.call_at(11.0, lambda: rung.append("first"))
    clock.call_at(13.0, lambda: rung.append("later"))
    clock.call_at(11.0, lambda: rung.append("never")).cancel()
    assert clock.ring_due() == 0
    clock.advance(2.0)
    assert clock.ring_due() == 2
    assert clock.ring_due() == 0
    assert rung == ["first", "second"]


def test_alarm_that_is_cancelled_by_one_before_it_does_not_ring() -> None:
    clock = ManualClock(now=10.0)
    rung: list[str] = []
    clock.call_at(10.0, lambda: second.cancel())
    second = clock.call_at(10.0, lambda: rung.append("second"))
    clock.ring_due()
    assert rung == []


async def test_stepped_clock_wakes_each_sleeper_at_its_instant_and_in_their_order() -> None:
    clock: Clock = SteppedClock(now=10.0)
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, *naps: float) -> None:
        for seconds in naps:
            await clock.sleep(seconds)
            woken.append((name, clock.now()))

    sleepers = [asyncio.ensure_future(sleep("a", 2.0, 1.5)), asyncio.ensure_future(sleep("b", 3.0))]
    assert isinstance(clock, SteppedClock)
    await clock.pass_s(1.9)
    assert (woken, clock.now()) == ([], 11.9)
    await clock.pass_s(10.0)
    assert woken == [("a", 12.0), ("b", 13.0), ("a", 13.5)]
    assert clock.now() == 21.9
    assert all(sleeper.done() for sleeper in sleepers)


async def test_cancelled_sleeper_leaves_no_alarm() -> None:
    clock = SteppedClock()
    sleeper = asyncio.ensure_future(clock.sleep(5.0))
    await let_run()
    sleeper.cancel()
    await let_run()
    assert [alarm.is_cancelled for alarm in clock.alarms] == [True]


async def test_limit_on_a_stepped_clock_ends_by_itself_and_silence_is_measured_from_the_last_touch() -> None:
    clock = SteppedClock(now=10.0)

    async def attempt() -> float:
        limit = clock.limit()
        try:
            with limit:
                limit.set_idle(2.0, 100.0, "total")
                await clock.sleep(1.5)
                limit.touch()
                await asyncio.Event().wait()
        except TimeoutError:
            assert limit.name == "idle"
        return clock.now()

    running = asyncio.ensure_future(attempt())
    await clock.pass_s(3.4)
    assert not running.done()
    await clock.pass_s(5.0)
    assert running.result() == 13.5


async def test_limit_that_is_left_in_time_leaves_no_alarm() -> None:
    clock = SteppedClock(now=10.0)
    with clock.limit() as limit:
        limit.set(12.0, "total")
    await clock.pass_s(5.0)
    assert clock.alarms == [] or all(alarm.is_cancelled for alarm in clock.alarms)
