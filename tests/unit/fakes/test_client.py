from __future__ import annotations

import asyncio
import time
from typing import Literal

import pytest

from tests.fakes.client import VanishingClient, raw_request
from tests.fakes.provider import Close, Hold, Respond, ScriptedProvider


async def ending(how: Literal["reset", "close"]) -> Exception | None:
    """Returns the argument of `connection_lost` that the server gets when the client disconnects."""
    ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    class Watcher(asyncio.Protocol):
        def connection_lost(self, error: Exception | None) -> None:
            ended.set_result(error)

    server = await asyncio.get_running_loop().create_server(Watcher, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await VanishingClient(f"http://127.0.0.1:{port}").vanish(b"x", how=how)
        return await ended


async def test_server_distinguishes_reset_and_close() -> None:
    assert isinstance(await ending("reset"), ConnectionResetError)
    assert await ending("close") is None


async def test_the_client_leaves_after_a_number_of_bytes() -> None:
    async with ScriptedProvider([Respond(b"abc"), Hold()]) as provider:
        assert await VanishingClient(provider.url).vanish(raw_request("/"), after_bytes=3) == b"abc"
        assert await provider.closed_within(5)
        assert provider.connections[0].is_closed_by_peer


async def test_the_client_leaves_after_a_time() -> None:
    async with ScriptedProvider([Respond(b"abc"), Hold()]) as provider:
        started_at = time.monotonic()
        assert await VanishingClient(provider.url).vanish(raw_request("/"), after_s=0.05) == b"abc"
        assert time.monotonic() - started_at >= 0.05


async def test_client_returns_what_it_read_when_the_server_ends_first() -> None:
    async with ScriptedProvider([Respond(b"abc"), Close()]) as provider:
        assert await VanishingClient(provider.url).vanish(raw_request("/"), after_bytes=99) == b"abc"


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_raw_request_has_its_length_and_the_given_headers(method: str) -> None:
    request = raw_request("/v1/x?a=%5B", b"abc", {"x-y": "z", "host": "h"}, method=method)
    lines = request.split(b"\r\n")
    assert lines[0] == f"{method} /v1/x?a=%5B HTTP/1.1".encode()
    assert b"content-length: 3" in lines
    assert b"x-y: z" in lines
    assert [line for line in lines if line.startswith(b"host")] == [b"host: h"]
    assert request.endswith(b"\r\n\r\nabc")
