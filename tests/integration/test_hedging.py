"""Hedging: a second attempt beside a slow one, which of them answers, what happens to the other, and how many there
are."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.chaos.forms import BOTH, CHAT, MESSAGES, RESPONSES, Form, name_of
from tests.chaos.manual import Exchange, ManualProvider, after
from tests.chaos.pair import OnRequest, Pair, pair_of
from tests.chaos.stand import CLOSE_S, Stand, config_of, standing
from tests.chaos.wire import Connection, Reply
from tests.fakes.provider import END, Respond, chunk, stream_head, whole
from tests.fakes.waiting import eventually

AFTER_S = 0.05
HEDGE = {"after": f"{AFTER_S * 1000:g}ms", "max_extra": 1}
RESERVE = 20
"""Hedges that a route has available when it starts."""


def pair(front: OnRequest = None, back: OnRequest = None, **rules: Any) -> AbstractAsyncContextManager[Pair]:
    """Two providers, with hedging between them."""
    return pair_of(front, back, **{"hedge": HEDGE, **rules})


def answer_of(form: Form, is_stream: bool) -> tuple[Respond, ...]:
    return form.good_stream if is_stream else form.ok


def origin(reply: Reply) -> tuple[int, str, str]:
    return reply.status, reply.headers["x-llm-guard-deployment"], reply.headers["x-llm-guard-attempts"]


async def check_closed(exchange: Exchange, since: float, stand: Stand) -> None:
    """Checks that the provider saw the losing attempt's connection close in time."""
    assert await exchange.left() - since <= CLOSE_S + stand.lag_s


def outcomes(call: Any) -> list[tuple[str, bool]]:
    return [(attempt["outcome"], attempt.get("hedge", False)) for attempt in call["attempts"]]


@pytest.mark.parametrize(("form", "is_stream"), BOTH, ids=name_of)
async def test_slow_first_is_overtaken_by_the_second_and_closed(form: Form, is_stream: bool) -> None:
    answered_at = 0.0

    def answer(exchange: Exchange) -> None:
        nonlocal answered_at
        answered_at = time.monotonic()
        exchange.answer(*answer_of(form, is_stream))

    async with pair(None, answer) as this:
        reply = await form.ask(this.stand.url, stream=is_stream)
        assert origin(reply) == (200, form.deployment.replace("/", "-back/"), "2")
        assert AFTER_S <= reply.took_s <= AFTER_S + 0.1 + this.stand.lag_s
        await check_closed(this.front.exchanges[0], answered_at, this.stand)
        (call,) = await this.stand.calls()
        assert outcomes(call) == [("superseded", False), ("ok", True)]
        assert await this.stand.metric("llm_guard_hedges_total", model=form.model, outcome="won") == 1
        assert await this.stand.metric("llm_guard_hedges_total") == 1
        assert await this.stand.metric("llm_guard_retries_total") == 0
        assert await this.stand.metric("llm_guard_fallbacks_total") == 0
        assert this.stand.breaker(form.deployment).failures == 0
        assert this.in_flight() == 0


@pytest.mark.parametrize("form", [CHAT, RESPONSES, MESSAGES], ids=name_of)
async def test_stream_that_has_begun_without_a_token_is_overtaken(form: Form) -> None:
    def begin(exchange: Exchange) -> None:
        exchange.say(stream_head(), *map(chunk, form.preamble))

    async with pair(begin, after(0, *form.good_stream)) as this:
        reply = await form.ask(this.stand.url, stream=True)
        assert (origin(reply)[2], reply.body, reply.is_whole) == ("2", form.stream_bytes, True)
        await this.front.exchanges[0].left()


async def test_stream_that_is_slow_after_its_first_token_is_not_hedged() -> None:
    async with pair() as this:
        call = asyncio.create_task(CHAT.ask(this.stand.url, stream=True))
        await eventually(lambda: this.front.open)
        (stream,) = this.front.open
        stream.say(stream_head(), chunk(CHAT.token))
        await asyncio.sleep(2 * AFTER_S)
        stream.answer(chunk(CHAT.end), END)
        assert origin(await call) == (200, "one/gpt", "1")
        assert not this.back.exchanges


