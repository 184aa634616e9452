"""Writes the HTTP response of one request: whole, piece by piece, or broken off in the middle.

Frames the response; `proxy.http_server.connection` has the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Awaitable, Iterator
from http import HTTPStatus
from typing import Protocol

from llm_guard.proxy.call import Call
from llm_guard.proxy.http_client.interfaces import Inbox
from llm_guard.proxy.http_server.request import Request
from llm_guard.proxy.request_body.fields import BadRequest

_EARLY_HEADERS = {
    True: [
        ("Content-Type", "text/event-stream; charset=utf-8"),
        ("Cache-Control", "no-cache"),
        ("X-Accel-Buffering", "no"),  # otherwise nginx buffers the response
    ],
    False: [("Content-Type", "application/json")],
}
_WAIT = {True: b": waiting\n\n", False: b"\n"}
"""Keep-alive: a comment in a stream; a blank line before a JSON body, as DeepSeek sends it."""
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_BODILESS = frozenset({101, 204, 304})
_RST_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER for 0 seconds."""
_PIECE_BYTES = 1 << 18
"""Larger bodies are sent in pieces: a transport copies what its socket does not accept, so that for a client that does
not read a whole response would be in memory twice."""


def pieces_of(body: bytes) -> Iterator[bytes]:
    """Yields a large body in pieces, each to be sent once the client has room; a small one as it is."""
    if len(body) <= _PIECE_BYTES:
        yield body
        return
    for begin in range(0, len(body), _PIECE_BYTES):
        yield body[begin : begin + _PIECE_BYTES]


