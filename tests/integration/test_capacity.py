"""Limits on the concurrency and rate of calls to a deployment: which calls wait meanwhile, and which are rejected."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from llm_guard.mock.provider import MockProvider
from llm_guard.resilience.capacity.gate_snapshot import GateSnapshot
from tests.chaos.forms import BOTH, CHAT, MESSAGES, Form, name_of
from tests.chaos.manual import Exchange, ManualProvider, after
from tests.chaos.process import Served, serving, write
from tests.chaos.stand import CLOSE_S, Stand, config_of, config_text, facing, standing, total
from tests.chaos.wire import Connection, Reply, ask, fetch
from tests.fakes.provider import END, Respond, chunk, stream_head, whole
from tests.fakes.waiting import eventually

SHED_S = 0.05
"""Seconds within which a call is rejected when there is no room for it."""
LIMITED = b'{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}'


def models(**capacity: Any) -> dict[str, Any]:
    """Gives both models this capacity."""
    return {
        "gpt": {"deployments": [{"upstream": "one"}], "capacity": capacity},
        "claude": {"deployments": [{"upstream": "two"}], "capacity": capacity},
    }


@asynccontextmanager
async def before(
    on_request: Callable[[Exchange], None] | None = None, **capacity: Any
) -> AsyncIterator[tuple[Stand, ManualProvider]]:
    """Runs a gateway in front of a provider with this capacity."""
    async with (
        ManualProvider(on_request) as provider,
        standing(config_of(provider.url, timeout={"total": "60s"}, models=models(**capacity))) as stand,
    ):
        yield stand, provider


def gate(stand: Stand, form: Form = CHAT) -> GateSnapshot:
    """Gate of the only account in these tests."""
    return stand.deployment(form.deployment).gates.all()[0].snapshot(time.monotonic())


def waiting(stand: Stand, form: Form = CHAT) -> int:
    return sum(gate(stand, form).waiting.values())


def begin(
    stand: Stand, name: str, priority: str | None = None, headers: Mapping[str, str] | None = None, form: Form = CHAT
) -> asyncio.Task[Reply]:
    """Starts a call that carries its name in the body."""
    said = {"x-llm-guard-priority": priority} if priority else {}
    return asyncio.create_task(ask(stand.url, form.path, form.body(user=name), {**said, **(headers or {})}))


async def first(stand: Stand, provider: ManualProvider) -> asyncio.Task[Reply]:
    """Starts a call that has reached the provider and is not answered yet."""
    call = begin(stand, "first")
    await eventually(lambda: provider.open)
    return call


async def queued(
    stand: Stand, *names: str, priority: str | None = None, headers: Mapping[str, str] | None = None
) -> list[asyncio.Task[Reply]]:
    """Starts calls that wait in the queue, one after the other."""
    calls = []
    for name in names:
        length = waiting(stand) + 1
        calls.append(begin(stand, name, priority, headers))
        await eventually(lambda: waiting(stand) == length)  # noqa: B023 - awaited in the same turn
    return calls


async def answer_one_by_one(provider: ManualProvider, count: int) -> list[str]:
    """Answers the next `count` exchanges and returns the names of all calls that have reached the provider, in
    order."""
    for _ in range(count):
        await eventually(lambda: provider.open)
        provider.open[0].answer(*CHAT.ok)
    return [exchange.body["user"] for exchange in provider.exchanges]


def refusal(reply: Reply) -> tuple[int, str | None, str]:
    return reply.status, reply.headers.get("x-llm-guard-refused-by"), reply.headers["x-should-retry"]


# the limit


@pytest.mark.parametrize(("form", "is_stream"), BOTH, ids=name_of)
async def test_provider_never_meets_more_calls_at_once_than_it_may(form: Form, is_stream: bool) -> None:
    answer = form.good_stream if is_stream else form.ok
    async with before(after(0.005, *answer), concurrency=3) as (stand, provider):
        replies = await asyncio.gather(*(form.ask(stand.url, stream=is_stream) for _ in range(30)))
        assert [reply.status for reply in replies] == [200] * 30
        assert (provider.most_open, len(provider.exchanges)) == (3, 30)
        await stand.idle()
        assert (gate(stand, form).in_flight, waiting(stand, form)) == (0, 0)


async def test_stream_holds_its_slot_until_its_last_byte() -> None:
    async with before(concurrency=1) as (stand, provider):
        streaming = asyncio.create_task(CHAT.ask(stand.url, stream=True))
        await eventually(lambda: provider.open)
        (stream,) = provider.open
        stream.say(stream_head(), chunk(CHAT.token))
        (call,) = await queued(stand, "next")
        stream.say(chunk(CHAT.token))
        assert len(provider.exchanges) == 1
        stream.answer(chunk(CHAT.end), END)
        await eventually(lambda: len(provider.exchanges) == 2)
        provider.open[0].answer(*CHAT.ok)
        assert [(await each).status for each in (streaming, call)] == [200, 200]


@pytest.mark.parametrize("answer", [whole(500), whole(429, LIMITED), whole(400)], ids=["500", "429", "400"])
async def test_failed_call_releases_its_slot_to_the_next(answer: Respond) -> None:
    async with before(after(0.001, answer), concurrency=1, pacing=False) as (stand, provider):
        replies = await asyncio.gather(*(CHAT.ask(stand.url) for _ in range(5)))
        assert {reply.headers["x-llm-guard-attempts"] for reply in replies} == {"1"}
        assert (provider.most_open, len(provider.exchanges)) == (1, 5)


async def test_call_that_waits_for_its_retry_leaves_its_place_to_others() -> None:
    retry = {"max_attempts": 2, "base_delay": "200ms", "jitter": 0}
    async with facing([whole(500)], CHAT.ok, retry=retry, models=models(concurrency=1)) as (stand, provider):
        retrying = asyncio.create_task(CHAT.ask(stand.url))
        await eventually(lambda: provider.requests and gate(stand).in_flight == 0)
        assert (await CHAT.ask(stand.url)).status == 200
        assert not retrying.done()
        assert (await retrying).headers["x-llm-guard-attempts"] == "2"


async def test_overload_lowers_a_learned_limit() -> None:
    async with before(after(0.001, whole(529)), concurrency="adaptive") as (stand, _):
        await CHAT.ask(stand.url)
        limits = [gate(stand).limit or 0]
        for _ in range(7):
            await CHAT.ask(stand.url)
            limits.append(gate(stand).limit or 0)
        assert limits[0] == 19
        assert limits == sorted(limits, reverse=True)
        assert limits[-1] <= 10


async def test_limit_holds_for_all_callers_together() -> None:
    async with before(after(0.005, *CHAT.ok), concurrency=2) as (stand, provider):
        keys = [{"authorization": f"Bearer sk-{number}"} for number in range(12)]
        replies = await asyncio.gather(*(begin(stand, "any", headers=key) for key in keys))
        assert {reply.status for reply in replies} == {200}
        assert provider.most_open == 2


# the wait queue


async def test_calls_are_served_in_order_and_by_priority() -> None:
    keys = [{"name": "app", "key": "k-app", "priority": "high"}]
    app = {"authorization": "Bearer k-app"}
    async with (
        ManualProvider() as provider,
        standing(config_of(provider.url, models=models(concurrency=1), server={"client_keys": keys})) as stand,
    ):
        calls = [begin(stand, "first", headers=app)]
        await eventually(lambda: provider.open)
        calls += await queued(stand, "low", priority="low", headers=app)
        calls += await queued(stand, "normal-1", headers=app)
        calls += await queued(stand, "normal-2", priority="normal", headers=app)
        calls += await queued(stand, "high-1", "high-2", priority=" High", headers=app)
        # After three grants of higher priority a lower priority gets its first; later ones depend on how long calls
        # take.
        order = ["first", "high-1", "high-2", "normal-1", "low", "normal-2"]
        assert await answer_one_by_one(provider, 6) == order
        assert {reply.status for reply in await asyncio.gather(*calls)} == {200}


async def test_client_key_limits_the_priority_of_its_calls() -> None:
    keys = [{"name": "batch", "key": "k-batch", "priority": "low"}, {"name": "app", "key": "k-app", "priority": "high"}]
    batch, app = ({"authorization": f"Bearer k-{name}"} for name in ("batch", "app"))
    async with (
        ManualProvider() as provider,
        standing(config_of(provider.url, models=models(concurrency=1), server={"client_keys": keys})) as stand,
    ):
        calls = [begin(stand, "first", headers=app)]
        await eventually(lambda: provider.open)
        calls += await queued(stand, "batch-high", priority="high", headers=batch)
        calls += await queued(stand, "app-normal", headers=app)
        calls += await queued(stand, "app-high", priority="high", headers=app)
        assert await answer_one_by_one(provider, 4) == ["first", "app-high", "app-normal", "batch-high"]
        await asyncio.gather(*calls)


async def test_priority_that_is_none_is_the_callers_mistake() -> None:
    async with before() as (stand, provider):
        reply = await begin(stand, "x", "urgent")
        assert refusal(reply) == (400, "request", "false")
        assert "x-llm-guard-priority" in CHAT.error_of(reply)["message"]
        assert not provider.exchanges


async def test_priority_header_is_not_sent_to_the_provider() -> None:
    async with before(after(0, *CHAT.ok)) as (stand, provider):
        assert (await begin(stand, "x", "high")).status == 200
        assert b"x-llm-guard" not in provider.exchanges[0].request.lower()


async def test_wait_is_logged_and_counted() -> None:
    async with before(concurrency=1) as (stand, provider):
        calls = [await first(stand, provider), *await queued(stand, "second")]
        await answer_one_by_one(provider, 2)
        await asyncio.gather(*calls)
        (attempt,) = (await stand.calls())[1]["attempts"]
        assert attempt["waited_for"] == "queue"
        assert attempt["waited_s"] > 0
        assert await stand.metric("llm_guard_queue_wait_seconds_count", deployment="one/gpt") == 1


# a full queue


@pytest.mark.parametrize("form", [CHAT, MESSAGES], ids=name_of)
@pytest.mark.parametrize("is_stream", [False, True], ids=name_of)
async def test_full_queue_refuses_at_once_with_retry_after(form: Form, is_stream: bool) -> None:
    async with before(concurrency=1, max_queue=2) as (stand, provider):
        calls = [begin(stand, "first", form=form)]
        await eventually(lambda: provider.open)
        calls += [begin(stand, "waits", form=form) for _ in range(2)]
        await eventually(lambda: waiting(stand, form) == 2)
        lag_s = stand.lag_s
        reply = await form.ask(stand.url, stream=is_stream)
        assert reply.took_s <= SHED_S + stand.lag_s - lag_s
        assert refusal(reply) == (429, "limit", "true")
        # One is being served and two wait, at an estimated second each.
        assert 1000 <= int(reply.headers["retry-after-ms"]) <= 4000
        assert int(reply.headers["retry-after"]) == math.ceil(int(reply.headers["retry-after-ms"]) / 1000)
        assert form.error_of(reply)["type"] in ("rate_limit_error", "rate_limit_exceeded", "requests")
        assert total((await fetch(f"{stand.url}/metrics")).text, "llm_guard_refusals_total", reason="limit") == 1
        for _ in range(3):
            await eventually(lambda: provider.open)
            provider.open[0].answer(*form.ok)
        assert {call.status for call in await asyncio.gather(*calls)} == {200}


async def test_high_priority_call_takes_the_last_slot_of_a_lower_one() -> None:
    async with before(concurrency=1, max_queue=1) as (stand, provider):
        calls = [await first(stand, provider)]
        (low,) = await queued(stand, "low", priority="low")
        calls.append(begin(stand, "high", "high"))
        reply = await low
        assert refusal(reply) == (429, "limit", "true")
        assert await answer_one_by_one(provider, 2) == ["first", "high"]
        assert {call.status for call in await asyncio.gather(*calls)} == {200}


async def test_call_waits_no_longer_than_it_may() -> None:
    async with before(concurrency=1, queue_timeout="1200ms") as (stand, provider):
        call = await first(stand, provider)
        lag_s = stand.lag_s
        reply = await begin(stand, "late")
        assert refusal(reply) == (429, "limit", "true")
        assert 1.2 <= reply.took_s <= 1.2 + SHED_S + stand.lag_s - lag_s
        assert (waiting(stand), gate(stand).in_flight) == (0, 1)
        provider.open[0].answer(*CHAT.ok)
        assert (await call).status == 200


async def test_wait_that_is_sure_to_be_in_vain_is_not_begun() -> None:
    """One call is in flight, at an estimated duration of a second."""
    async with before(concurrency=1, queue_timeout="300ms") as (stand, provider):
        call = await first(stand, provider)
        reply = await begin(stand, "late")
        assert refusal(reply) == (429, "limit", "true")
        assert reply.took_s < 0.25 + stand.lag_s
        provider.open[0].answer(*CHAT.ok)
        assert (await call).status == 200


async def test_client_with_a_short_timeout_is_refused_before_it_gives_up() -> None:
    async with before(concurrency=1) as (stand, provider):
        call = await first(stand, provider)
        reply = await begin(stand, "hasty", headers={"x-stainless-read-timeout": "1.5"})
        assert refusal(reply) == (429, "limit", "true")
        assert reply.took_s < 1.5 + stand.lag_s
        assert len(provider.exchanges) == 1
        provider.open[0].answer(*CHAT.ok)
        assert (await call).status == 200


async def test_full_deployment_is_passed_over_where_another_has_room() -> None:
    async with ManualProvider() as full, ManualProvider(after(0, *CHAT.ok)) as free:
        upstreams = {"free": {"dialect": "openai", "base_url": f"{free.url}/v1"}}
        route = {"deployments": [{"upstream": "one"}, {"upstream": "free"}], "capacity": {"concurrency": 1}}
        async with standing(config_of(full.url, upstreams=upstreams, models={"gpt": route})) as stand:
            call = await first(stand, full)
            reply = await CHAT.ask(stand.url)
            assert (reply.status, reply.headers["x-llm-guard-deployment"]) == (200, "free/gpt")
            assert reply.took_s < 0.5 + stand.lag_s
            full.open[0].answer(*CHAT.ok)
            assert (await call).status == 200


async def test_retry_whose_slot_is_taken_goes_to_a_deployment_with_room() -> None:
    async with ManualProvider() as full, ManualProvider(after(0, *CHAT.ok)) as free:
        upstreams = {"free": {"dialect": "openai", "base_url": f"{free.url}/v1"}}
        route = {
            "deployments": [{"upstream": "one"}, {"upstream": "free"}],
            "capacity": {"concurrency": 1},
            "retry": {"max_attempts": 2, "base_delay": "100ms", "jitter": 0},
        }
        async with standing(config_of(full.url, upstreams=upstreams, models={"gpt": route})) as stand:
            retrying = await first(stand, full)
            full.open[0].answer(whole(500))
            await eventually(lambda: gate(stand).in_flight == 0)
            holding = await first(stand, full)
            assert (await retrying).headers["x-llm-guard-deployment"] == "free/gpt"
            full.open[0].answer(*CHAT.ok)
            assert (await holding).headers["x-llm-guard-deployment"] == "one/gpt"


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_client_that_leaves_the_queue_frees_its_slot(how: str) -> None:
    async with before(concurrency=1, max_queue=1) as (stand, provider):
        call = await first(stand, provider)
        async with Connection(stand.url) as client:
            client.writer.write(CHAT.request(user="leaves"))
            await eventually(lambda: waiting(stand) == 1)
            left_at = client.leave(how)
            await eventually(lambda: waiting(stand) == 0)
            assert time.monotonic() - left_at <= CLOSE_S + stand.lag_s
        (stays,) = await queued(stand, "stays")
        assert await answer_one_by_one(provider, 2) == ["first", "stays"]
        assert [(await each).status for each in (call, stays)] == [200, 200]
        (left, *_) = await stand.calls()
        assert (left["outcome"], left["attempts"]) == ("client_cancelled", [])


async def test_waiting_call_is_refused_when_the_gateway_stops() -> None:
    async with before(concurrency=1) as (stand, provider):
        calls = [await first(stand, provider), *await queued(stand, "second")]
        await stand.app.stop()
        for call in calls:
            assert refusal(await call) == (503, "drain", "true")
        assert len(provider.exchanges) == 1


# reload


@pytest.mark.parametrize("concurrency", [4, None])
async def test_reload_admits_waiting_calls_at_once_when_there_is_more_room(
    tmp_path: Path, concurrency: int | None
) -> None:
    path = tmp_path / "guard.yaml"
    async with (
        ManualProvider() as provider,
        serving(path, config_text(provider.url, models=models(concurrency=1))) as served,
    ):
        calls = [asyncio.create_task(CHAT.ask(served.url)) for _ in range(4)]
        await eventually(lambda: provider.open)
        await until_in_flight(served, 4)
        assert len(provider.open) == 1
        write(path, config_text(provider.url, models=models(concurrency=concurrency)))
        served.signal(signal.SIGHUP)
        await eventually(lambda: len(provider.open) == 4)
        for each in list(provider.open):
            each.answer(*CHAT.ok)
        assert {reply.status for reply in await asyncio.gather(*calls)} == {200}
    assert served.complaints == []


async def in_flight(served: Served) -> float:
    return total((await fetch(f"{served.url}/metrics")).text, "llm_guard_in_flight_calls")


async def until_in_flight(served: Served, count: int) -> None:
    async with asyncio.timeout(5):
        while await in_flight(served) != count:  # noqa: ASYNC110 - seen from outside the process
            await asyncio.sleep(0.002)


async def test_reload_with_a_smaller_limit_evicts_no_call(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    async with (
        ManualProvider() as provider,
        serving(path, config_text(provider.url, models=models(concurrency=3))) as served,
    ):
        calls = [asyncio.create_task(CHAT.ask(served.url)) for _ in range(6)]
        await eventually(lambda: len(provider.open) == 3)
        await until_in_flight(served, 6)
        write(path, config_text(provider.url, models=models(concurrency=1, max_queue=1)))
        served.signal(signal.SIGHUP)
        await served.logged("reloaded")
        for _ in range(6):
            await eventually(lambda: provider.open)
            provider.open[0].answer(*CHAT.ok)
        assert {reply.status for reply in await asyncio.gather(*calls)} == {200}
        provider.most_open = 0
        provider.on_request = after(0.005, *CHAT.ok)
        late = await asyncio.gather(*(CHAT.ask(served.url) for _ in range(2)))
        assert ({reply.status for reply in late}, provider.most_open) == ({200}, 1)


# the pace


async def test_offer_above_the_providers_rate_is_paced_and_served() -> None:
    """The offered rate is two thirds above the provider's, for two seconds beyond its burst."""
    rate, seconds = 60, 2.0
    model = f"gpt+limit:{rate}/s"
    async with MockProvider() as provider:
        route = {"deployments": [{"upstream": "one"}], "retry": {"max_attempts": 4, "base_delay": "100ms"}}
        config = config_of(provider.url, models={model: route}, timeout={"total": "20s"})
        async with standing(config) as stand:
            calls = []
            for _ in range(int(seconds * rate * 5 / 3)):
                calls.append(asyncio.create_task(ask(stand.url, CHAT.path, b'{"model":"%b"}' % model.encode())))
                await asyncio.sleep(seconds / (seconds * rate * 5 / 3))
            replies = await asyncio.gather(*calls)
            good = sum(reply.status == 200 for reply in replies)
            assert good >= 0.98 * len(calls)
            assert provider.stats().requests <= 1.25 * len(calls)


