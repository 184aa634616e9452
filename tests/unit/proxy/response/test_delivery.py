"""How long the relay waits for a stream without progress, on a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import cast

import pytest

from llm_guard.clock import Clock
from llm_guard.dialects import DIALECTS
from llm_guard.proxy.call import Attempt, Call, Delivered, Opened
from llm_guard.proxy.http_server.request import Request, RequestFields
from llm_guard.proxy.http_server.response_writer import ResponseConnection, ResponseWriter
from llm_guard.proxy.response.delivery import Delivery
from llm_guard.proxy.streams.decoder import view_of
from llm_guard.resilience.routing.candidates import TimeoutSettings
from llm_guard.resilience.streams.settings import ENDING_S
from tests.chaos.forms import CHAT, STREAMS, Form, name_of
from tests.fakes.clock import SteppedClock, let_run
from tests.fakes.script import OpenExchange, new_call, new_target
from tests.unit.proxy.attempts.test_admission_release import leave_for
from tests.unit.proxy.http_server.test_response_writer import FakeConnection

PING = b": keep-alive\n\n"
STALL_S = 180.0
IDLE_S = TimeoutSettings().idle
UNSEEN_S = 1.0
streams = pytest.mark.parametrize("form", STREAMS, ids=name_of)


class TimedExchange(OpenExchange):
    """Delivers each part the given seconds after the previous one was read, then stays silent."""

    def __init__(self, clock: SteppedClock, parts: Iterable[tuple[float, bytes]]) -> None:
        super().__init__()
        self._clock = clock
        self._parts = iter(parts)

    async def read(self) -> bytes:
        wait_s, part = next(self._parts, (float("inf"), b""))
        if wait_s == float("inf"):
            await asyncio.Event().wait()
        await self._clock.sleep(wait_s)
        return part


class SlowConnection(FakeConnection):
    """A client that takes `takes_s` seconds for each write after the head."""

    def __init__(self, clock: SteppedClock, takes_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._takes_s = takes_s

    def push(self, data: bytes) -> bool:
        super().push(data)
        return self._takes_s == 0

    async def wait_room(self) -> None:
        await self._clock.sleep(self._takes_s)


async def delivered(call: Call, served: Delivered, reply: ResponseWriter, clock: Clock) -> None:
    with Delivery(call, reply, clock, None) as delivery:
        failure = await delivery.relay(served)
        assert failure is None or not delivery.may_go_on(served, failure)
    await delivery.finish()


async def relayed(
    form: Form, parts: Sequence[tuple[float, bytes]], *, for_s: float, takes_s: float = 0.0, stall_s: float = STALL_S
) -> tuple[Call, float | None, bytes]:
    """Relays a stream that has delivered its first token and continues with `parts`. Returns the call, the seconds
    after which the exchange was closed (None: not within `for_s`), and the bytes that the client got."""
    clock = SteppedClock()
    target = new_target(timeouts=TimeoutSettings(stall=stall_s))
    call = new_call(target, deadline_at=clock.now() + 600.0)
    call.dialect, call.path, call.is_stream = ("anthropic" if form.model == "claude" else "openai"), form.path, True
    view = view_of(DIALECTS[call.dialect].stream_reader(form.path, 1), "")
    exchange = TimedExchange(clock, parts)
    held = view.feed(b"".join(form.preamble) + form.token)
    opened = Opened(200, "OK", (("content-type", "text/event-stream"),), held, exchange, view)
    connection = SlowConnection(clock, takes_s)
    request = Request("POST", form.path, "1.1", RequestFields((("Host", "a"),), {"host": "a"}))
    request.complete()
    reply = ResponseWriter(request, cast("ResponseConnection", connection))
    served = Delivered(opened, Attempt(target, clock.now()), leave_for(target))
    task = asyncio.ensure_future(delivered(call, served, reply, clock))
    began_at, left_s = clock.now(), None
    while clock.now() < began_at + for_s and left_s is None:
        await clock.pass_s(0.25)
        left_s = clock.now() - began_at if exchange.is_aborted else None
    task.cancel()
    await let_run()
    return call, left_s, b"".join(connection.writes)


def every(seconds: float, part: bytes, until_s: float) -> list[tuple[float, bytes]]:
    return [(seconds, part)] * int(until_s / seconds)


@streams
async def test_stream_of_keep_alives_alone_ends_at_the_stall_limit(form: Form) -> None:
    call, left_s, got = await relayed(form, every(15.0, PING, 600.0), for_s=300.0)
    assert call.failure is not None
    assert (call.failure.kind.label, call.failure.limit) == ("timeout", "stall")
    assert "nothing but keep-alives for 180 s" in call.failure.detail
    assert left_s is not None
    assert STALL_S <= left_s <= STALL_S + UNSEEN_S + 0.25
    assert b"event: error" in got


@streams
async def test_silence_ends_at_the_idle_limit_before_it_is_a_stall(form: Form) -> None:
    call, left_s, _ = await relayed(form, every(15.0, PING, 60.0), for_s=300.0)
    assert call.failure is not None
    assert call.failure.limit == "idle"
    assert left_s == 60.0 + 30.0


@streams
async def test_useful_event_postpones_the_stall_limit(form: Form) -> None:
    just_in_time = [*every(15.0, PING, 165.0), (14.0, form.token)]
    call, left_s, _ = await relayed(form, [*just_in_time * 2, *every(15.0, PING, 600.0)], for_s=590.0)
    assert call.failure is not None
    assert call.failure.limit == "stall"
    assert left_s is not None
    assert 2 * 179.0 + STALL_S <= left_s <= 2 * 179.0 + STALL_S + UNSEEN_S + 0.25


async def test_useful_event_is_found_among_the_keep_alives_of_its_chunk() -> None:
    slow = [(20.0, PING), (20.0, PING + CHAT.token + PING), (20.0, CHAT.token[:9]), (20.0, CHAT.token[9:] + PING[:4])]
    call, left_s, _ = await relayed(CHAT, slow * 7, for_s=550.0, stall_s=70.0)
    assert left_s is None, call.failure


async def test_stall_limit_may_be_shorter_than_the_idle_limit() -> None:
    call, left_s, _ = await relayed(CHAT, [], for_s=60.0, stall_s=10.0)
    assert call.failure is not None
    assert call.failure.limit == "stall"
    assert left_s is not None
    assert 10.0 <= left_s <= 10.75


async def test_time_that_the_client_takes_is_no_stall_of_the_provider() -> None:
    parts = [each for _ in range(40) for each in ((1.0, PING), (1.0, PING), (1.0, CHAT.token))]
    call, left_s, _ = await relayed(CHAT, parts, for_s=400.0, takes_s=25.0, stall_s=20.0)
    assert left_s is None, call.failure


async def test_stall_is_found_although_the_client_is_slow() -> None:
    call, left_s, _ = await relayed(CHAT, every(1.0, PING, 600.0), for_s=595.0, takes_s=5.0, stall_s=20.0)
    assert call.failure is not None
    assert call.failure.limit == "stall"
    assert left_s is not None
    assert 6 * 20.0 <= left_s <= 6 * 22.0


async def test_events_of_a_session_may_pause_for_longer() -> None:
    session = Form("/v1/sessions/sesn_1/events/stream", "claude", b"", (), b'data: {"type":"session.status_idle"}\n\n')
    call, left_s, _ = await relayed(session, every(15.0, PING, 600.0), for_s=590.0)
    assert left_s is None, call.failure


async def test_large_event_that_is_still_arriving_is_progress() -> None:
    head, _, tail = CHAT.token.partition(b"h")
    letters = every(10.0, b"x" * 600_000, 400.0)
    call, left_s, _ = await relayed(CHAT, [(1.0, head), *letters, (1.0, tail)], for_s=420.0, stall_s=30.0)
    assert left_s is None, call.failure


async def test_large_comment_that_is_still_arriving_is_none() -> None:
    letters = every(10.0, b"x" * 600_000, 400.0)
    call, _, _ = await relayed(CHAT, [(1.0, b": "), *letters], for_s=420.0, stall_s=30.0)
    assert call.failure is not None
    assert call.failure.limit == "stall"


async def test_time_that_the_client_takes_is_not_the_providers_silence() -> None:
    takes_s = IDLE_S - 10.0
    call, left_s, _ = await relayed(CHAT, [(20.0, CHAT.token)] * 3, for_s=500.0, takes_s=takes_s, stall_s=600.0)
    # Each event takes longer than the idle limit for client and provider together; neither exceeds it alone.
    assert call.failure is not None
    assert call.failure.limit == "idle"
    assert left_s == pytest.approx(4 * takes_s + 3 * 20.0 + IDLE_S)


async def test_provider_that_is_silent_after_a_full_buffer_is_not_a_client_that_stopped_reading() -> None:
    call, _, _ = await relayed(CHAT, [(1.0, CHAT.token)], for_s=300.0, takes_s=5.0, stall_s=600.0)
    assert call.failure is not None
    assert call.failure.kind.label == "timeout"


async def test_body_that_stays_open_after_the_terminal_event_is_closed_soon() -> None:
    call, left_s, _ = await relayed(CHAT, [(1.0, CHAT.end)], for_s=30.0)
    assert call.failure is None
    assert left_s is not None
    assert left_s <= 1.0 + ENDING_S + 0.25