@pytest.mark.parametrize(("form", "is_stream"), [(CHAT, False), (CHAT, True), (MESSAGES, True)], ids=name_of)
async def test_first_that_answers_after_all_wins_and_the_hedge_is_closed(form: Form, is_stream: bool) -> None:
    async with pair() as this:
        call = asyncio.create_task(form.ask(this.stand.url, stream=is_stream))
        await eventually(lambda: this.back.open)
        answered_at = time.monotonic()
        this.front.open[0].answer(*answer_of(form, is_stream))
        assert origin(await call) == (200, form.deployment, "2")
        await check_closed(this.back.exchanges[0], answered_at, this.stand)
        assert await this.stand.metric("llm_guard_hedges_total", model=form.model, outcome="lost") == 1
        assert this.in_flight() == 0


async def test_quick_answers_are_not_hedged() -> None:
    async with pair(after(0, *CHAT.ok)) as this:
        for _ in range(5):
            assert origin(await CHAT.ask(this.stand.url)) == (200, "one/gpt", "1")
        assert not this.back.exchanges


async def test_hedge_that_fails_leaves_the_first_to_answer() -> None:
    async with pair(after(3 * AFTER_S, *CHAT.ok), after(0, whole(500))) as this:
        assert origin(await CHAT.ask(this.stand.url)) == (200, "one/gpt", "2")
        (call,) = await this.stand.calls()
        assert outcomes(call) == [("ok", False), ("server_error", True)]
        assert this.stand.breaker("one-back/gpt").failures == 1


async def test_first_that_fails_leaves_the_hedge_to_answer() -> None:
    async with pair(after(2 * AFTER_S, whole(500)), after(3 * AFTER_S, *CHAT.ok)) as this:
        assert origin(await CHAT.ask(this.stand.url)) == (200, "one-back/gpt", "2")
        assert (len(this.front.exchanges), len(this.back.exchanges)) == (1, 1)


async def test_error_of_the_hedge_is_reported_when_neither_succeeds() -> None:
    async with pair(
        None, after(0, whole(500, b'{"error":{"message":"broken"}}')), timeout={"attempt": "150ms"}
    ) as this:
        reply = await CHAT.ask(this.stand.url)
        assert (reply.status, reply.body) == (500, b'{"error":{"message":"broken"}}')
        assert this.in_flight() == 0


async def test_first_that_fails_before_the_delay_is_retried_as_ever() -> None:
    async with pair(after(0, whole(500)), after(0, *CHAT.ok)) as this:
        assert origin(await CHAT.ask(this.stand.url)) == (200, "one-back/gpt", "2")
        assert await this.stand.metric("llm_guard_hedges_total") == 0
        assert await this.stand.metric("llm_guard_fallbacks_total") == 1


async def test_final_error_of_either_ends_the_race() -> None:
    async with pair(None, after(0, whole(400))) as this:
        reply = await CHAT.ask(this.stand.url)
        assert (reply.status, reply.headers["x-llm-guard-attempts"]) == (400, "2")
        await this.front.exchanges[0].left()


async def test_only_deployment_is_called_twice() -> None:
    model = {"deployments": [{"upstream": "one"}], "hedge": HEDGE}
    async with ManualProvider() as provider, standing(config_of(provider.url, models={"gpt": model})) as stand:
        call = asyncio.create_task(CHAT.ask(stand.url))
        await eventually(lambda: len(provider.open) == 2)
        provider.open[1].answer(*CHAT.ok)
        assert origin(await call) == (200, "one/gpt", "2")
        await provider.exchanges[0].left()