async def test_random_rate_limits_do_not_slow_a_quiet_caller() -> None:
    busy = [whole(429, LIMITED)]
    retry = {"max_attempts": 3, "base_delay": "1ms"}
    async with facing(busy, *[CHAT.ok] * 10, busy, *[CHAT.ok] * 10, retry=retry) as (stand, provider):
        replies = [await CHAT.ask(stand.url) for _ in range(20)]
        assert {reply.status for reply in replies} == {200}
        assert sum(reply.took_s for reply in replies) < 0.5 + stand.lag_s
        assert len(provider.requests) == 22
        assert gate(stand).rate is None


async def test_rate_limit_headers_of_a_429_set_the_pace() -> None:
    spent = {
        "x-ratelimit-limit-requests": "120", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "60s",
    }  # fmt: skip
    retry = {"max_attempts": 1}
    async with facing([whole(429, LIMITED, spent)], retry=retry) as (stand, _):
        assert (await CHAT.ask(stand.url)).status == 429
        assert gate(stand).rate_cause == "headers"
        assert gate(stand).rate == pytest.approx(2.0, rel=0.1)


async def test_pacing_wait_of_one_caller_does_not_delay_others() -> None:
    """The headers allow two calls a second, and say that none is left."""
    spent = {
        "x-ratelimit-limit-requests": "120", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "60s",
    }  # fmt: skip
    mallory, alice = {"authorization": "Bearer sk-mallory"}, {"authorization": "Bearer sk-alice"}
    async with facing([whole(200, CHAT.answer, spent)]) as (stand, provider):
        for _ in range(2):
            assert (await begin(stand, "any", headers=mallory)).status == 200
        held = begin(stand, "held", headers=mallory)
        await eventually(lambda: waiting(stand) == 1)
        assert (await begin(stand, "free", headers=alice)).status == 200
        assert len(provider.requests) == 3
        assert not held.done()
        assert (await held).status == 200
        assert len(provider.requests) == 4
