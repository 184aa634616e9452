"""A provider that answers when the test makes it, and counts how many exchanges are open at once.

The response bytes come from `tests.fakes.provider` and `forms`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Self, cast

from tests.fakes.provider import Respond, request_size


class Exchange:
    """One request and its response; open until it is answered or the peer has disconnected."""

    def __init__(self, line: _Line, request: bytes) -> None:
        self.request = request
        self.began_at = time.monotonic()
        self.left_at: float | None = None
        """When the peer closed the connection before the response was complete."""
        self.is_open = True
        self._line = line
        self._left = asyncio.Event()

    @property
    def body(self) -> Any:
        return json.loads(self.request.partition(b"\r\n\r\n")[2])

    def say(self, *parts: Respond) -> None:
        """Sends part of the response."""
        for part in parts:
            self._line.transport.write(part.data)

    def answer(self, *parts: Respond) -> None:
        """Sends the rest of the response, unless the peer has disconnected."""
        if self.is_open:
            self.end()
            self.say(*parts)

    def cut(self) -> None:
        """Closes the connection here."""
        self.end()
        self._line.transport.close()

    def end(self) -> None:
        self.is_open = False
        self._line.provider.open.remove(self)

    async def left(self, within_s: float = 2.0) -> float:
        """Waits for the peer to disconnect and returns the instant."""
        async with asyncio.timeout(within_s):
            await self._left.wait()
        assert self.left_at is not None
        return self.left_at

    def note_left(self) -> None:
        if self.is_open:
            self.left_at = time.monotonic()
            self.end()
            self._left.set()


class ManualProvider:
    """Listens at `provider.url`: `async with ManualProvider() as provider:`. `on_request` may answer at once."""

    def __init__(self, on_request: Callable[[Exchange], None] | None = None) -> None:
        self.on_request = on_request
        self.exchanges: list[Exchange] = []
        """All exchanges, in the order of arrival."""
        self.open: list[Exchange] = []
        self.most_open = 0
        self.lines: set[_Line] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: _Line(self), "127.0.0.1", 0, backlog=1024
        )
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._listener.close()
        for line in list(self.lines):
            line.transport.abort()
        await self._listener.wait_closed()

    def begin(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.open.append(exchange)
        self.most_open = max(self.most_open, len(self.open))
        if self.on_request is not None:
            self.on_request(exchange)


def after(seconds: float, *parts: Respond) -> Callable[[Exchange], None]:
    """Answers each request after some seconds."""

    def on_request(exchange: Exchange) -> None:
        asyncio.get_running_loop().call_later(seconds, lambda: exchange.answer(*parts))

    return on_request


class _Line(asyncio.Protocol):
    """One connection, kept alive between exchanges."""

    def __init__(self, provider: ManualProvider) -> None:
        self.provider = provider
        self._received = bytearray()
        self._exchange: Exchange | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.provider.lines.add(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (size := request_size(self._received)) is not None:
            request = bytes(self._received[:size])
            del self._received[:size]
            self._exchange = Exchange(self, request)
            self.provider.begin(self._exchange)

    def connection_lost(self, error: Exception | None) -> None:
        self.provider.lines.discard(self)
        if self._exchange is not None:
            self._exchange.note_left()
