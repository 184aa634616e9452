"""Relays a WebSocket after its upgrade, in both directions until either side ends.

Parses nothing: frames, close codes and extensions pass unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from llm_guard.proxy.call import Exchange
from llm_guard.proxy.http_server.response_writer import ResponseWriter

_HIGH_WATER_BYTES = 1 << 18


async def tunnel(reply: ResponseWriter, exchange: Exchange) -> None:
    """Relays until either side has closed and all that it sent is passed on. The caller closes the exchange."""
    client = reply.connection
    from_client = _Inbox(client.transport)
    from_upstream = _Inbox(None)
    upstream = exchange.take_over(from_upstream)
    from_upstream.transport = upstream.transport
    await reply.write(b"")
    client.take_over(from_client)
    try:
        async with asyncio.TaskGroup() as both:
            pumps = [
                both.create_task(_pump(from_client, upstream.write)),
                both.create_task(_pump(from_upstream, reply.write)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
    finally:
        # Bytes that a client sent just before it left are passed on too.
        if (rest := from_client.take_rest()) and not upstream.transport.is_closing():
            upstream.transport.write(rest)
        client.close()


class _Inbox:
    """Buffers what one side has sent and the other has not taken; pauses reading from the sender when it is full."""

    def __init__(self, transport: asyncio.Transport | None) -> None:
        self.transport = transport
        self._waiting = bytearray()
        self._has_news = asyncio.Event()
        self._is_over = False
        self._is_paused = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Takes bytes read from an upgraded connection."""
        self._waiting += data
        self._has_news.set()
        if len(self._waiting) > _HIGH_WATER_BYTES and self.transport is not None and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        return False, b""

    def feed_eof(self) -> None:
        """Marks the sender's connection as gone."""
        self._is_over = True
        self._has_news.set()

    async def take(self) -> bytes:
        """Waits for bytes and returns all of them; b"" at the end."""
        if not self._waiting and not self._is_over:
            self._has_news.clear()
            await self._has_news.wait()
        taken = self.take_rest()
        if self._is_paused and self.transport is not None and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()
        return taken

    def take_rest(self) -> bytes:
        """Returns the buffered bytes without waiting."""
        taken = bytes(self._waiting)
        self._waiting.clear()
        return taken


async def _pump(inbox: _Inbox, write: Callable[[bytes], Awaitable[None]]) -> None:
    while data := await inbox.take():
        try:
            await write(data)
        except ConnectionError:
            return
