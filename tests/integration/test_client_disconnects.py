"""When the client disconnects, the upstream exchange is aborted at once, nothing more is tried, and no deployment is
blamed."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

import pytest

from tests.chaos.forms import BOTH, CHAT, STREAMS, Form, name_of
from tests.chaos.sinks import never_accepting, never_reading
from tests.chaos.stand import CLOSE_S, Stand, config_of, connections_to, facing, standing
from tests.chaos.wire import Connection
from tests.fakes.client import raw_request
from tests.fakes.provider import END, Hold, Pause, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually

How = Literal["reset", "close"]

either_way = pytest.mark.parametrize("how", ["reset", "close"])
streams = pytest.mark.parametrize("form", STREAMS, ids=name_of)


async def check_left(stand: Stand, provider: ScriptedProvider, left_at: float, attempts: int = 1) -> None:
    """Checks that the provider saw its connection close in time, and that the call is over and recorded as the
    client's."""
    connection = provider.connections[-1]
    assert await connection.closed_within(1)
    assert connection.is_closed_by_peer
    assert connection.closed_at is not None
    assert connection.closed_at - left_at <= CLOSE_S + stand.lag_s
    await check_recorded(stand, attempts)
    assert len(provider.requests) == attempts


async def check_recorded(stand: Stand, attempts: int = 1) -> None:
    (call,) = await stand.calls()
    assert call["outcome"] == "client_cancelled"
    assert len(call["attempts"]) == attempts
    assert await stand.metric("llm_guard_calls_total", outcome="client_cancelled") == 1
    assert await stand.metric("llm_guard_in_flight_calls") == 0
    assert await stand.metric("llm_guard_timeouts_total") == 0


def check_blameless(stand: Stand, form: Form, *, has_begun: bool = False) -> None:
    """Checks that no failure was counted; a response that had begun counts as a success for the breaker."""
    snapshot = stand.breaker(form.deployment)
    assert (snapshot.calls, snapshot.failures, snapshot.consecutive_failures) == (int(has_begun), 0, 0)
    assert stand.deployment(form.deployment).last_success_wall is None


@either_way
@pytest.mark.parametrize(("form", "is_stream"), BOTH, ids=name_of)
async def test_client_that_leaves_before_the_head_ends_the_exchange(form: Form, is_stream: bool, how: How) -> None:
    async with facing([Hold()], retry={"max_attempts": 3}) as (stand, provider), Connection(stand.url) as client:
        client.writer.write(form.request(stream=is_stream))
        await eventually(lambda: provider.requests)
        await check_left(stand, provider, client.leave(how))
        check_blameless(stand, form)


@either_way
async def test_client_that_leaves_in_the_middle_of_a_unary_body_ends_the_exchange(how: How) -> None:
    half = whole(200, b'{"object":', {"content-length": "1000"})
    async with facing([half, Hold()], retry={"max_attempts": 3}) as (stand, provider), Connection(stand.url) as client:
        client.writer.write(CHAT.request())
        await eventually(lambda: provider.requests)
        await check_left(stand, provider, client.leave(how))
        check_blameless(stand, CHAT)


@either_way
async def test_client_that_leaves_during_a_backoff_ends_the_call(how: How) -> None:
    retry = {"max_attempts": 3, "base_delay": "5s"}
    async with (
        facing([whole(503)], timeout={"total": "60s"}, retry=retry) as (stand, provider),
        Connection(stand.url) as client,
    ):
        client.writer.write(CHAT.request())
        await eventually(lambda: stand.breaker(CHAT.deployment).failures)
        left_at = client.leave(how)
        await stand.idle()
        assert time.monotonic() - left_at <= CLOSE_S + stand.lag_s
        await check_recorded(stand)
        assert len(provider.requests) == 1
        assert stand.breaker(CHAT.deployment).failures == 1


@either_way
@streams
async def test_client_that_leaves_before_the_first_token_ends_the_exchange(form: Form, how: How) -> None:
    script: list[Step] = [stream_head(), *map(chunk, form.preamble), Hold()]
    async with facing(script, retry={"max_attempts": 3}) as (stand, provider), Connection(stand.url) as client:
        client.writer.write(form.request(stream=True))
        await eventually(lambda: provider.requests)
        await check_left(stand, provider, client.leave(how))
        check_blameless(stand, form)


@either_way
@streams
async def test_client_that_leaves_in_the_middle_of_a_stream_ends_the_exchange(form: Form, how: How) -> None:
    script: list[Step] = [stream_head(), chunk(form.token), Hold()]
    async with facing(script, retry={"max_attempts": 3}) as (stand, provider), Connection(stand.url) as client:
        client.writer.write(form.request(stream=True))
        await client.reader.readuntil(form.token)
        await check_left(stand, provider, client.leave(how))
        check_blameless(stand, form, has_begun=True)


