"""A client that reads one stream at very little cost, so that a thousand of them fit beside what is measured.

Sends the request, counts, and determines how the stream ended for a client that knows the dialect. `relay` and
`soak_clients` decide when to call.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Literal, cast
from urllib.parse import urlsplit

_TAIL_BYTES = 2048
_WELL = b"HTTP/1.1 200"
_STAMP = b'"fp_'
_STAMP_DIGITS = 17

Ended = Literal["whole", "told", "cut", "refused", "silent", "left"]
"""whole: terminal event and a clean end of the body · `told`: the last event was an error event · cut: the connection
broke, which every HTTP client notices · refused: an error instead of a stream · silent: a clean end without terminal
event or error, which clients do not notice · left: the client itself left.
"""


class StreamClient(asyncio.Protocol):
    """One connection with one stream. `await ended` for the outcome."""

    def __init__(self, path: str, model: str, *, pace_s: float | None = None) -> None:
        """`pace_s`: seconds between chunks, which only the provider of `relay_peers` understands; each event then
        contains its send time, and `delays_s` is recorded."""
        asked = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Go on."}]}
        if pace_s is not None:
            asked["user"] = f"pace_s={pace_s}"  # a field that proxies forward and ignore
        body = json.dumps(asked)
        head = f"POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        self._request = f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()
        self._tail = b""
        self._status = b""
        self._has_left = False
        self._has_stamps = pace_s is not None
        self.transport: asyncio.Transport | None = None
        self.begun = asyncio.Event()
        """Set at the first event, or when none will come."""
        self.events = 0
        self.frames = 0
        """Chunks of the body; one may hold several events."""
        self.delays_s: list[float] = []
        """Seconds from the provider's write to this client's read, for each read's first event."""
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transports are not subclasses of asyncio's
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if len(self._status) < len(_WELL):
            self._status = (self._status + data)[: len(_WELL)]
        self.events += data.count(b"\n\n")
        if self.events:
            self.begun.set()
        self.frames += data.count(b"\r\n") >> 1  # an event contains no CRLF
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if self._has_stamps and (at := data.find(_STAMP)) >= 0:
            sent_at = float(data[at + len(_STAMP) : at + len(_STAMP) + _STAMP_DIGITS])
            self.delays_s.append(time.monotonic() - sent_at)
        if not _WELL.startswith(self._status):
            self._end("refused")
        elif self._tail.endswith(b"\r\n0\r\n\r\n"):
            self._end(_judge(self._tail, "silent"))

    def connection_lost(self, _error: Exception | None) -> None:
        self._end("left" if self._has_left else _judge(self._tail, "cut"))

    def leave(self) -> None:
        """Closes the connection at once."""
        self._has_left = True
        if self.transport is not None:
            self.transport.abort()

    def _end(self, how: Ended) -> None:
        if not self.ended.done():
            self.ended.set_result(how)
            self.begun.set()
            if self.transport is not None:
                self.transport.close()


def _judge(tail: bytes, otherwise: Ended) -> Ended:
    if b'"error"' in tail:
        return "told"
    return "whole" if otherwise == "silent" and b"data: [DONE]" in tail else otherwise


async def open_stream(client: StreamClient, url: str, receive_buffer: int | None = None) -> None:
    """Connects; raises OSError. `receive_buffer` (bytes): how much the kernel buffers while the client does not read;
    with a small one a slow reader is noticed at once."""
    place = urlsplit(url)
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.setblocking(False)
    try:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, (place.hostname, place.port))
        await loop.create_connection(lambda: client, sock=connection)
    except OSError:
        connection.close()
        raise
