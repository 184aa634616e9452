"""Control of the mock at run time, and its capacity limit, seen from a plain client."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from llm_guard.mock.provider import MockProvider
from tests.chaos.lag import measured
from tests.fakes.waiting import eventually


@pytest.fixture
async def provider() -> AsyncIterator[MockProvider]:
    async with MockProvider() as provider:
        yield provider


@pytest.fixture
async def http(provider: MockProvider) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(provider.url, timeout=aiohttp.ClientTimeout(10)) as session:
        yield session


async def post(http: aiohttp.ClientSession, model: str, *, stream: bool = False) -> aiohttp.ClientResponse:
    return await http.post("/v1/chat/completions", json={"model": model, "messages": [], "stream": stream})


async def status(http: aiohttp.ClientSession, model: str) -> int:
    async with await post(http, model) as response:
        await response.read()
        return response.status


async def test_bare_limit_and_spent_quota_have_no_retry_after(http: aiohttp.ClientSession) -> None:
    assert await status(http, "m+limit:0.01/s:bare") == 200
    for model, code in (("m+limit:0.01/s:bare", "rate_limit_exceeded"), ("m+quota", "insufficient_quota")):
        async with await post(http, model) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (429, code)
            assert not [name for name in response.headers if "retry" in name.lower() or "ratelimit" in name.lower()]


async def test_above_its_capacity_a_model_queues_and_latency_grows(http: aiohttp.ClientSession) -> None:
    async def timed(model: str) -> float:
        started_at = time.monotonic()
        async with await post(http, model) as response:
            assert response.status == 200
            await response.read()
        return time.monotonic() - started_at

    with measured() as lag:
        took = sorted(await asyncio.gather(*(timed("m+latency:60ms+capacity:2") for _ in range(6))))
        for place, seconds in enumerate(took):
            assert seconds >= 0.06 * (place // 2 + 1)
        assert took[1] < 0.12 + lag.total_s
        assert await timed("n+latency:60ms+capacity:2") < 0.12 + lag.total_s


async def test_client_that_disconnects_releases_its_slot_to_the_next(
    http: aiohttp.ClientSession, provider: MockProvider
) -> None:
    provider.switch("m", "capacity:1, silence")
    waiting = [asyncio.ensure_future(post(http, "m")) for _ in range(2)]
    await eventually(lambda: provider.stats().in_flight == 2)
    await cancel(waiting[0])
    await eventually(lambda: provider.stats().in_flight == 1)
    await cancel(waiting[1])
    await eventually(lambda: provider.stats().in_flight == 0)


async def cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_stream_holds_its_place_to_its_end(http: aiohttp.ClientSession, provider: MockProvider) -> None:
    async with await post(http, "m+capacity:1+stall:1", stream=True) as held:
        assert held.status == 200
        second = asyncio.ensure_future(post(http, "m+capacity:1+stall:1", stream=True))
        await eventually(lambda: provider.stats().in_flight == 2)
        assert not second.done()
    async with asyncio.timeout(5), await second as let_in:
        assert let_in.status == 200


async def test_a_models_faults_can_be_switched_while_it_runs(
    http: aiohttp.ClientSession, provider: MockProvider
) -> None:
    async def switch(faults: str) -> None:
        began_at = time.monotonic()
        async with http.post("/mock/faults", json={"model": "m", "faults": faults}) as response:
            done = await response.json()
        assert (done["model"], done["faults"]) == ("m", faults)
        assert began_at <= done["at"] <= time.monotonic()

    seen = []
    for faults in ("", "status:503", "status:429:2, close", ""):
        await switch(faults)
        seen.append([await status(http, model) for model in ("m", "n", "m+status:500")])
    assert seen == [[200, 200, 500], [503, 200, 500], [429, 200, 500], [200, 200, 500]]
    assert provider.stats().by_model == {"m": 4, "n": 4, "m+status:500": 4}


@pytest.mark.parametrize("order", ['{"model": "m", "faults": "explode"}', '{"model": "m"}', "[", ""])
async def test_an_order_that_cannot_be_read_is_refused_and_changes_nothing(
    http: aiohttp.ClientSession, order: str
) -> None:
    async with http.post("/mock/faults", data=order) as response:
        assert response.status == 400
        assert ("status:CODE" in await response.text()) == ("explode" in order)
    assert await status(http, "m") == 200


async def test_mock_ends_by_itself_on_sigterm() -> None:
    """In a container it is process 1, for which the kernel ignores a signal without a handler."""
    command = (sys.executable, "-m", "llm_guard", "mock")
    process = await asyncio.create_subprocess_exec(*command, stderr=PIPE)
    assert process.stderr is not None
    async with asyncio.timeout(20):
        assert b"mock provider listens on" in await process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
