"""A client that shows a response exactly as it arrived: complete or cut, cleanly ended or not.

Parses HTTP framing itself, because real clients hide these details.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

from tests.fakes.client import raw_request

_CUT = (ConnectionError, asyncio.IncompleteReadError)


@dataclass(slots=True)
class Reply:
    """A response, or as much of it as arrived."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    is_whole: bool = False
    """True if it ended as its framing requires."""
    took_s: float = 0.0
    """Seconds from the request's first byte to the response's last."""
    interim: list[int] = field(default_factory=list)
    """Statuses of 1xx responses before it."""

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[bytes]:
        """Events of a stream; raises if the last one is incomplete."""
        blocks = self.body.split(b"\n\n")
        assert blocks.pop() == b"", f"an event was cut: {self.body[-80:]!r}"
        return blocks


class Connection:
    """One connection to `url` for consecutive requests."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        self._tls = tls
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(self._host, self._port, limit=1 << 20, ssl=self._tls)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()

    async def ask(self, request: bytes) -> Reply:
        """Sends a request and returns its response."""
        began_at = time.monotonic()
        self.writer.write(request)
        reply = await self.reply(has_body=not request.startswith(b"HEAD "))
        reply.took_s = time.monotonic() - began_at
        return reply

    async def reply(self, *, has_body: bool = True) -> Reply:
        """Returns the next response. Raises ConnectionError or IncompleteReadError if there is none."""
        interim: list[int] = []
        reply = await self.head()
        while reply.status < 200:
            interim.append(reply.status)
            reply = await self.head()
        reply.interim = interim
        with suppress(*_CUT):
            if has_body:
                await self._body(reply)
            reply.is_whole = True
        return reply

    async def head(self) -> Reply:
        """Reads only the head of the next response."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return Reply(int(lines[0].split(" ")[1]), {name.lower(): value for name, value in headers.items()})

    def leave(self, how: str) -> float:
        """Disconnects with RST ("reset") or FIN ("close") and returns the instant."""
        if how == "reset":
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        return time.monotonic()

    async def is_closed(self, within_s: float = 2.0) -> bool:
        """Returns whether the peer has closed the connection without sending more."""
        async with asyncio.timeout(within_s):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True

    async def _body(self, reply: Reply) -> None:
        if "chunked" not in reply.headers.get("transfer-encoding", ""):
            await self._take(reply, int(reply.headers["content-length"]))
            return
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            await self._take(reply, size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)

    async def _take(self, reply: Reply, size: int) -> None:
        while size:
            data = await self.reader.read(size)
            if not data:
                raise asyncio.IncompleteReadError(b"", size)
            reply.body += data
            size -= len(data)


async def ask(
    url: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None, method: str = "POST"
) -> Reply:
    """Sends one request on a connection of its own."""
    async with Connection(url) as connection:
        return await connection.ask(raw_request(target, body, headers, method))


async def fetch(url: str) -> Reply:
    """Sends a GET."""
    parts = urlsplit(url)
    return await ask(f"{parts.scheme}://{parts.netloc}", parts.path, method="GET")
