"""A provider that acts before a request has fully arrived, over real sockets.

`tests.fakes.provider` cannot do this: it parses a request only once it is complete.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

from tests.fakes.provider import Respond, request_size, whole


class Upload:
    """One request on its own connection, as far as it has arrived."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received = bytearray()
        """Head and body as received."""
        self.is_cut = False
        """True once the peer has disconnected."""
        self._reader = reader
        self._writer = writer

    @property
    def head(self) -> bytes:
        return bytes(self.received.partition(b"\r\n\r\n")[0]).lower()

    @property
    def body(self) -> bytes:
        """The body received so far, with chunked framing removed."""
        framed = bytes(self.received.partition(b"\r\n\r\n")[2])
        return _unchunked(framed) if b"\r\ntransfer-encoding: chunked" in self.head else framed

    @property
    def is_whole(self) -> bool:
        return request_size(self.received) == len(self.received) > 0

    async def read_until(self, is_enough: Callable[[], bool]) -> None:
        """Reads until `is_enough()` is true or the peer has disconnected."""
        while not is_enough() and not self.is_cut:
            try:
                data = await self._reader.read(1 << 18)
            except ConnectionError:
                data = b""
            self.received += data
            self.is_cut = not data

    async def read_body(self, size: int) -> None:
        """Reads until `size` bytes of the body have arrived."""
        await self.read_until(lambda: len(self.body) >= size)

    async def read_whole(self) -> None:
        await self.read_until(lambda: self.is_whole)

    def answer(self, step: Respond) -> None:
        self._writer.write(step.data)

    def reset(self) -> None:
        """Resets the connection (RST)."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Act = Callable[[Upload], Awaitable[None]]


class EagerProvider:
    """Runs one act per connection, the last one for all that follow: `async with EagerProvider(act) as provider:`."""

    def __init__(self, *acts: Act) -> None:
        self._acts = list(acts)
        self.uploads: list[Upload] = []
        """In the order in which their connections were accepted."""
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 16)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upload = Upload(reader, writer)
        self.uploads.append(upload)
        act = self._acts.pop(0) if len(self._acts) > 1 else self._acts[0]
        try:
            await act(upload)
            await upload.read_until(lambda: False)
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def store(upload: Upload) -> None:
    """Reads the whole request and answers as the files endpoint does."""
    await upload.read_whole()
    if upload.is_whole:
        upload.answer(whole(200, b'{"id":"file-1","object":"file"}'))


def early(after_bytes: int, *steps: Respond) -> Act:
    """Returns an act that answers once `after_bytes` of the body have arrived."""

    async def act(upload: Upload) -> None:
        await upload.read_body(after_bytes)
        for step in steps:
            upload.answer(step)

    return act


def resetting(after_bytes: int) -> Act:
    """Returns an act that resets the connection once `after_bytes` of the body have arrived."""

    async def act(upload: Upload) -> None:
        await upload.read_body(after_bytes)
        upload.reset()

    return act


def _unchunked(framed: bytes) -> bytes:
    """Decodes the complete chunks, and as much of the last one as is there."""
    body = b""
    while framed:
        size, _, rest = framed.partition(b"\r\n")
        if not rest or not (count := int(size, 16)):
            break
        body += rest[:count]
        framed = rest[count + 2 :]
    return body
