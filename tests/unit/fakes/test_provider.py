from __future__ import annotations

import asyncio
import time

import pytest

from tests.fakes.client import VanishingClient, raw_request
from tests.fakes.provider import (
    END,
    Close,
    Hold,
    Pause,
    Reset,
    Respond,
    ScriptedProvider,
    Step,
    chunk,
    request_size,
    stream_head,
    whole,
)
from tests.fakes.waiting import eventually

ASK = raw_request("/x", b'{"a": 1}')


async def connect(provider: ScriptedProvider) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(provider.url.rpartition(":")[2]))


async def test_each_request_takes_the_next_script_and_the_last_is_repeated() -> None:
    async with ScriptedProvider([whole(503)], [whole(200)]) as provider:
        client = VanishingClient(provider.url)
        lines = [(await client.vanish(ASK, after_bytes=12))[:12] for _ in range(3)]
    assert lines == [b"HTTP/1.1 503", b"HTTP/1.1 200", b"HTTP/1.1 200"]
    assert provider.requests == [ASK] * 3


async def test_requests_on_one_connection_are_taken_apart() -> None:
    chunked = b"POST /y HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n0\r\n\r\n"
    async with ScriptedProvider([Respond(b"1")], [Respond(b"2")], [Respond(b"3")]) as provider:
        reader, writer = await connect(provider)
        writer.write(ASK + chunked + ASK[:-1])
        assert await reader.readexactly(2) == b"12"
        writer.write(ASK[-1:])
        assert await reader.readexactly(1) == b"3"
        writer.close()
        assert await provider.closed_within(5)
    assert provider.connections[0].requests == [ASK, chunked, ASK]


async def test_bytes_are_played_exactly_and_close_is_an_orderly_end() -> None:
    script: list[Step] = [stream_head(), chunk(b"a"), Pause(0.001), chunk(b"\xc3"), END, Close()]
    async with ScriptedProvider(script) as provider:
        reader, writer = await connect(provider)
        writer.write(ASK)
        received = await reader.read()
        writer.close()
        await eventually(lambda: provider.live_connections == 0)
    assert received.endswith(b"\r\n\r\n1\r\na\r\n1\r\n\xc3\r\n0\r\n\r\n")
    assert not provider.connections[0].is_closed_by_peer


async def test_reset_is_a_reset() -> None:
    async with ScriptedProvider([Reset()]) as provider:
        reader, writer = await connect(provider)
        writer.write(ASK)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        assert not provider.connections[0].is_closed_by_peer


async def test_a_pause_waits_for_its_event() -> None:
    gate = asyncio.Event()
    async with ScriptedProvider([Respond(b"a"), Pause(gate), Respond(b"b")]) as provider:
        reader, writer = await connect(provider)
        writer.write(ASK)
        assert await reader.readexactly(1) == b"a"
        gate.set()
        assert await reader.readexactly(1) == b"b"
        writer.close()


@pytest.mark.parametrize("script", [[Hold()], [Pause(60.0)], [Pause(asyncio.Event())]])
async def test_a_peer_that_leaves_is_noticed_during_any_step(script: list[Hold | Pause]) -> None:
    async with ScriptedProvider(script) as provider:
        assert await provider.closed_within(0)
        _, writer = await connect(provider)
        writer.write(ASK)
        await eventually(lambda: provider.requests)
        assert provider.live_connections == 1
        assert not await provider.closed_within(0.01)
        left_at = time.monotonic()
        writer.close()
        assert await provider.connections[0].closed_within(5)
    closed_at = provider.connections[0].closed_at
    assert provider.connections[0].is_closed_by_peer
    assert closed_at is not None
    assert left_at <= closed_at < left_at + 1


async def test_steps_on_connect_precede_any_request() -> None:
    async with ScriptedProvider(on_connect=[Respond(b"hello"), Close()]) as provider:
        reader, writer = await connect(provider)
        assert await reader.read() == b"hello"
        writer.close()
    assert provider.requests == []


@pytest.mark.parametrize(
    ("received", "size"),
    [
        (b"GET / HTTP/1.1\r\n", None),
        (b"GET / HTTP/1.1\r\n\r\n", 18),
        (b"GET / HTTP/1.1\r\n\r\nGET", 18),
        (b"P / H\r\nContent-Length: 3\r\n\r\nab", None),
        (b"P / H\r\nContent-Length: 3\r\n\r\nabcd", 31),
        (b"P / H\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", None),
        (b"P / H\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\nX", 48),
    ],
)
def test_request_ends_where_its_head_declares(received: bytes, size: int | None) -> None:
    assert request_size(received) == size
