"""Thousands of calls that share upstream requests and disconnect at any moment leave nothing behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from random import Random

import psutil
import pytest
import structlog

from tests.chaos.forms import CHAT
from tests.chaos.stand import config_of, standing
from tests.chaos.wire import Connection
from tests.fakes.provider import END, Pause, Reset, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually

CALLS = 1000
AT_ONCE = 40
QUESTIONS = 12
"""Number of different requests: the fewer, the more calls share one."""
SCRIPTS: list[list[Step]] = [
    [Pause(0.004), *CHAT.ok],
    [stream_head(), chunk(CHAT.token), Pause(0.004), chunk(CHAT.end), END],
    [Pause(0.002), whole(500, b"{}")],
    [stream_head(), chunk(CHAT.token), Pause(0.002), Reset()],
    [stream_head(), *([chunk(CHAT.token * 200)] * 20), chunk(CHAT.end), END],
]
WEIGHTS = (8, 8, 2, 1, 1)
CACHE = {"ttl": "30ms", "stale_while_revalidate": "30ms", "stale_if_error": "1s", "max_answer": "100KiB"}
RESULTS = ("hit", "stale", "stale_if_error", "miss", "coalesced")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


async def one(url: str, dice: Random) -> None:
    """Sends one of a few requests and may disconnect at any moment."""
    request = CHAT.request(stream=dice.random() < 0.6, question=dice.randrange(QUESTIONS))
    async with Connection(url) as connection:
        connection.writer.write(request)
        if dice.random() < 0.5:
            await asyncio.sleep(dice.random() * 0.008)
            connection.leave(dice.choice(["reset", "close"]))
        else:
            reply = await connection.reply()
            assert reply.status in (200, 500, 502)


async def test_calls_that_share_requests_leak_nothing() -> None:
    dice = Random(8)
    scripts = dice.choices(SCRIPTS, WEIGHTS, k=CALLS)
    models = {"gpt": {"deployments": [{"upstream": "one"}], "cache": CACHE}}
    async with (
        ScriptedProvider(*scripts) as provider,
        standing(config_of(provider.url, models=models, breaker={"consecutive_failures": 10**6})) as stand,
    ):
        app, gateway = stand.app, stand.app.gateway
        tasks, handles = len(asyncio.all_tasks()), psutil.Process().num_fds()
        numbers = iter(range(CALLS))

        async def work() -> None:
            for _ in numbers:
                await one(stand.url, dice)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())

        await eventually(lambda: gateway.running == 0 and gateway.cache_stage.flights == 0)
        assert all(deployment.gates.in_flight == 0 for deployment in gateway.deployments())
        counts = gateway.recorder.models["gpt"]
        assert counts.in_flight_calls == 0
        assert all(counts.cache[result] for result in RESULTS), counts.cache
        await app._connections.close()
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
        await eventually(lambda: psutil.Process().num_fds() <= handles)
