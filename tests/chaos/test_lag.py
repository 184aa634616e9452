"""The lag by which tests stretch their bounds must not be caused by the gateway."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

from llm_guard.resilience.capacity.rate_limit_headers import RateHint, rate_hint
from tests.chaos.forms import CHAT
from tests.chaos.lag import LONGEST_BLOCK_S, Lag
from tests.chaos.stand import facing

BLOCK_S = 0.15


async def lag_of(block_s: float) -> Lag:
    lag = Lag()
    lag.start()
    await asyncio.sleep(0.02)
    time.sleep(block_s)  # noqa: ASYNC251  # that is what is measured
    await asyncio.sleep(0.02)
    lag.stop()
    return lag


async def test_loop_that_blocks_is_late_by_its_own_doing() -> None:
    lag = await lag_of(BLOCK_S)
    lag.check()  # no bound was stretched by it
    assert lag.total_s >= BLOCK_S - 0.01
    assert lag.longest_block_s >= BLOCK_S - 0.01
    with pytest.raises(AssertionError, match=r"the loop was blocked for 0\.1"):
        lag.check()


async def test_wait_for_a_processor_is_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    began_at = time.monotonic()
    monkeypatch.setattr("tests.chaos.lag.queued", lambda: time.monotonic() - began_at)
    lag = await lag_of(BLOCK_S)
    assert lag.total_s >= BLOCK_S - 0.01
    assert lag.longest_block_s < LONGEST_BLOCK_S
    lag.check()


async def test_gateway_that_blocks_its_loop_at_the_end_of_an_attempt_fails_a_test_that_stretches_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slowly(*args: Any) -> RateHint | None:
        time.sleep(BLOCK_S)
        return rate_hint(*args)

    # Called at the end of an attempt, and interpreted in the compiled build too.
    monkeypatch.setattr("llm_guard.proxy.attempts.first_response.rate_hint", slowly)
    async with AsyncExitStack() as stack:
        stand, _ = await stack.enter_async_context(facing(CHAT.ok))
        await CHAT.ask(stand.url)
        assert stand.lag_s > 0.0
        with pytest.raises(AssertionError, match="the loop was blocked for"):
            stand.lag.check()
        stand.lag.is_used = False