class ResponseConnection(Protocol):
    """The part of a client's connection that a reply uses."""

    transport: asyncio.Transport

    @property
    def is_stuck(self) -> bool: ...
    def push(self, data: bytes) -> bool: ...
    async def wait_room(self) -> None: ...
    def take_over(self, inbox: Inbox) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class ResponseWriter:
    """The response to one request."""

    __slots__ = (
        "_head", "_is_chunked", "_is_unframed", "closes_connection", "connection", "has_begun", "is_early", "is_over",
        "request",
    )  # fmt: skip

    def __init__(self, request: Request, connection: ResponseConnection) -> None:
        self.request = request
        self.connection = connection
        self.closes_connection = not request.is_keep_alive
        """True to send `Connection: close`; set it before the response begins."""
        self.has_begun = False
        """True once the response has a head: it can then only continue or be broken off."""
        self.is_early = False
        """True if only the gateway's early head and keep-alives were sent, before any upstream's response."""
        self.is_over = False
        """True once the response is complete."""
        self._head = b""
        """The head until it is sent, together with the first bytes of the body."""
        self._is_chunked = False
        self._is_unframed = False
        """The end of the connection is the end of the body (HTTP/1.0, as nginx speaks it by default)."""

    @property
    def peer(self) -> str | None:
        """IP address of the client; None if the connection has none."""
        name = self.connection.transport.get_extra_info("peername")
        return name[0] if isinstance(name, tuple) else None

    async def send(self, status: int, reason: str, headers: list[tuple[str, str]], body: bytes) -> None:
        """Sends a whole response, or only its body if an early head was sent."""
        if (rest := self.begin_whole(status, reason, headers, body)) is not None:
            await rest

    def begin_whole(
        self, status: int, reason: str, headers: list[tuple[str, str]], body: bytes
    ) -> Awaitable[None] | None:
        """Sends a whole response like `send`, as far as that is possible at once; returns what to await for the rest.
        Nearly every response is sent at once, and needs no coroutine."""
        if self.has_begun or (len(body) > _PIECE_BYTES and self.request.method != "HEAD"):
            return self._send_in_pieces(status, reason, headers, body)
        self.begin(status, reason, headers, len(body))
        self.is_over = True
        head, self._head = self._head, b""
        has_room = self.connection.push(head if self.request.method == "HEAD" else head + body)
        return None if has_room else self.connection.wait_room()

    async def _send_in_pieces(self, status: int, reason: str, headers: list[tuple[str, str]], body: bytes) -> None:
        if self.has_begun:
            await self.write(body)
            await self.end()
            return
        self.begin(status, reason, headers, len(body))
        for piece in pieces_of(body):
            await self.write(piece)
        self.is_over = True

    def begin(self, status: int, reason: str, headers: list[tuple[str, str]], length: int | None = None) -> None:
        """Begins a response with a body of `length` bytes (None if unknown), unless an early head was sent."""
        self.is_early = False
        if self.has_begun:
            return
        self.has_begun = True
        # The rest of an incomplete request would be taken for the next request.
        self.closes_connection = self.closes_connection or not self.request.has_arrived
        lines = [f"HTTP/1.1 {status} {reason or _REASONS.get(status, '')}\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in headers]
        if length is not None and status not in _BODILESS:
            lines.append(f"Content-Length: {length}\r\n")
        elif self._has_body(status) and self.request.version == "1.1":
            self._is_chunked = True
            lines.append("Transfer-Encoding: chunked\r\n")
        else:
            self._is_unframed = self._has_body(status)
        if self.closes_connection and status != 101:
            lines.append("Connection: close\r\n")
        lines.append("\r\n")
        self._head = _encoded("".join(lines))

    def push(self, data: bytes) -> bool:
        """Sends a piece of the body; b"" sends only the head. Returns True if there is room for more. Raises
        ConnectionResetError if the client is gone."""
        if self._is_chunked and data:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            head, self._head = self._head, b""
            data = head + data
        return self.connection.push(data)

    async def write(self, data: bytes) -> None:
        """Sends a piece like `push`, and waits until there is room for more."""
        if not self.push(data):
            await self.connection.wait_room()

    async def end(self) -> None:
        """Completes the body."""
        self.is_over = True
        if self._is_chunked:
            self._head += b"0\r\n\r\n"
            self._is_chunked = False
        if self._head and not self.push(b""):
            await self.connection.wait_room()

    async def keep_waiting(self, call: Call, headers: list[tuple[str, str]]) -> None:
        """Sends a keep-alive to a waiting client, after an early head if there is no head yet."""
        if not self.has_begun:
            call.sent_status = 200
            call.extend_client_deadline(
                call.disposition.degraded_deadline if call.disposition is not None else float("inf")
            )
            self.begin(200, "OK", [*_EARLY_HEADERS[call.is_stream], *headers])
            self.is_early = True
        await self.write(_WAIT[call.is_stream])

    async def break_off(self, last_words: bytes = b"") -> None:
        """Ends a begun response so that it cannot be taken for a complete one: closes the connection in the middle of
        the body. `last_words` are sent before that, to a client that still reads.

        An unframed body is ended by RST, unless an event has named the error: a close would be its proper end."""
        if self.connection.is_stuck:
            self.connection.abort()
            return
        if self._is_unframed and not last_words.endswith(b"\n\n"):
            sock = self.connection.transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
            self.connection.abort()
            return
        if last_words:
            with contextlib.suppress(ConnectionError):
                await self.write(last_words)
        self.connection.close()

    def send_continue(self) -> None:
        """Sends 100 Continue to a client that waits for it before it sends its body (RFC 9110, section 10.1.1)."""
        self.connection.push(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _has_body(self, status: int) -> bool:
        return status not in _BODILESS and self.request.method != "HEAD"


def bare_answer(bad: BadRequest) -> bytes:
    """Returns the response to a request that is rejected as HTTP, in a form that clients of both dialects can read."""
    error = {"type": "invalid_request_error", "message": bad.message, "code": bad.code, "param": bad.param}
    body = json.dumps({"type": "error", "error": error})
    lines = [
        f"HTTP/1.1 {bad.status} {_REASONS[bad.status]}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"x-should-retry: {'true' if bad.status in (408, 503) else 'false'}",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", body]).encode()


def uncancel() -> None:
    """Takes back the cancellation by which a drain has ended the current call, so that it can still send an error."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  # a coroutine runs in one
    task.uncancel()


def _encoded(head: str) -> bytes:
    """Returns the head as bytes. Providers' header values are latin-1 and stay byte for byte; UTF-8 is for characters
    beyond that, in names from the config."""
    try:
        return head.encode("latin-1")
    except UnicodeEncodeError:
        return head.encode()
