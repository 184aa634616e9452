"""A thousand clients that disconnect at any moment leak no slot of a deployment, wait queue or hedged attempt."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator

import pytest
import structlog

from tests.chaos.forms import CHAT, MESSAGES, Form
from tests.chaos.manual import Exchange, ManualProvider
from tests.chaos.stand import Stand, config_of, standing
from tests.chaos.wire import Connection
from tests.fakes.provider import END, chunk, stream_head, whole
from tests.fakes.waiting import eventually

CALLS = 1000
AT_ONCE = 60
LIMIT = 8
LONGEST_S = 0.03
"""Seconds after which a client has disconnected and an exchange has ended."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    yield
    structlog.reset_defaults()


class Whims:
    """Answers each exchange in a random way that takes time, from its own random generator."""

    def __init__(self, dice: random.Random, form: Form) -> None:
        self._dice = dice
        self._form = form

    def __call__(self, exchange: Exchange) -> None:
        later, loop = self._dice.uniform(0, LONGEST_S), asyncio.get_running_loop()
        if self._dice.random() < 0.1:
            loop.call_later(later, lambda: exchange.answer(whole(500)))
        elif exchange.body["stream"]:
            if self._dice.random() < 0.7:
                exchange.say(stream_head(), chunk(self._form.token))
                loop.call_later(later, lambda: exchange.answer(chunk(self._form.end), END))
            else:
                loop.call_later(later, lambda: exchange.answer(*self._form.good_stream))
        else:
            loop.call_later(later, lambda: exchange.answer(*self._form.ok))


async def leave_at_random(stand: Stand, form: Form, dice: random.Random, calls: int) -> None:
    """Runs so many clients, AT_ONCE at a time; some wait long enough for a response or a part of it."""
    left = iter(range(calls))

    async def work() -> None:
        for _ in left:
            async with Connection(stand.url) as client:
                client.writer.write(form.request(stream=dice.random() < 0.5))
                await asyncio.sleep(dice.uniform(0, LONGEST_S))
                client.leave(dice.choice(("reset", "close")))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


def in_use(stand: Stand) -> dict[str, int]:
    """Counts the resources of deployments that calls hold."""
    now = time.monotonic()
    deployments = stand.app.gateway.deployments()
    snapshots = [gate.snapshot(now) for deployment in deployments for gate in deployment.gates.all()]
    return {
        "attempts": sum(deployment.gates.in_flight for deployment in deployments),
        "slots": sum(snapshot.in_flight for snapshot in snapshots),
        "waiting": sum(sum(snapshot.waiting.values()) for snapshot in snapshots),
        "probes": sum(
            deployment.breaker.snapshot(now).leases + deployment.host.snapshot(now).leases for deployment in deployments
        ),
    }


NOTHING = {"attempts": 0, "slots": 0, "waiting": 0, "probes": 0}


@pytest.mark.parametrize(("form", "is_hedged"), [(CHAT, False), (MESSAGES, True)], ids=["alone", "hedged"])
async def test_thousand_disconnects_free_every_slot(form: Form, is_hedged: bool) -> None:
    dice = random.Random(7)
    async with ManualProvider(Whims(dice, form)) as front, ManualProvider(Whims(dice, form)) as back:
        upstreams = {
            "one-back": {"dialect": "openai", "base_url": f"{back.url}/v1"},
            "two-back": {"dialect": "anthropic", "base_url": back.url},
        }
        rules = {"capacity": {"concurrency": LIMIT, "max_queue": 40}, "balance": "least_loaded"}
        if is_hedged:
            rules["hedge"] = {"after": "5ms", "max_extra": 1}
        models = {
            "gpt": {"deployments": [{"upstream": "one"}, {"upstream": "one-back"}], **rules},
            "claude": {"deployments": [{"upstream": "two"}, {"upstream": "two-back"}], **rules},
        }
        retry = {"max_attempts": 2, "base_delay": "2ms"}
        config = config_of(front.url, upstreams=upstreams, models=models, retry=retry, timeout={"total": "60s"})
        async with standing(config) as stand:
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
            await leave_at_random(stand, form, dice, AT_ONCE)
            await stand.idle()
            tasks = len(asyncio.all_tasks())

            most = dict(NOTHING)
            leaving = asyncio.create_task(leave_at_random(stand, form, dice, CALLS))
            while not leaving.done():
                most = {what: max(most[what], count) for what, count in in_use(stand).items()}
                await asyncio.sleep(0.002)
            await leaving

            await stand.idle()
            await eventually(lambda: in_use(stand) == NOTHING, within_s=1)
            await eventually(lambda: not front.open and not back.open, within_s=1)
            await eventually(lambda: len(asyncio.all_tasks()) <= tasks, within_s=1)
            # The deployments were as busy as intended, and within their limits.
            assert most["slots"] == most["attempts"] == 2 * LIMIT
            assert most["waiting"] >= 5
            for provider in (front, back):
                provider.on_request = lambda exchange: exchange.answer(*form.ok)
            replies = await asyncio.gather(*(form.ask(stand.url) for _ in range(3 * LIMIT)))
            assert {reply.status for reply in replies} == {200}
            assert await stand.metric("llm_guard_in_flight_calls") == 0
            assert in_use(stand) == NOTHING