@streams
async def test_client_that_leaves_a_flowing_stream_ends_the_exchange(form: Form) -> None:
    flow: list[Step] = [step for _ in range(200) for step in (chunk(form.token), Pause(0.01))]
    async with facing([stream_head(), *flow, Hold()]) as (stand, provider), Connection(stand.url) as client:
        client.writer.write(form.request(stream=True))
        await client.reader.readuntil(form.token)
        await check_left(stand, provider, client.leave("reset"))
        check_blameless(stand, form, has_begun=True)


@streams
async def test_client_that_leaves_after_the_terminal_event_has_been_served(form: Form) -> None:
    async with facing([*form.good_stream[:-1], Hold()]) as (stand, provider), Connection(stand.url) as client:
        client.writer.write(form.request(stream=True))
        await client.reader.readuntil(form.end)
        client.leave("close")
        assert await provider.closed_within(1)
        (call,) = await stand.calls()
        assert call["outcome"] == "ok"
        assert stand.breaker(form.deployment).calls == 1
        assert stand.breaker(form.deployment).failures == 0


@either_way
async def test_client_that_leaves_while_uploading_reaches_no_provider(how: How) -> None:
    request = raw_request(CHAT.path, CHAT.body(), {"content-length": "1000000"})
    async with facing(CHAT.ok) as (stand, provider), Connection(stand.url) as client:
        client.writer.write(request)
        await eventually(lambda: stand.app.gateway.running)
        client.leave(how)
        (call,) = await stand.calls()
        assert (call["outcome"], call["attempts"]) == ("client_cancelled", [])
        assert await stand.metric("llm_guard_calls_total", model="other", outcome="client_cancelled") == 1
        assert not provider.connections


@either_way
async def test_client_that_leaves_during_the_upload_to_a_stuck_provider_frees_its_connection(how: How) -> None:
    async with (
        never_reading() as provider,
        standing(config_of(provider.url)) as stand,
        Connection(stand.url) as client,
    ):
        client.writer.write(CHAT.request(prompt="x" * 5_000_000))
        await client.writer.drain()
        await eventually(lambda: provider.sockets)
        await asyncio.sleep(0.1)  # until every buffer on the way is full
        left_at = client.leave(how)
        await stand.idle()
        await eventually(lambda: connections_to(provider.url) == 0)
        assert time.monotonic() - left_at <= CLOSE_S + stand.lag_s
        await check_recorded(stand)
        check_blameless(stand, CHAT)


@either_way
async def test_client_that_leaves_while_the_gateway_connects_ends_the_call(how: How) -> None:
    with never_accepting() as url:
        async with standing(config_of(url)) as stand, Connection(stand.url) as client:
            client.writer.write(CHAT.request())
            await eventually(lambda: stand.app.gateway.running)
            await asyncio.sleep(0.05)
            left_at = client.leave(how)
            await stand.idle()
            assert time.monotonic() - left_at <= CLOSE_S + stand.lag_s
            await check_recorded(stand)
            check_blameless(stand, CHAT)


@either_way
@pytest.mark.parametrize("is_stream", [False, True], ids=name_of)
async def test_cancelled_probe_returns_its_permit(is_stream: bool, how: How) -> None:
    script = CHAT.good_stream if is_stream else CHAT.ok
    breaker = {"consecutive_failures": 1, "open_for": "100ms"}
    async with facing([whole(503)], [Hold()], script, breaker=breaker) as (stand, provider):
        assert (await CHAT.ask(stand.url)).status == 503
        assert stand.breaker(CHAT.deployment).state == "open"
        await asyncio.sleep(0.1)
        async with Connection(stand.url) as client:
            client.writer.write(CHAT.request(stream=is_stream))
            await eventually(lambda: len(provider.requests) == 2)
            probing = stand.breaker(CHAT.deployment)
            assert (probing.state, probing.leases) == ("half_open", 1)
            client.leave(how)
            await stand.idle()
        given_back = stand.breaker(CHAT.deployment)
        assert (given_back.state, given_back.leases) == ("half_open", 0)
        assert (await CHAT.ask(stand.url, stream=is_stream)).status == 200
        assert stand.breaker(CHAT.deployment).state == "closed"


async def test_connection_of_a_client_that_stays_serves_its_next_call_after_a_stream() -> None:
    async with facing([*CHAT.good_stream[:-1], END], CHAT.ok) as (stand, provider), Connection(stand.url) as client:
        assert (await client.ask(CHAT.request(stream=True))).body == CHAT.stream_bytes
        assert (await client.ask(CHAT.request())).body == CHAT.answer
        assert len(provider.connections) == 1
