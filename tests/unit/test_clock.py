"""The clock of production code, the only one tested in real time. Limits that must fire are a few milliseconds long,
limits that must not fire are minutes long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf
from weakref import ref

import pytest

from llm_guard.clock import Clock, SystemClock, TimeLimit, _FarAlarm
from tests.fakes.clock import ManualClock

SOON_S = 0.02
NEVER_S = 600.0


async def hang() -> None:
    await asyncio.Event().wait()


async def within_scope(body: Callable[[TimeLimit, float], Awaitable[None]]) -> str:
    """Runs `body` in a scope with the current instant; returns the name of the limit that timed out, or ""."""
    clock = SystemClock()
    limit = clock.limit()
    try:
        with limit:
            await body(limit, clock.now())
    except TimeoutError:
        return limit.name
    return ""


def timers() -> int:
    """Counts the running loop's timers that are not cancelled."""
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return sum(not timer.cancelled() for timer in scheduled)


async def test_system_clock_has_the_time_and_sleeps() -> None:
    clock: Clock = SystemClock()
    began, wall = clock.now(), clock.wall()
    await clock.sleep(0.01)
    assert 0.009 <= clock.now() - began < 5
    assert 0 < clock.wall() - wall < 5


async def test_limit_that_passes_cancels_its_body_and_identifies_itself() -> None:
    async def body(limit: TimeLimit, now: float) -> None:
        limit.set(now + SOON_S, "connect")
        await hang()

    clock = SystemClock()
    began = clock.now()
    assert await within_scope(body) == "connect"
    assert clock.now() - began >= SOON_S - 0.002


async def test_scope_without_a_limit_does_not_end_its_body() -> None:
    async def body(limit: TimeLimit, now: float) -> None:
        await asyncio.sleep(SOON_S)

    assert await within_scope(body) == ""


async def test_limit_can_be_moved_later_and_earlier() -> None:
    is_moved = False

    async def body(limit: TimeLimit, now: float) -> None:
        nonlocal is_moved
        limit.set(now + SOON_S, "connect")
        limit.set(now + NEVER_S, "attempt")
        await asyncio.sleep(2 * SOON_S)
        is_moved = True
        limit.set(now + 3 * SOON_S, "first_token")
        await hang()

    assert await within_scope(body) == "first_token"
    assert is_moved


async def test_instant_that_has_passed_ends_the_scope_at_once() -> None:
    async def body(limit: TimeLimit, now: float) -> None:
        limit.set(now - 1.0, "total")
        await hang()

    assert await within_scope(body) == "total"


async def test_silence_ends_the_scope_by_the_name_of_idle() -> None:
    async def body(limit: TimeLimit, now: float) -> None:
        limit.set_idle(SOON_S, now + NEVER_S, "total")
        await hang()

    assert await within_scope(body) == "idle"


async def test_end_of_the_call_precedes_idle_if_it_is_sooner() -> None:
    async def body(limit: TimeLimit, now: float) -> None:
        limit.set_idle(NEVER_S, now + SOON_S, "total")
        await hang()

    assert await within_scope(body) == "total"


async def test_silence_ends_the_scope_before_a_limit_that_was_set_earlier() -> None:
    async def body(limit: TimeLimit, now: float) -> None:
        limit.set(now + NEVER_S, "attempt")
        limit.set_idle(SOON_S, now + NEVER_S, "total")
        await hang()

    assert await within_scope(body) == "idle"


async def test_limit_holds_in_a_task_that_was_cancelled_before_and_went_on() -> None:
    async def body(limit: TimeLimit, now: float) -> None:
        limit.set(now - 1.0, "total")
        await hang()

    async def go_on() -> str:
        with suppress(asyncio.CancelledError):
            await hang()
        return await within_scope(body)

    task = asyncio.ensure_future(go_on())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "total"


async def test_new_limit_replaces_idle() -> None:
    async def body(limit: TimeLimit, now: float) -> None:
        limit.set_idle(SOON_S, now + NEVER_S, "total")
        limit.set(now + 2 * SOON_S, "attempt")
        await hang()

    assert await within_scope(body) == "attempt"


@pytest.mark.parametrize(
    ("now", "touched_at", "left_s"),
    [
        (10.0, 4.0, 4.0),  # no activity since 4: idle at 14
        (20.0, 19.5, 9.5),
        (26.0, 25.0, 4.0),  # idle at 35, but total at 30
    ],
)
async def test_touch_puts_off_idle_but_not_the_end_of_the_call(now: float, touched_at: float, left_s: float) -> None:
    clock = ManualClock(touched_at)
    limit = TimeLimit(clock.now, clock.call_at)
    with limit:
        limit.set_idle(10.0, 30.0, "total")
        limit.touch()
        clock.advance(now - touched_at)
        limit._check()  # the timer of the first idle period fires
        assert clock.alarms[-1].at == now + left_s
    assert limit.name == "total"


async def test_cancellation_from_outside_is_not_taken_for_a_timeout() -> None:
    async def body(limit: TimeLimit, now: float) -> None:
        limit.set(now + NEVER_S, "attempt")
        await hang()

    task = asyncio.ensure_future(within_scope(body))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancellation_from_outside_outranks_a_limit_that_passes_at_the_same_time() -> None:
    limits: list[TimeLimit] = []

    async def body(limit: TimeLimit, now: float) -> None:
        limits.append(limit)
        limit.set(now + NEVER_S, "attempt")
        await hang()

    task = asyncio.ensure_future(within_scope(body))
    await asyncio.sleep(0)
    limits[0].set(0.0, "total")
    await asyncio.sleep(0)  # in the loop's next iteration the timer fires, and the task is cancelled
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 1


