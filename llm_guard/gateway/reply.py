"""What a client gets for one call: an answer, whole or bit by bit, or one that is broken off.

Owns how an answer is framed. Does not own what is written (`gateway.server`, `gateway.relay`), nor the connection
(`gateway.client_connection`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Protocol

from llm_guard.call import Call, Inbox
from llm_guard.gateway.asked import BadRequest
from llm_guard.gateway.request import Request

_EARLY_HEADERS = {
    True: [
        ("Content-Type", "text/event-stream; charset=utf-8"),
        ("Cache-Control", "no-cache"),
        ("X-Accel-Buffering", "no"),  # nginx would keep back what is meant to reach the client now
    ],
    False: [("Content-Type", "application/json")],
}
_WAIT = {True: b": waiting\n\n", False: b"\n"}
"""A comment; before a JSON body a blank line, as DeepSeek sends them."""
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_BODILESS = frozenset({101, 204, 304})
_PIECE_BYTES = 1 << 18
"""Larger bodies are sent in pieces: a transport copies what its socket does not take, and a client that does not read
would have a whole answer in memory twice."""


def pieces_of(body: bytes) -> Iterator[bytes]:
    """A large body in pieces, each to be sent once the client has room; a smaller one as it is."""
    if len(body) <= _PIECE_BYTES:
        yield body
        return
    for begin in range(0, len(body), _PIECE_BYTES):
        yield body[begin : begin + _PIECE_BYTES]


class Connection(Protocol):
    """What a reply needs of a client's connection."""

    transport: asyncio.Transport

    @property
    def is_stuck(self) -> bool: ...
    def push(self, data: bytes) -> bool: ...
    async def wait_room(self) -> None: ...
    def take_over(self, inbox: Inbox) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Reply:
    """The answer to one request."""

    __slots__ = (
        "_head", "_is_chunked", "closes_connection", "connection", "has_begun", "is_early", "is_over", "request",
    )  # fmt: skip

    def __init__(self, request: Request, connection: Connection) -> None:
        self.request = request
        self.connection = connection
        self.closes_connection = not request.is_keep_alive
        """The client is told to use this connection no more; to be set before the answer begins."""
        self.has_begun = False
        """It has a head: it can only go on or be broken off."""
        self.is_early = False
        """Nothing was sent but a head of our own, before anybody had answered, and words that say nothing."""
        self.is_over = False
        """The client has got it as a whole."""
        self._head = b""
        """Not sent yet: it goes out together with the first bytes of the body."""
        self._is_chunked = False

    @property
    def peer(self) -> str | None:
        """The IP address that the connection comes from; None if it has none."""
        name = self.connection.transport.get_extra_info("peername")
        return name[0] if isinstance(name, tuple) else None

    async def send(self, status: int, reason: str, headers: list[tuple[str, str]], body: bytes) -> None:
        """Sends a whole answer; behind an early head, its body."""
        if self.has_begun:
            await self.write(body)
            await self.end()
            return
        self.begin(status, reason, headers, len(body))
        if len(body) > _PIECE_BYTES and self.request.method != "HEAD":
            for piece in pieces_of(body):
                await self.write(piece)
            self.is_over = True
            return
        self.is_over = True
        head, self._head = self._head, b""
        if not self.connection.push(head if self.request.method == "HEAD" else head + body):
            await self.connection.wait_room()

    def begin(self, status: int, reason: str, headers: list[tuple[str, str]], length: int | None = None) -> None:
        """Begins an answer with a body of `length` bytes (None: that is not known), unless one was begun early."""
        self.is_early = False
        if self.has_begun:
            return
        self.has_begun = True
        # What has not come of the request would be taken for the next one.
        self.closes_connection = self.closes_connection or not self.request.has_arrived
        lines = [f"HTTP/1.1 {status} {reason or _REASONS.get(status, '')}\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in headers]
        if length is not None and status not in _BODILESS:
            lines.append(f"Content-Length: {length}\r\n")
        elif self._has_body(status) and self.request.version == "1.1":
            self._is_chunked = True
            lines.append("Transfer-Encoding: chunked\r\n")
        if self.closes_connection and status != 101:
            lines.append("Connection: close\r\n")
        lines.append("\r\n")
        self._head = _encoded("".join(lines))

    def push(self, data: bytes) -> bool:
        """Sends a piece of the body, b"" the head alone; returns whether there is room for more. Raises
        ConnectionResetError when the client is gone."""
        if self._is_chunked and data:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            head, self._head = self._head, b""
            data = head + data
        return self.connection.push(data)

    async def write(self, data: bytes) -> None:
        """As `push`; returns when there is room for more."""
        if not self.push(data):
            await self.connection.wait_room()

    async def end(self) -> None:
        """The body is whole."""
        self.is_over = True
        if self._is_chunked:
            self._head += b"0\r\n\r\n"
            self._is_chunked = False
        if self._head and not self.push(b""):
            await self.connection.wait_room()

    async def keep_waiting(self, call: Call, headers: list[tuple[str, str]]) -> None:
        """Tells a client that waits that it is not forgotten, behind a head of our own if there is none yet."""
        if not self.has_begun:
            call.sent_status = 200
            call.lift_patience(call.beyond.hurried_by if call.beyond is not None else float("inf"))
            self.begin(200, "OK", [*_EARLY_HEADERS[call.is_stream], *headers])
            self.is_early = True
        await self.write(_WAIT[call.is_stream])

    async def break_off(self, last_words: bytes = b"") -> None:
        """Ends an answer that has begun so that nobody takes it for a whole one: the connection is closed in the middle
        of the body. `last_words` are for a client that still reads."""
        if self.connection.is_stuck:
            self.connection.abort()
            return
        if last_words:
            with contextlib.suppress(ConnectionError):
                await self.write(last_words)
        self.connection.close()

    def send_continue(self) -> None:
        """The client waits to be told that its body is wanted (RFC 9110, section 10.1.1)."""
        self.connection.push(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _has_body(self, status: int) -> bool:
        return status not in _BODILESS and self.request.method != "HEAD"


def bare_answer(bad: BadRequest) -> bytes:
    """An answer to what is not a request that could be served: in a form that both dialects' clients read."""
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
    """Takes back the cancellation by which a drain has ended the current call, so that it can say its last words."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  # a coroutine runs in one
    task.uncancel()


def _encoded(head: str) -> bytes:
    """As it came: what providers write beyond ASCII is kept byte for byte. Names of ours may be anything."""
    try:
        return head.encode("latin-1")
    except UnicodeEncodeError:
        return head.encode()
