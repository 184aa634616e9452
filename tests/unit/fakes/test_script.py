from __future__ import annotations

import asyncio

import pytest

from llm_guard.proxy.attempts.upstream_attempt import Opener
from llm_guard.proxy.call import Attempt
from tests.fakes.clock import let_run
from tests.fakes.script import OK, SERVER_ERROR, Hang, Script, Slow, TimedScript, new_call, new_target


async def test_outcomes_are_played_in_order_and_everything_is_noted() -> None:
    script = Script(SERVER_ERROR, OK)
    opener: Opener = script
    target = new_target("openai/gpt-4")
    assert await opener.open(new_call(), Attempt(target, 1000.0)) is SERVER_ERROR
    await script.clock.sleep(0.2)
    assert await opener.open(new_call(), Attempt(target, 1000.0)) is OK
    assert script.transcript == ["asked openai/gpt-4", "slept 0.2", "asked openai/gpt-4"]
    assert script.asked == [target, target]


async def test_exchange_past_the_end_of_the_script_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="not in the script"):
        await Script().open(new_call(), Attempt(new_target(), 1000.0))


async def test_an_exception_is_raised_and_a_slow_outcome_moves_the_clock() -> None:
    script = Script(RuntimeError("a bug"), Slow(3.0, OK))
    with pytest.raises(RuntimeError, match="a bug"):
        await script.open(new_call(), Attempt(new_target(), 1000.0))
    assert await script.open(new_call(), Attempt(new_target(), 1000.0)) is OK
    assert script.clock.now() == 1003.0


async def test_a_hanging_exchange_ends_only_by_cancellation() -> None:
    task = asyncio.ensure_future(Script(Hang()).open(new_call(), Attempt(new_target(), 1000.0)))
    done, _ = await asyncio.wait([task], timeout=0.01)
    assert not done
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_sleeper_is_cancelled_where_the_script_requires() -> None:
    script = Script(is_cancelled_asleep=True)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(script.clock.sleep(1.0))
    assert script.transcript == ["slept 1"]


async def test_timed_outcomes_take_their_time_at_the_same_time_each_deployment_its_own() -> None:
    script = TimedScript(a=[Slow(2.0, SERVER_ERROR)], b=[Slow(1.0, OK), Hang()])
    opener: Opener = script
    a, b = new_target("a/x"), new_target("b/y")
    asked = [asyncio.ensure_future(opener.open(new_call(), Attempt(target, 1000.0))) for target in (a, b)]
    await script.clock.pass_s(1.5)
    assert [each.done() for each in asked] == [False, True]
    hanging = asyncio.ensure_future(opener.open(new_call(), Attempt(b, 1000.0)))
    await script.clock.pass_s(5.0)
    assert [each.result() for each in asked] == [SERVER_ERROR, OK]
    hanging.cancel()
    await let_run()
    assert hanging.cancelled()
    assert script.transcript == ["0 asked a/x", "0 asked b/y", "1.5 asked b/y", "6.5 broke off b/y"]


async def test_timed_script_knows_its_end_and_raises_its_exception() -> None:
    script = TimedScript(a=[RuntimeError("a bug")])
    with pytest.raises(RuntimeError, match="a bug"):
        await script.open(new_call(), Attempt(new_target("a/x"), 1000.0))
    with pytest.raises(AssertionError, match="not in the script"):
        await script.open(new_call(), Attempt(new_target("a/x"), 1000.0))
