"""Clients that read slowly, or pause, in the middle of a stream: the provider is paused, no data is lost or buffered
without bound, and no deployment is blamed."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.chaos.forms import CHAT, MESSAGES, RESPONSES, STREAMS, Form, name_of
from tests.chaos.sinks import Fountain, pouring
from tests.chaos.stand import Stand, config_of, facing, standing
from tests.chaos.wire import Connection, Reply
from tests.fakes.client import raw_request
from tests.fakes.provider import END, Close, Hold, Pause, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually

MIB = 1 << 20
IN_FLIGHT_BYTES = 24 * MIB
"""Upper bound of the kernel buffers of two loopback connections, with a margin."""
HELD_BYTES = 2 * ((1 << 16) + (1 << 18))
"""On each side of the gateway 64 KiB, plus what one read of the event loop can add."""
IDLE_S = 0.3
LIMITS = {"idle": f"{IDLE_S}s", "total": "20s"}
TOKENS = 150
"""Tokens of 60 kB each: more than the buffers between the gateway and its client hold."""
WORDS = b"word " * 12_000
PUT = {str(CHAT): b"h\\u00e9", str(RESPONSES): b'"hi"', str(MESSAGES): b'"text": "hi"'}
streams = pytest.mark.parametrize("form", STREAMS, ids=name_of)


def event_of(form: Form) -> bytes:
    """Builds a token of 60 kB."""
    long = PUT[str(form)].replace(b"hi", WORDS).replace(b"h\\u00e9", WORDS)
    event = form.token.replace(PUT[str(form)], long)
    assert len(event) > len(WORDS)
    return event


@asynccontextmanager
async def flooded(form: Form, **timeout: str) -> AsyncIterator[tuple[Fountain, Stand, Connection]]:
    """Runs a provider that streams without end, and a client that has received the head of that stream."""
    async with (
        pouring(event_of(form)) as fountain,
        standing(config_of(fountain.url, timeout={**LIMITS, **timeout})) as stand,
        Connection(stand.url) as client,
    ):
        client.writer.write(form.request(stream=True))
        assert (await client.head()).status == 200
        yield fountain, stand, client


def stop_reading(client: Connection) -> None:
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]


def go_on_reading(client: Connection) -> None:
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]


async def standstill(fountain: Fountain) -> int:
    """Returns the bytes sent, once none were sent for 0.1 s."""
    poured = -1
    while poured != fountain.poured:
        poured = fountain.poured
        await asyncio.sleep(0.1)
    return poured


async def read_events(client: Connection, event: bytes, count: int) -> None:
    """Reads the next events of a flood, decodes the chunks, and checks that each is exactly as sent."""
    body = b""
    while len(body) < count * len(event):
        size = int(await client.reader.readuntil(b"\r\n"), 16)
        body += await client.reader.readexactly(size)
        assert await client.reader.readexactly(2) == b"\r\n"
    for at in range(0, count * len(event), len(event)):
        assert body[at : at + len(event)] == event


@streams
async def test_client_that_stops_reading_in_the_middle_pauses_the_provider_and_loses_nothing(form: Form) -> None:
    event = event_of(form)
    async with flooded(form, idle="5s") as (fountain, stand, client):
        await read_events(client, event, 30)
        read_so_far = fountain.poured
        stop_reading(client)
        poured = await standstill(fountain)
        assert stand.held_bytes <= HELD_BYTES
        assert poured - read_so_far < 2 * IN_FLIGHT_BYTES  # the rest is in kernel buffers, of varying size
        go_on_reading(client)
        await read_events(client, event, 2 * (poured - read_so_far) // len(event) + 10)
        assert fountain.poured > poured
        assert stand.app.gateway.running == 1


@streams
async def test_client_that_stops_reading_for_longer_than_idle_is_its_own_failure(form: Form) -> None:
    async with flooded(form) as (fountain, stand, client):
        await read_events(client, event_of(form), 30)
        stop_reading(client)
        (call,) = await stand.calls()
        assert call["outcome"] == "client_cancelled"
        assert "stopped reading" in call["reason"]
        await eventually(lambda: fountain.closed_at)
        assert stand.breaker(form.deployment).failures == 0
        assert await stand.metric("llm_guard_timeouts_total") == 0


@streams
async def test_client_that_stops_reading_for_less_than_idle_stays_connected(form: Form) -> None:
    async with flooded(form, idle="4s") as (fountain, stand, client):
        for _ in range(2):
            stop_reading(client)
            await standstill(fountain)
            go_on_reading(client)
            await read_events(client, event_of(form), 30)
        assert stand.app.gateway.running == 1


@streams
async def test_stream_that_fits_the_buffers_waits_for_a_client_that_reads_late(form: Form) -> None:
    # The client has delayed neither the provider, which is done, nor the gateway, which has nothing left to write.
    dripping = [step for _ in range(5) for step in (chunk(form.token), Pause(0.1))]
    script: list[Step] = [stream_head(), *map(chunk, form.preamble), *dripping, chunk(form.end), END]
    async with facing(script, timeout=LIMITS) as (stand, _), Connection(stand.url) as client:
        stop_reading(client)
        client.writer.write(form.request(stream=True))
        (call,) = await stand.calls()
        assert call["outcome"] == "ok"
        await asyncio.sleep(IDLE_S)
        go_on_reading(client)
        reply: Reply = await client.reply()
        assert reply.is_whole
        assert reply.body == b"".join(form.preamble) + form.token * 5 + form.end


async def sip(url: str, form: Form, *, stream: bool = True) -> bytes:
    """Reads slowly with a small receive buffer, and returns everything up to the end or the cut."""
    request = raw_request(form.path, form.body(stream=stream), {"connection": "close"})
    loop = asyncio.get_running_loop()
    received = bytearray()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", int(url.rsplit(":", 1)[1])))
        await loop.sock_sendall(sock, request)
        with suppress(ConnectionError):
            while data := await loop.sock_recv(sock, 100_000):
                received += data
                await asyncio.sleep(0.003)
    return bytes(received)


def count_of(form: Form, received: bytes) -> int:
    """Counts the tokens received; long ones arrive in several chunks."""
    return len(re.sub(rb"\r\n[0-9a-f]+\r\n", b"", received).split(WORDS)) - 1


@streams
@pytest.mark.parametrize("last", [END, Close()], ids=["stays connected", "closes"])
async def test_stream_arrives_whole_when_the_provider_finishes_long_before_the_client(form: Form, last: Step) -> None:
    # The provider has sent everything and disconnected while most of it still waits for the client: nothing was cut.
    script: list[Step] = [stream_head(), *[chunk(event_of(form))] * TOKENS, chunk(form.end), END]
    async with facing([*script, last] if last != END else script) as (stand, _):
        received = await sip(stand.url, form)
        (call,) = await stand.calls()
        assert call["outcome"] == "ok"
        assert received.endswith(b"\r\n0\r\n\r\n")
        assert count_of(form, received) == TOKENS
        assert stand.breaker(form.deployment).failures == 0


async def test_response_arrives_whole_when_the_provider_closes_long_before_the_client() -> None:
    body = b'{"choices":[{"message":{"content":"' + WORDS * TOKENS + b'"}}]}'
    async with facing([whole(200, body), Close()]) as (stand, _):
        received = await sip(stand.url, CHAT, stream=False)
        (call,) = await stand.calls()
        assert call["outcome"] == "ok"
        assert received.partition(b"\r\n\r\n")[2] == body


async def test_whole_response_that_is_written_reaches_a_slow_client_after_the_drain() -> None:
    body = CHAT.answer.replace(b'"hi"', b'"%b"' % (WORDS * 3))
    async with facing([whole(200, body)]) as (stand, provider), Connection(stand.url) as client:
        stop_reading(client)
        while not stand.app.gateway.running:  # until the buffers between them are full
            client.writer.write(CHAT.request())
            requests = len(provider.requests) + 1
            await eventually(lambda: len(provider.requests) == requests)  # noqa: B023  # awaited at once
            await asyncio.sleep(0.02)
        stand.app.gateway.end_running()
        assert {call["outcome"] for call in await stand.calls()} == {
            "ok",
            "client_cancelled",
        }  # no fault of the gateway
        go_on_reading(client)
        for _ in provider.requests:
            reply = await client.reply()
            assert (reply.is_whole, reply.body) == (True, body)


@streams
async def test_data_before_a_cut_reaches_a_slow_client(form: Form) -> None:
    async with facing([stream_head(), *[chunk(event_of(form))] * TOKENS, Close()]) as (stand, _):
        received = await sip(stand.url, form)
        (call,) = await stand.calls()
        assert call["outcome"] == "truncated"
        assert count_of(form, received) == TOKENS
        assert b"event: error" in received


@streams
async def test_provider_that_falls_silent_while_the_client_does_not_read_is_to_blame(form: Form) -> None:
    script: list[Step] = [stream_head(), *map(chunk, form.preamble), chunk(form.token), Hold()]
    async with facing(script, timeout=LIMITS) as (stand, _), Connection(stand.url) as client:
        stop_reading(client)
        client.writer.write(form.request(stream=True))
        (call,) = await stand.calls()
        assert call["outcome"] == "timeout"
        assert stand.breaker(form.deployment).failures == 1
        go_on_reading(client)
        reply: Reply = await client.reply()
        assert not reply.is_whole
        assert form.error_in(reply.events[-1])["type"] == "timeout_error"
