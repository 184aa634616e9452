from __future__ import annotations

import asyncio

import pytest

from llm_guard.gateway.attempt_loop import Opener
from tests.fakes.script import OK, SERVER_ERROR, Hang, Script, Slow, new_call, new_target


async def test_outcomes_come_in_their_order_and_everything_is_noted() -> None:
    script = Script(SERVER_ERROR, OK)
    opener: Opener = script
    target = new_target("openai/gpt-4")
    assert await opener.open(new_call(), target) is SERVER_ERROR
    await script.clock.sleep(0.2)
    assert await opener.open(new_call(), target) is OK
    assert script.transcript == ["asked openai/gpt-4", "slept 0.2", "asked openai/gpt-4"]
    assert script.asked == [target, target]


async def test_an_exchange_beyond_the_script_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="not in the script"):
        await Script().open(new_call(), new_target())


async def test_an_exception_is_raised_and_a_slow_outcome_moves_the_clock() -> None:
    script = Script(RuntimeError("a bug"), Slow(3.0, OK))
    with pytest.raises(RuntimeError, match="a bug"):
        await script.open(new_call(), new_target())
    assert await script.open(new_call(), new_target()) is OK
    assert script.clock.now() == 1003.0


async def test_a_hanging_exchange_ends_only_by_cancellation() -> None:
    task = asyncio.ensure_future(Script(Hang()).open(new_call(), new_target()))
    done, _ = await asyncio.wait([task], timeout=0.01)
    assert not done
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_sleeper_is_cancelled_where_the_script_says_so() -> None:
    script = Script(is_cancelled_asleep=True)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(script.clock.sleep(1.0))
    assert script.transcript == ["slept 1"]
