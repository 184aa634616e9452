"""Providers that no script can play: one that never accepts, one that never reads, one that speaks TLS, one that
streams without end."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Self

from tests.fakes.provider import ScriptedProvider, Step, _Line, chunk, request_size, stream_head


@contextmanager
def never_accepting() -> Iterator[str]:
    """The URL of a listener with a full backlog: new connections are neither accepted nor refused."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for filler in fillers:
                filler.close()


@contextmanager
def refusing() -> Iterator[tuple[str, socket.socket]]:
    """The URL of a bound port that does not listen: connections are refused until a ScriptedProvider takes over the
    socket."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}", held


@dataclass(slots=True)
class Unread:
    """A provider that accepts connections and does not read until `read_rest`."""

    url: str
    sockets: list[socket.socket] = field(default_factory=list)

    async def read_rest(self) -> int:
        """Reads until the connections end and returns how many bytes were in transit when the peer disconnected."""
        loop = asyncio.get_running_loop()
        size = 0
        for one in self.sockets:
            try:
                while data := await loop.sock_recv(one, 1 << 20):
                    size += len(data)
            except ConnectionError:
                pass
        return size


@asynccontextmanager
async def never_reading() -> AsyncIterator[Unread]:
    """Starts a provider with small buffers, so that an upload of megabytes stalls."""
    loop = asyncio.get_running_loop()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        unread = Unread(f"http://127.0.0.1:{listener.getsockname()[1]}")

        async def accept() -> None:
            while True:
                unread.sockets.append((await loop.sock_accept(listener))[0])

        accepting = asyncio.create_task(accept())
        try:
            yield unread
        finally:
            accepting.cancel()
            for one in unread.sockets:
                one.close()


class TlsProvider(ScriptedProvider):
    """A scripted provider behind TLS."""

    def __init__(self, *scripts: Sequence[Step]) -> None:
        super().__init__(*scripts)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Line(self), "127.0.0.1", 0, ssl=self.context)
        self.url = f"https://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self


@dataclass(slots=True)
class Fountain:
    """A provider with an endless stream; backpressure stops it."""

    event: bytes
    url: str = ""
    poured: int = 0
    """Bytes that the kernel has accepted."""
    closed_at: float | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Streams on one connection until its peer disconnects."""
        received = b""
        while request_size(received) is None:
            received += await reader.read(1 << 16)
        writer.write(stream_head().data)
        try:
            while not writer.is_closing():
                writer.write(chunk(self.event).data)
                await writer.drain()
                self.poured += len(self.event)
        except ConnectionError:
            pass
        self.closed_at = time.monotonic()
        writer.close()


@asynccontextmanager
async def pouring(event: bytes) -> AsyncIterator[Fountain]:
    """Starts a fountain that repeats `event`, with a small kernel buffer."""
    fountain = Fountain(event)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        listener.bind(("127.0.0.1", 0))
        server = await asyncio.start_server(fountain.serve, sock=listener)
        fountain.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield fountain
        finally:
            server.close()
            await server.wait_closed()


@asynccontextmanager
async def half_closing(data: bytes) -> AsyncIterator[str]:
    """The URL of a provider that answers every request with `data`, half-closes the connection and keeps reading."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        writer.write_eof()
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()
