"""Keep-alives to clients that wait for a response, on a manual clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.request import Request, RequestFields
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.response.keepalive import KeepAlive
from llm_guard.resilience.streams.settings import KeepAliveSettings
from tests.fakes.clock import ManualClock
from tests.fakes.script import new_call

SOON = KeepAliveSettings(interval=10.0)


class FakeReply(ResponseWriter):
    """A `ResponseWriter` without a connection, with what `KeepAlive` needs."""

    def __init__(
        self, error: Exception | None = None, *, is_stuck: bool = False, has_arrived: bool = True
    ) -> None:  # fmt: skip
        self.request = Request("POST", "/v1/chat/completions", "1.1", RequestFields((), {}))
        if has_arrived:
            self.request.complete()
        self.has_begun = False
        self.words = 0
        self.was_cancelled = False
        self._error = error
        self._is_stuck = is_stuck

    async def keep_waiting(self, call: Call, headers: list[tuple[str, str]]) -> None:
        self.has_begun = True
        self.words += 1
        if self._error is not None:
            raise self._error
        try:
            if self._is_stuck:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


def waiting(reply: FakeReply, clock: ManualClock, settings: KeepAliveSettings | None = SOON, **facts: Any) -> KeepAlive:
    call = new_call(**{"is_stream": True, "stream_head": "plain", **facts})
    return KeepAlive(call, reply, settings, clock)


async def pass_s(clock: ManualClock, seconds: float) -> None:
    clock.advance(seconds)
    clock.ring_due()
    for _ in range(3):
        await asyncio.sleep(0)


def alarms(clock: ManualClock) -> list[float]:
    """Returns when the pending alarms are due, in seconds since the clock's beginning."""
    return [alarm.at - 1000.0 for alarm in clock.alarms if not alarm.is_cancelled and not alarm.has_rung]


async def test_keep_alive_follows_each_silence() -> None:
    clock, reply = ManualClock(), FakeReply()
    with waiting(reply, clock):
        for words in range(1, 4):
            await pass_s(clock, 10.0)
            assert reply.words == words
    assert alarms(clock) == []


async def test_quick_response_leaves_no_alarm() -> None:
    clock, reply = ManualClock(), FakeReply()
    with waiting(reply, clock):
        await pass_s(clock, 9.0)
    await pass_s(clock, 9.0)
    assert (reply.words, alarms(clock)) == (0, [])


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        (None, {}),
        (SOON, {"is_stream": False}),
        (SOON, {"stream_head": ""}),
        (SOON, {"stream_head": "compressed"}),
        (KeepAliveSettings(10.0, before_headers=True), {"stream_head": "compressed"}),
        (SOON, {"is_upgrade": True}),
    ],
)
async def test_no_keep_alive_is_sent_where_it_would_harm(
    settings: KeepAliveSettings | None, facts: dict[str, Any]
) -> None:
    clock, reply = ManualClock(), FakeReply()
    with waiting(reply, clock, settings, **facts):
        await pass_s(clock, 10.0)
        await pass_s(clock, 10.0)
    assert (reply.words, alarms(clock)) == (0, [])


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        (KeepAliveSettings(10.0, before_headers=True), {"stream_head": ""}),
        (KeepAliveSettings(10.0, unary=True), {"is_stream": False, "stream_head": ""}),
    ],
)
async def test_config_may_allow_keep_alives(settings: KeepAliveSettings, facts: dict[str, Any]) -> None:
    clock, reply = ManualClock(), FakeReply()
    with waiting(reply, clock, settings, **facts):
        await pass_s(clock, 10.0)
    assert reply.words == 1


async def test_client_that_still_sends_its_body_gets_no_keep_alive() -> None:
    clock, reply = ManualClock(), FakeReply(has_arrived=False)
    with waiting(reply, clock):
        await pass_s(clock, 10.0)
        assert reply.words == 0
        reply.request.complete()
        await pass_s(clock, 1.0)
        assert reply.words == 1


async def test_condition_is_checked_every_second_until_a_keep_alive_may_be_sent() -> None:
    clock, reply = ManualClock(), FakeReply()
    call = new_call(is_stream=True)
    with KeepAlive(call, reply, SOON, clock):
        await pass_s(clock, 10.0)
        assert alarms(clock) == [11.0]
        call.stream_head = "plain"
        await pass_s(clock, 1.0)
    assert reply.words == 1


async def test_keep_alive_to_a_client_that_does_not_read_is_given_up_when_the_response_comes() -> None:
    """The write is not awaited, which would add a cancellation point at which the body's result could leak."""
    clock, reply = ManualClock(), FakeReply(is_stuck=True)
    with waiting(reply, clock):
        await pass_s(clock, 10.0)
    await pass_s(clock, 30.0)
    assert (reply.words, reply.was_cancelled, alarms(clock)) == (1, True, [])


async def test_disconnected_client_gets_no_keep_alive() -> None:
    clock, reply = ManualClock(), FakeReply(ConnectionResetError())
    with waiting(reply, clock):
        await pass_s(clock, 10.0)
        await pass_s(clock, 10.0)
    assert (reply.words, alarms(clock)) == (1, [])