async def test_inner_limit_leaves_the_outer_one_as_it_is() -> None:
    async def inner(limit: TimeLimit, now: float) -> None:
        limit.set(now - 1.0, "connect")
        await hang()

    async def outer(limit: TimeLimit, now: float) -> None:
        limit.set(now + 3 * SOON_S, "total")
        assert await within_scope(inner) == "connect"
        await hang()

    assert await within_scope(outer) == "total"


async def test_outer_limit_ends_its_body_under_its_own_name() -> None:
    async def inner(limit: TimeLimit, now: float) -> None:
        limit.set(now + NEVER_S, "connect")
        await hang()

    async def outer(limit: TimeLimit, now: float) -> None:
        limit.set(now + SOON_S, "total")
        await within_scope(inner)

    assert await within_scope(outer) == "total"


async def test_body_that_ends_by_itself_is_not_ended_by_an_instant_that_has_passed() -> None:
    async def body(limit: TimeLimit, now: float) -> None:
        limit.set(now - 1.0, "total")

    before = timers()
    assert await within_scope(body) == ""
    assert timers() == before
    await asyncio.sleep(0.002)  # the timer does not cancel the task later


async def test_later_limit_moves_no_timer_and_holds() -> None:
    clock = SystemClock()
    limit = clock.limit()
    with limit:
        limit.set(clock.now() + SOON_S, "connect")
        timer = limit._timer
        limit.set(clock.now() + NEVER_S, "attempt")
        assert limit._timer is timer
        await asyncio.sleep(2 * SOON_S)
        assert limit._timer is not timer
        assert limit._timer is not None
    assert limit.name == "attempt"


def test_limit_is_a_tasks() -> None:
    loop = asyncio.new_event_loop()
    seen: list[str] = []

    def enter() -> None:
        try:
            SystemClock().limit().__enter__()
        except RuntimeError as error:
            seen.append(str(error))

    loop.call_soon(enter)
    loop.run_until_complete(asyncio.sleep(0, loop))
    loop.close()
    assert seen == ["a limit is a task's"]


async def test_error_of_the_body_leaves_the_scope_as_it_is() -> None:
    async def body(limit: TimeLimit, now: float) -> None:
        limit.set_idle(NEVER_S, now + NEVER_S, "total")
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await within_scope(body)


async def test_scope_leaves_no_timer() -> None:
    before = timers()

    async def body(limit: TimeLimit, now: float) -> None:
        limit.set(now + SOON_S, "connect")
        assert timers() == before + 1

    await within_scope(body)
    assert timers() == before


# alarms


async def test_alarms_of_one_far_second_share_a_timer_of_the_loop() -> None:
    clock, before = SystemClock(), timers()
    rung: list[float] = []
    second = int(clock.now()) + 10
    alarms = [clock.call_at(second + share, partial(rung.append, share)) for share in (0.1, 0.5, 0.9)]
    assert timers() == before + 1
    alarms[1].cancel()
    alarms[1].cancel()
    assert list(clock._seconds) == [second]
    clock._begin(second)  # as the timer would
    assert timers() == before + 3
    assert not clock._seconds
    alarms[2].cancel()
    assert timers() == before + 2
    assert rung == []
    alarms[0].cancel()


async def test_far_alarm_is_armed_for_its_own_instant() -> None:
    clock = SystemClock()
    second = int(clock.now()) + 10
    alarm = clock.call_at(second + 0.75, lambda: None)
    clock._begin(second)
    assert isinstance(alarm, _FarAlarm)
    assert alarm._handle is not None
    left_s = alarm._handle.when() - asyncio.get_running_loop().time()
    assert second + 0.75 - clock.now() == pytest.approx(left_s, abs=0.5)
    alarm.cancel()


async def test_alarm_rings_at_its_instant_whether_it_is_near_or_far() -> None:
    clock = SystemClock()
    rung: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
    due = {name: clock.now() + after_s for name, after_s in (("past", -1.0), ("near", SOON_S), ("far", 1.02))}
    for name, at in due.items():
        clock.call_at(at, lambda name=name: rung.put_nowait((name, clock.now())))  # type: ignore[misc]
    for name, at in due.items():
        assert (found := await rung.get())[0] == name
        assert found[1] >= at - 0.002


async def test_cancelled_far_alarm_holds_its_owner_no_more() -> None:
    """An owner usually references its alarm: the cycle would keep both until the garbage collector runs."""

    class Owner:
        def ring(self) -> None: ...

    clock, owner = SystemClock(), Owner()
    alarm, owner_ref = clock.call_at(clock.now() + 100, owner.ring), ref(owner)
    alarm.cancel()
    del owner
    assert owner_ref() is None


async def test_alarm_that_never_rings_leaves_no_timer() -> None:
    clock, before = SystemClock(), timers()
    clock.call_at(inf, lambda: None).cancel()
    assert timers() == before


def test_alarms_of_a_closed_loop_do_not_block_those_of_the_next() -> None:
    clock = SystemClock()

    async def far() -> int:
        clock.call_at(clock.now() + 30, lambda: None)
        return timers()

    assert [asyncio.run(far()), asyncio.run(far())] == [1, 1]
