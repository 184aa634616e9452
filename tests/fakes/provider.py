"""A provider that plays exact bytes over real sockets and records what it receives.

For what `llm_guard.mock` cannot do: bytes outside HTTP, cuts inside a header or a character. Each request takes the
next script; the last one is repeated for all that follow.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, cast


@dataclass(frozen=True, slots=True)
class Respond:
    """Sends these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """Waits for some seconds or for an event."""

    until: float | asyncio.Event


@dataclass(frozen=True, slots=True)
class Close:
    """Sends FIN after everything sent before."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Sends RST; what was sent just before may be lost."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Stays silent until the peer disconnects."""


Step = Respond | Pause | Close | Reset | Hold


def whole(status: int = 200, body: bytes = b"{}", headers: Mapping[str, str] | None = None) -> Respond:
    """A response with a content-length; JSON unless `headers` set another type."""
    fixed = {"content-type": "application/json", "content-length": str(len(body))}
    return Respond(_head(status, {**fixed, **(headers or {})}) + body)


def stream_head(status: int = 200, headers: Mapping[str, str] | None = None) -> Respond:
    """The head of a chunked event stream."""
    fixed = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
    return Respond(_head(status, {**fixed, **(headers or {})}))


def chunk(data: bytes) -> Respond:
    """One chunk of a stream; an empty one ends it."""
    return Respond(b"%x\r\n%b\r\n" % (len(data), data))


END = Respond(b"0\r\n\r\n")


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"HTTP/1.1 {status} Scripted", *lines, "", ""]).encode()


@dataclass(slots=True, eq=False)
class Connection:
    """A connection's record; instants are monotonic seconds."""

    opened_at: float
    requests: list[bytes] = field(default_factory=list)
    """Each request as received, head and body."""
    closed_at: float | None = None
    """When it ended, by either side."""
    is_closed_by_peer: bool = False
    _closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def closed_within(self, seconds: float) -> bool:
        """Waits at most `seconds` and returns whether the connection has ended."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return False
        return True

    def _end(self, *, by_peer: bool) -> None:
        self.closed_at = time.monotonic()
        self.is_closed_by_peer = by_peer
        self._closed.set()


class ScriptedProvider:
    """Plays scripts at `provider.url`: `async with ScriptedProvider([whole(503)], [whole()]) as provider:`."""

    def __init__(
        self, *scripts: Sequence[Step], on_connect: Sequence[Step] = (), sock: socket.socket | None = None
    ) -> None:
        """Takes one script per request, in the order of arrival. `on_connect` is played before the first request of
        every connection. Listens on `sock`, which must be bound, or else on a port of its own."""
        self._scripts = iter(scripts)
        self._script: Sequence[Step] = (Hold(),)
        self._on_connect = on_connect
        self._sock = sock
        self._listener: asyncio.Server | None = None
        self.connections: list[Connection] = []
        self.requests: list[bytes] = []
        """Requests of all connections as received, in the order of arrival."""
        self.url = ""
        self._lines: set[_Line] = set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if self._sock is None:
            self._listener = await loop.create_server(lambda: _Line(self), "127.0.0.1", 0)
        else:
            self._listener = await loop.create_server(lambda: _Line(self), sock=self._sock)
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_exception: object) -> None:
        assert self._listener is not None
        self._listener.close()
        lines = list(self._lines)
        for line in lines:
            line.abort()
        await asyncio.gather(*(line.playing for line in lines), return_exceptions=True)
        await self._listener.wait_closed()

    @property
    def live_connections(self) -> int:
        return sum(connection.closed_at is None for connection in self.connections)

    async def closed_within(self, seconds: float) -> bool:
        """Waits at most `seconds` and returns whether every connection made so far has ended."""
        ended = await asyncio.gather(*(one.closed_within(seconds) for one in self.connections))
        return all(ended)

    def next_script(self) -> Sequence[Step]:
        """Returns the steps for the next request."""
        self._script = next(self._scripts, self._script)
        return self._script


class _Line(asyncio.Protocol):
    """One connection: parses requests, plays scripts, and notices when the peer disconnects, also in the middle of a
    script."""

    def __init__(self, provider: ScriptedProvider) -> None:
        self._provider = provider
        self._received = bytearray()
        self._has_more = asyncio.Event()
        self._is_ours = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._connection = Connection(time.monotonic())
        self._provider.connections.append(self._connection)
        self._provider._lines.add(self)
        self.playing = asyncio.create_task(self._play())

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._has_more.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection._end(by_peer=not self._is_ours)
        self._provider._lines.discard(self)
        self.playing.cancel()

    def abort(self) -> None:
        self._is_ours = True
        self._transport.abort()

    async def _play(self) -> None:
        for step in self._provider._on_connect:
            await self._take(step)
        while True:
            while (size := request_size(self._received)) is None:
                self._has_more.clear()
                await self._has_more.wait()
            request = bytes(self._received[:size])
            del self._received[:size]
            self._connection.requests.append(request)
            self._provider.requests.append(request)
            for step in self._provider.next_script():
                await self._take(step)

    async def _take(self, step: Step) -> None:
        match step:
            case Respond(data):
                self._transport.write(data)
            case Pause(until):
                await (until.wait() if isinstance(until, asyncio.Event) else asyncio.sleep(until))
            case Hold():
                await self._wait_for_end()
            case Close():
                self._is_ours = True
                self._transport.close()
                await self._wait_for_end()
            case Reset():
                linger = struct.pack("ii", 1, 0)
                self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.abort()
                await self._wait_for_end()

    async def _wait_for_end(self) -> None:
        """Waits forever; the loss of the connection cancels the script."""
        await asyncio.Event().wait()


def request_size(received: bytes | bytearray) -> int | None:
    """Returns the length of the first complete request, head and body; None while it is incomplete."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    head, start = bytes(received[:end]).lower(), end + 4
    if b"\r\ntransfer-encoding: chunked" in head:
        return next((at for at in _chunk_ends(bytes(received), start)), None)
    length = re.search(rb"\r\ncontent-length: *(\d+)", head)
    size = start + (int(length[1]) if length else 0)
    return size if len(received) >= size else None


def _chunk_ends(received: bytes, at: int) -> Iterator[int]:
    """Yields the end of the chunked body that starts at `at`, if it has arrived."""
    while (line_end := received.find(b"\r\n", at)) >= 0:
        size = int(received[at:line_end].split(b";")[0], 16)
        at = line_end + 2 + size + 2
        if len(received) < at:
            return
        if size == 0:
            yield at
            return
