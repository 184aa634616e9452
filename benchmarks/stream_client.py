"""A client that reads one stream and costs next to nothing, so that a thousand of them fit beside what is measured.

Owns the request, the counts and how the stream has ended for somebody who knows the dialect. Does not own who calls
when (`relay`, `soak_clients`).
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
"""whole: to its terminal event and a clean end of the body · told: an error event was the last word · cut: the
connection broke, which every HTTP client notices · refused: an error in place of a stream · silent: a clean end without
terminal event or error, which nobody notices · left: the client itself went."""


class StreamClient(asyncio.Protocol):
    """One connection with one stream. `await ended` for how it went."""

    def __init__(self, path: str, model: str, *, pace_s: float | None = None) -> None:
        """`pace_s`: seconds between chunks, which the provider of `relay_peers` keeps and no other understands; each
        event then tells when it was sent, and `delays_s` is kept."""
        asked = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Go on."}]}
        if pace_s is not None:
            asked["user"] = f"pace_s={pace_s}"  # a field that everybody passes on and nobody reads
        body = json.dumps(asked)
        head = f"POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        self._request = f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()
        self._tail = b""
        self._status = b""
        self._has_left = False
        self._has_stamps = pace_s is not None
        self.transport: asyncio.Transport | None = None
        self.begun = asyncio.Event()
        """The first event is here, or none will come."""
        self.events = 0
        self.frames = 0
        """Chunks of the body; one may hold several events."""
        self.delays_s: list[float] = []
        """From the provider's write to our read, of each read's first event."""
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from asyncio's
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if len(self._status) < len(_WELL):
            self._status = (self._status + data)[: len(_WELL)]
        self.events += data.count(b"\n\n")
        if self.events:
            self.begun.set()
        self.frames += data.count(b"\r\n") >> 1  # an event has none of its own
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
        """Goes at once, whatever is still to come."""
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
    """Connects; raises OSError. `receive_buffer` (bytes): what the kernel takes for us while we do not read; a small
    one lets a slow reader be felt at once."""
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
