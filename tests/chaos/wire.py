"""A client that shows an answer as it came over the wire: whole or cut, cleanly ended or not.

Owns HTTP framing on the client's side. Real clients hide what these tests are about.
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
    """An answer, or as much of it as came."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    is_whole: bool = False
    """It ended as its framing demands."""
    took_s: float = 0.0
    """From the request's first byte to the answer's last."""
    interim: list[int] = field(default_factory=list)
    """Statuses of 1xx answers before it."""

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[bytes]:
        """A stream's events; raises when its last one is not complete."""
        blocks = self.body.split(b"\n\n")
        assert blocks.pop() == b"", f"an event was cut: {self.body[-80:]!r}"
        return blocks


class Connection:
    """One connection to `url`; requests on it follow each other."""

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
        """Sends a request, returns its answer."""
        began_at = time.monotonic()
        self.writer.write(request)
        reply = await self.reply(has_body=not request.startswith(b"HEAD "))
        reply.took_s = time.monotonic() - began_at
        return reply

    async def reply(self, *, has_body: bool = True) -> Reply:
        """The next answer; raises ConnectionError or IncompleteReadError when there is none."""
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
        """The next answer's head alone."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return Reply(int(lines[0].split(" ")[1]), {name.lower(): value for name, value in headers.items()})

    def leave(self, how: str) -> float:
        """Disappears with RST ("reset") or FIN ("close"); returns the instant."""
        if how == "reset":
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        return time.monotonic()

    async def is_closed(self, within_s: float = 2.0) -> bool:
        """Whether the peer has ended the connection without another word."""
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
    """One request on a connection of its own."""
    async with Connection(url) as connection:
        return await connection.ask(raw_request(target, body, headers, method))


async def fetch(url: str) -> Reply:
    """GET."""
    parts = urlsplit(url)
    return await ask(f"{parts.scheme}://{parts.netloc}", parts.path, method="GET")