async def test_hedge_needs_a_place_like_any_attempt() -> None:
    capacity = {"concurrency": 1, "max_queue": 1}
    async with pair(capacity=capacity) as this:
        first = asyncio.create_task(CHAT.ask(this.stand.url))
        await eventually(lambda: this.back.open)
        # One call occupies both slots, so a second call is not admitted.
        second = asyncio.create_task(CHAT.ask(this.stand.url))
        this.front.open[0].answer(*CHAT.ok)
        assert (await first).status == 200
        await eventually(lambda: len(this.front.exchanges) + len(this.back.exchanges) >= 3)
        for provider in (this.front, this.back):
            for exchange in list(provider.open):
                exchange.answer(*CHAT.ok)
        assert (await second).status == 200
        assert (this.front.most_open, this.back.most_open) == (1, 1)
        assert this.in_flight() == 0


@pytest.mark.parametrize("state", [{"store": True}, {"background": True}])
async def test_call_that_must_not_be_executed_twice_is_not_hedged(state: dict[str, Any]) -> None:
    async with pair(after(3 * AFTER_S, *RESPONSES.ok)) as this:
        assert origin(await RESPONSES.ask(this.stand.url, **state)) == (200, "one/gpt", "1")
        assert not this.back.exchanges


async def test_route_without_the_option_is_not_hedged() -> None:
    async with pair(after(3 * AFTER_S, *CHAT.ok), hedge=None) as this:
        assert origin(await CHAT.ask(this.stand.url)) == (200, "one/gpt", "1")
        assert not this.back.exchanges


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize("is_stream", [False, True], ids=name_of)
async def test_client_that_leaves_ends_both(how: str, is_stream: bool) -> None:
    async with pair() as this, Connection(this.stand.url) as client:
        client.writer.write(CHAT.request(stream=is_stream))
        await eventually(lambda: this.back.open)
        left_at = client.leave(how)
        for provider in (this.front, this.back):
            await check_closed(provider.exchanges[0], left_at, this.stand)
        (call,) = await this.stand.calls()
        assert call["outcome"] == "client_cancelled"
        assert outcomes(call) == [("client_cancelled", False), ("client_cancelled", True)]
        assert this.in_flight() == 0


# number of hedges


async def test_saved_hedges_are_spent_and_then_the_first_is_waited_for() -> None:
    calls = 60
    async with pair(after(6 * AFTER_S, *CHAT.ok), after(0, *CHAT.ok), hedge={**HEDGE, "max_extra": 0.05}) as this:
        replies = await asyncio.gather(*(CHAT.ask(this.stand.url) for _ in range(calls)))
        assert {reply.status for reply in replies} == {200}
        # All calls are there before the first is hedged, so the hedges they earn find the reserve full.
        assert RESERVE <= len(this.back.exchanges) <= RESERVE + 0.05 * calls
        assert await this.stand.metric("llm_guard_hedges_total") == len(this.back.exchanges)
        assert this.in_flight() == 0


async def test_hedges_are_paid_from_the_retry_budget_too() -> None:
    retry = {"max_attempts": 1, "budget": {"ratio": 0, "min_per_second": 0}}
    async with pair(after(3 * AFTER_S, *CHAT.ok), retry=retry) as this:
        assert origin(await CHAT.ask(this.stand.url)) == (200, "one/gpt", "1")
        assert not this.back.exchanges


@pytest.mark.parametrize("is_stream", [False, True], ids=name_of)
async def test_delay_is_learned_from_the_deployments_own_answers(is_stream: bool) -> None:
    answer = answer_of(CHAT, is_stream)
    async with pair(after(0.01, *answer), after(0, *answer), hedge={"after": "p95", "max_extra": 1}) as this:
        for _ in range(20):
            assert (await CHAT.ask(this.stand.url, stream=is_stream)).status == 200
        assert not this.back.exchanges  # with fewer responses a quantile is not known
        this.front.on_request = None
        began_at = time.monotonic()
        lag_s = this.stand.lag_s
        reply = await CHAT.ask(this.stand.url, stream=is_stream)
        assert origin(reply) == (200, "one-back/gpt", "2")
        assert 0.01 <= time.monotonic() - began_at <= 0.25 + this.stand.lag_s - lag_s
