"""Responses from the cache and from other calls' requests, as a client gets them, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from llm_guard.outcome import Failure
from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.request import Request, RequestFields
from llm_guard.proxy.http_server.response_writer import ResponseConnection, ResponseWriter
from llm_guard.proxy.response.ending import CLIENT_DISCONNECTED, CLIENT_STALLED, ENDED_BY_DRAIN
from llm_guard.proxy.response.shared_response import SharedResponse, send_shared
from tests.fakes.clock import SteppedClock
from tests.fakes.script import new_call, new_target
from tests.unit.proxy.http_server.test_response_writer import FakeConnection
from tests.unit.proxy.response.test_delivery import SlowConnection

JSON = (("Content-Type", "application/json"),)


def reply_over(connection: FakeConnection) -> ResponseWriter:
    request = Request("POST", "/v1/chat/completions", "1.1", RequestFields((("Host", "a"),), {"host": "a"}))
    request.complete()
    return ResponseWriter(request, cast("ResponseConnection", connection))


def response(clock: SteppedClock, pieces: Sequence[bytes], *, takes_s: float = 0.0, within_s: float) -> SharedResponse:
    left = iter(pieces)

    async def next_piece() -> bytes:
        await clock.sleep(takes_s)
        return next(left, b"")

    return SharedResponse(200, "OK", JSON, "a/x", None, next_piece, clock.now() + within_s)


async def sent(
    clock: SteppedClock, connection: FakeConnection, shared: SharedResponse, *, for_s: float = 100.0
) -> tuple[Call, Failure | None]:
    call = new_call(new_target(), deadline_at=clock.now() - 1.0)
    task = asyncio.ensure_future(send_shared(call, shared, reply_over(connection), clock))
    for _ in range(int(for_s)):
        await clock.pass_s(1.0)
    return call, await task


async def test_response_at_hand_is_sent_although_the_calls_deadline_has_passed() -> None:
    clock = SteppedClock()
    connection = SlowConnection(clock, 1.0)
    call, failure = await sent(clock, connection, response(clock, [b"{", b"}"], within_s=float("inf")))
    assert (failure, call.failure, call.sent_status) == (None, None, 200)
    assert b"{" in b"".join(connection.writes)


async def test_source_that_takes_longer_than_the_deadline_is_a_timeout() -> None:
    clock = SteppedClock()
    _, failure = await sent(clock, FakeConnection(), response(clock, [b"{"] * 9, takes_s=5.0, within_s=12.0))
    assert failure is not None
    assert (failure.kind.label, failure.limit) == ("timeout", "total")


async def test_client_that_stops_reading_is_given_up_after_the_idle_timeout() -> None:
    clock = SteppedClock()
    connection = SlowConnection(clock, 50.0)
    _, failure = await sent(clock, connection, response(clock, [b"{"] * 9, within_s=float("inf")))
    assert failure is CLIENT_STALLED


async def test_client_that_has_gone_ends_it() -> None:
    class Gone(FakeConnection):
        def push(self, data: bytes) -> bool:
            raise ConnectionResetError

    clock = SteppedClock()
    call, failure = await sent(clock, Gone(), response(clock, [b"{"], within_s=float("inf")))
    assert failure is CLIENT_DISCONNECTED
    assert call.failure is CLIENT_DISCONNECTED


async def test_cancelled_call_has_the_failure_of_who_ended_it() -> None:
    for is_draining, failure in ((False, CLIENT_DISCONNECTED), (True, ENDED_BY_DRAIN)):
        clock = SteppedClock()
        call = new_call(new_target())
        shared = response(clock, [b"{"], takes_s=5.0, within_s=float("inf"))
        task = asyncio.ensure_future(send_shared(call, shared, reply_over(FakeConnection()), clock))
        await clock.pass_s(1.0)
        call.is_draining = is_draining
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        assert call.failure is failure
