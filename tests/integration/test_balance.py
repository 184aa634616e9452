"""Load balancing: which of several deployments a call tries first, and where it goes when its time runs out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from llm_guard.resilience.retry.limits import FailureRate
from tests.chaos.forms import CHAT, MESSAGES, Form, name_of
from tests.chaos.manual import ManualProvider, after
from tests.chaos.stand import Stand, config_of, standing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import whole
from tests.fakes.waiting import eventually

CALLS = 300


@dataclass(frozen=True, slots=True)
class Field:
    """A gateway in front of several providers of the same model."""

    stand: Stand
    providers: Sequence[ManualProvider]

    def forget_failures(self) -> None:
        """Clears the failure rates, so that deployments are tried in their configured order again."""
        for deployment in self.stand.app.gateway.deployments():
            deployment.budget.recent = FailureRate(time.monotonic())

    @property
    def met(self) -> list[int]:
        """Number of requests that each provider has received."""
        return [len(provider.exchanges) for provider in self.providers]


@asynccontextmanager
async def field(delays: Sequence[float], places: Sequence[Mapping[str, Any]], **rules: Any) -> AsyncIterator[Field]:
    """Starts providers that answer after `delays`; `places` configures them as deployments of both models."""
    async with AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(ManualProvider(after(delay, *CHAT.ok))) for delay in delays]
        upstreams = {f"p{at}": {"dialect": "openai", "base_url": f"{p.url}/v1"} for at, p in enumerate(providers)} | {
            f"a{at}": {"dialect": "anthropic", "base_url": p.url} for at, p in enumerate(providers)
        }
        models = {
            model: {"deployments": [{"upstream": f"{letter}{at}", **place} for at, place in enumerate(places)], **rules}
            for model, letter in (("gpt", "p"), ("claude", "a"))
        }
        config = config_of(providers[0].url, upstreams=upstreams, models=models)
        yield Field(await stack.enter_async_context(standing(config)), providers)


async def ask_many(stand: Stand, calls: int, at_once: int = 1) -> None:
    """Makes `calls` calls, `at_once` at a time, which must all succeed."""
    left = iter(range(calls))

    async def work() -> None:
        for _ in left:
            assert (await CHAT.ask(stand.url)).status == 200

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())


async def test_order_tries_the_first_as_long_as_it_serves() -> None:
    async with field([0, 0, 0], [{}, {}, {}]) as this:
        await ask_many(this.stand, 50, at_once=5)
        assert this.met == [50, 0, 0]


async def test_weights_share_the_calls() -> None:
    async with field([0, 0, 0], [{"weight": 6}, {"weight": 3}, {"weight": 1}], balance="weighted") as this:
        await ask_many(this.stand, CALLS, at_once=4)
        heavy, middle, light = this.met
        # Expected are 180, 90 and 30; the bounds are five standard deviations away.
        assert 137 <= heavy <= 223
        assert 50 <= middle <= 130
        assert 4 <= light <= 56


async def test_least_loaded_is_the_deployment_with_fewest_calls_in_flight() -> None:
    async with field([60, 60, 60], [{}, {}, {}], balance="least_loaded") as this:
        calls = []
        for count in range(1, 13):
            calls.append(asyncio.create_task(CHAT.ask(this.stand.url)))
            await eventually(lambda: sum(this.met) == count)  # noqa: B023 - awaited in the same turn
        assert this.met == [4, 4, 4]
        for exchange in list(this.providers[1].open):
            exchange.answer(*CHAT.ok)
        await eventually(lambda: sum(call.done() for call in calls) == 4)
        for count in range(13, 17):
            calls.append(asyncio.create_task(CHAT.ask(this.stand.url)))
            await eventually(lambda: sum(this.met) == count)  # noqa: B023 - awaited in the same turn
        assert this.met == [4, 8, 4]
        for provider in this.providers:
            for exchange in list(provider.open):
                exchange.answer(*CHAT.ok)
        assert {reply.status for reply in await asyncio.gather(*calls)} == {200}
        await this.stand.idle()
        assert [deployment.gates.in_flight for deployment in this.stand.app.gateway.deployments()] == [0] * len(
            this.stand.app.gateway.deployments()
        )


async def test_least_loaded_respects_weights() -> None:
    async with field([60, 60], [{"weight": 3}, {}], balance="least_loaded") as this:
        calls = []
        for count in range(1, 13):
            calls.append(asyncio.create_task(CHAT.ask(this.stand.url)))
            await eventually(lambda: sum(this.met) == count)  # noqa: B023 - awaited in the same turn
        assert this.met == [9, 3]
        for provider in this.providers:
            for exchange in list(provider.open):
                exchange.answer(*CHAT.ok)
        await asyncio.gather(*calls)


async def test_latency_prefers_quick_deployments_and_still_tries_the_others() -> None:
    async with field([0.002, 0.05, 0.002], [{}, {}, {}], balance="latency") as this:
        await ask_many(this.stand, CALLS, at_once=6)
        quick, slow, other = this.met
        assert 1 <= slow <= 0.15 * CALLS
        assert min(quick, other) >= 0.2 * CALLS


@pytest.mark.parametrize("balance", ["weighted", "least_loaded", "latency"])
async def test_deployment_whose_breaker_is_open_gets_nothing(balance: str) -> None:
    breaker = {"consecutive_failures": 1, "open_for": "30s", "early_probes": False}
    async with field([0, 0], [{}, {}], balance=balance, breaker=breaker) as this:
        this.providers[0].on_request = after(0, whole(500))
        await ask_many(this.stand, 40)
        assert len(this.providers[0].exchanges) == 1
        assert len(this.providers[1].exchanges) == 40


@pytest.mark.parametrize("balance", ["order", "weighted", "least_loaded", "latency"])
async def test_group_of_lower_priority_is_tried_when_the_first_has_failed(balance: str) -> None:
    places = [{"priority": 1, "weight": 100}, {"priority": 0}, {"priority": 0}]
    async with field([0, 0, 0], places, balance=balance) as this:
        await ask_many(this.stand, 60, at_once=4)
        assert this.met[0] == 0
        assert sum(this.met) == 60
        for provider in this.providers[1:]:
            provider.on_request = after(0, whole(500))
        reply = await CHAT.ask(this.stand.url)
        assert origin(reply) == (200, "p0/gpt", "3")


def origin(reply: Reply) -> tuple[int, str, str]:
    return reply.status, reply.headers["x-llm-guard-deployment"], reply.headers["x-llm-guard-attempts"]


# deadlines


LEARNED = 20
"""Responses after which a quantile is known."""


@pytest.mark.parametrize("form", [CHAT, MESSAGES], ids=name_of)
async def test_hanging_stream_fails_over_at_its_learned_first_token_limit(form: Form) -> None:
    timeout = {"first_token": "5s", "total": "20s", "learned": {"factor": 2, "min": "150ms"}}
    async with field([0, 0], [{}, {}], timeout=timeout) as this:
        for provider in this.providers:
            provider.on_request = after(0.005, *form.good_stream)
        for _ in range(LEARNED):
            assert (await form.ask(this.stand.url, stream=True)).status == 200
        this.providers[0].on_request = None
        lag_s = this.stand.lag_s
        reply = await form.ask(this.stand.url, stream=True)
        assert origin(reply)[::2] == (200, "2")
        assert reply.body == form.stream_bytes
        assert 0.15 <= reply.took_s <= 0.5 + this.stand.lag_s - lag_s
        await this.providers[0].exchanges[-1].left()
        assert await this.stand.metric("llm_guard_timeouts_total", limit="first_token") == 1


async def test_first_token_is_as_configured_while_nothing_is_learned() -> None:
    timeout = {"first_token": "300ms", "learned": {"factor": 1, "min": "10ms"}}
    async with field([0.1, 0], [{}, {}], timeout=timeout) as this:
        this.providers[0].on_request = after(0.1, *CHAT.good_stream)
        assert origin(await CHAT.ask(this.stand.url, stream=True)) == (200, "p0/gpt", "1")


@pytest.mark.parametrize("is_stream", [False, True], ids=name_of)
async def test_client_deadline_is_split_so_that_the_second_is_reached_in_time(is_stream: bool) -> None:
    """The first deployment hangs: its own limits would use up all the time that the client waits."""
    answer = CHAT.good_stream if is_stream else CHAT.ok
    async with field([0, 0], [{}, {}]) as this:
        for provider in this.providers:
            provider.on_request = after(0.02, *answer)
        for _ in range(LEARNED):
            assert (await CHAT.ask(this.stand.url, stream=is_stream)).status == 200
        this.providers[0].on_request = after(0, whole(500))
        for number in range(LEARNED):
            # One call in ten is slow, and that much time is reserved for the second deployment.
            this.providers[1].on_request = after(0.02 if number % 10 else 0.15, *answer)
            this.forget_failures()  # otherwise the first deployment would be tried last
            assert (await CHAT.ask(this.stand.url, stream=is_stream)).status == 200
        this.providers[0].on_request = None
        this.providers[1].on_request = after(0.02, *answer)
        this.forget_failures()
        failures = this.stand.breaker("p0/gpt").consecutive_failures
        patience_s = 0.8
        body, headers = CHAT.body(stream=is_stream), {"x-stainless-read-timeout": str(patience_s)}
        reply = await ask(this.stand.url, CHAT.path, body, headers)
        assert origin(reply) == (200, "p1/gpt", "2")
        assert reply.took_s < patience_s + this.stand.lag_s
        # An attempt that was cut short to leave time for the next says nothing about its deployment.
        assert this.stand.breaker("p0/gpt").consecutive_failures == failures > 0
