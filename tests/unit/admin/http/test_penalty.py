from __future__ import annotations

import asyncio

from llm_guard.admin.http.penalty import MOST_WAITING, WRONG_TOKEN_S, Penalty
from tests.fakes.clock import SteppedClock, let_run


async def test_wrong_tokens_are_delayed_by_a_second_each_up_to_a_bound() -> None:
    clock = SteppedClock()
    penalty = Penalty(clock)
    guesses = [asyncio.create_task(penalty.serve()) for _ in range(MOST_WAITING + 5)]
    await let_run()
    assert [guess.result() for guess in guesses if guess.done()] == [False] * 5
    await clock.pass_s(WRONG_TOKEN_S)
    assert [guess.result() for guess in guesses[:MOST_WAITING]] == [True] * MOST_WAITING


async def test_guess_that_is_over_makes_room_for_the_next() -> None:
    clock = SteppedClock()
    penalty = Penalty(clock)
    guesses = [asyncio.create_task(penalty.serve()) for _ in range(MOST_WAITING)]
    await let_run()
    guesses[0].cancel()
    await let_run()
    next_one = asyncio.create_task(penalty.serve())
    await let_run()
    assert not next_one.done()
    await clock.pass_s(WRONG_TOKEN_S)
    assert await next_one
