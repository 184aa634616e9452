"""A client that sends a request and disconnects."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit


def raw_request(
    target: str, body: bytes = b"", headers: Mapping[str, str] | None = None, method: str = "POST"
) -> bytes:
    """Builds the bytes of a request; adds `host`, `content-type` and `content-length`."""
    fixed = {"host": "test", "content-type": "application/json", "content-length": str(len(body))}
    lines = [f"{name}: {value}" for name, value in {**fixed, **(headers or {})}.items()]
    return "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""]).encode() + body


class VanishingClient:
    """Sends raw bytes to `url` over a plain socket, with a new connection for each `vanish`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)

    async def vanish(
        self,
        request: bytes,
        *,
        after_s: float | None = None,
        after_bytes: int | None = None,
        how: Literal["reset", "close"] = "reset",
    ) -> bytes:
        """Sends `request`, reads for `after_s` seconds or until `after_bytes` bytes have arrived (or the peer closes),
        then disconnects with RST or FIN and returns what it has read. With neither limit it disconnects at once."""
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, self._address)
            await loop.sock_sendall(sock, request)
            received = bytearray()
            if after_s is not None or after_bytes is not None:
                await self._read(sock, received, after_s, after_bytes)
            if how == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return bytes(received)

    async def _read(
        self, sock: socket.socket, received: bytearray, after_s: float | None, after_bytes: int | None
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(after_s):
                while after_bytes is None or len(received) < after_bytes:
                    data = await loop.sock_recv(sock, 65_536)
                    if not data:
                        return
                    received += data
        except TimeoutError:
            return
