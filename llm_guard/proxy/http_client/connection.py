"""One connection to an upstream, as an asyncio protocol: one exchange at a time, with back-pressure.

An exchange is a request, and its response's head and body. It keeps the unread rest of the body, so that the connection
can already serve the next one. `proxy.http_client.http1` handles HTTP, `proxy.http_client.connection_pool` makes and
keeps connections.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Protocol

import httptools

from llm_guard.outcome import FailureKind
from llm_guard.proxy.call import Headers
from llm_guard.proxy.http_client.errors import UpstreamError, disconnected, malformed, retired, truncated, unsendable
from llm_guard.proxy.http_client.http1 import ResponseParser
from llm_guard.proxy.http_client.interfaces import Inbox, Wire
from llm_guard.proxy.kept_errors import raisable
from llm_guard.proxy.request_body.interfaces import Block, FileBody
from llm_guard.proxy.wakeup import Wakeup


class UpstreamExchange:
    """Implements `proxy.call.Exchange` once `status` is not 0."""

    __slots__ = ("_connection", "_rest", "error", "headers", "reason", "status")

    def __init__(self, connection: UpstreamConnection) -> None:
        self.status = 0
        self.reason = ""
        self.headers: Headers = ()
        self.error: UpstreamError | None = None
        """The error that broke the exchange, if any."""
        self._connection: UpstreamConnection | None = connection
        """Its connection; None once the exchange is over."""
        self._rest = b""
        """Bytes that were unread when the exchange ended."""

    async def read(self) -> bytes:
        """Returns what has arrived; b"" at a clean end. Raises UpstreamError, after all bytes before the cut."""
        while (connection := self._connection) is not None:
            pieces = connection.pieces
            if pieces:
                data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                pieces.clear()
                connection.unread = 0
                if connection.is_paused:
                    connection.resume()
                return data
            await connection.arrival
        rest, self._rest = self._rest, b""
        if not rest and self.error is not None:
            raise raisable(self.error)
        return rest

    def abort(self) -> None:
        """Closes the connection now. Does nothing after a clean end: the connection is back in the pool."""
        if (connection := self._connection) is not None:
            self.end(b"", truncated())
            connection.abort()

    def take_over(self, inbox: Inbox) -> Wire:
        """Sends all further bytes to `inbox`, after an upgrade. Raises UpstreamError if the connection is gone."""
        connection = self._connection
        if connection is None or connection.transport.is_closing():
            raise UpstreamError(FailureKind.NETWORK, "the upgraded connection was closed at once")
        connection.take_over(inbox)
        return connection

    def end(self, rest: bytes, error: UpstreamError | None) -> None:
        """Ends the exchange with its unread bytes; `error` is None if the response is complete."""
        self._connection = None
        self._rest = rest
        self.error = error


_SMALL_BODY_BYTES = 1 << 16
"""Bodies up to this size are sent with the head in one write; larger ones block by block."""
_BLOCK_BYTES = 1 << 18
_UNREAD_BYTES = 1 << 16
"""With more than this unread, the connection stops reading from the upstream."""
_STALE_WITHIN_S = 1.0
_LAST_BYTES_S = 1.0
"""Seconds an upgraded connection may take to flush what was written to it."""


class ConnectionOwner(Protocol):
    """The pool that a connection belongs to."""

    def add(self, connection: UpstreamConnection) -> None:
        """Called when the connection is established."""

    def keep(self, connection: UpstreamConnection, keep_alive_s: int | None) -> None:
        """Called when an exchange is over and another may follow, within `keep_alive_s` if the upstream announced
        it."""

    def drop(self, connection: UpstreamConnection) -> None:
        """Called when no other exchange may follow."""

    def remove(self, connection: UpstreamConnection) -> None:
        """Called when the connection is closed."""


class UpstreamConnection(asyncio.Protocol):
    """The protocol of one connection, and its `Wire` once it is upgraded."""

    __slots__ = (
        "_drained", "_exchange", "_inbox", "_is_full", "_is_pumping", "_is_reused", "_is_upgraded", "_keeper", "_loop",
        "_reader", "_taken_at", "_unsent", "arrival", "expires_at", "gone", "has_transport", "is_paused", "pieces",
        "tls", "transport", "unread",
    )  # fmt: skip

    def __init__(self, keeper: ConnectionOwner, tls: ssl.SSLContext | None = None) -> None:
        self._keeper = keeper
        self.tls = tls
        """TLS context that it was made with; None for plain TCP."""
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.has_transport = False
        """True if it was ever connected."""
        self.expires_at = 0.0
        """Loop time until which it may stay idle."""
        self._reader = ResponseParser()
        self.pieces = self._reader.pieces
        """Unread pieces of a body, or of what follows an upgrade."""
        self.unread = 0
        """Bytes of any kind received since the last read."""
        self.is_paused = False
        """True while reading from the upstream is paused, because the response is not being read."""
        self._exchange: UpstreamExchange | None = None
        self._taken_at = 0.0
        self._is_reused = self._is_upgraded = False
        self.arrival = Wakeup(self._loop)
        """Awaited by the task that reads the response, until something has arrived or the exchange is over."""
        self._unsent: Iterator[Block | memoryview] | None = None
        """Unsent blocks of a large body."""
        self._is_full = self._is_pumping = False
        self._drained: asyncio.Future[None] | None = None
        self._inbox: Inbox | None = None
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is closed."""

    # the gateway's side

    async def send(self, head: bytes, body: bytes | FileBody, *, is_head: bool, is_upgrade: bool) -> UpstreamExchange:
        """Sends a request; returns when the response head has arrived. Raises UpstreamError. Closes when cancelled."""
        exchange = self._exchange = UpstreamExchange(self)
        self._reader.expect(is_head=is_head, is_upgrade=is_upgrade)
        self._taken_at = self._loop.time()
        self.unread = 0
        if self.transport.is_closing():
            self._fail(self._broken(exchange, None))
        elif isinstance(body, bytes) and len(body) <= _SMALL_BODY_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self._unsent = _blocks(body)
            self._pump()
        try:
            while not exchange.status:
                if exchange.error is not None:
                    raise raisable(exchange.error)
                await self.arrival
        except asyncio.CancelledError:
            exchange.abort()
            raise
        return exchange

    def resume(self) -> None:
        """Resumes reading, after what had arrived was taken."""
        self.is_paused = False
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def abort(self) -> None:
        """Closes at once without flushing: an upstream that has stopped reading would keep a cancelled upload alive for
        ever. An upgraded connection is flushed, so that a WebSocket's close frame is sent."""
        self._exchange = self._unsent = None
        if self._is_upgraded:
            self.transport.close()
            self._loop.call_later(_LAST_BYTES_S, self.transport.abort)
        else:
            self.transport.abort()

    def take_over(self, inbox: Inbox) -> None:
        """Sends all received and further bytes to `inbox`, after an upgrade."""
        self._inbox = inbox
        for piece in self.pieces:
            inbox.feed_data(piece)
        self.pieces.clear()
        self.resume()

    async def write(self, data: bytes) -> None:
        """Writes; waits while the upstream's buffer is full. Raises ConnectionResetError if the upstream is gone."""
        if self.transport.is_closing():
            raise ConnectionResetError("the upstream has closed the connection")
        self.transport.write(data)
        if self._is_full:
            self._drained = self._loop.create_future()
            await self._drained

    # the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a stream's transport is one
        self.has_transport = True
        self._keeper.add(self)

    def data_received(self, data: bytes) -> None:
        self._receive(data)
        self.arrival.wake()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error)
        if self._inbox is not None:
            self._inbox.feed_eof()
        self._note_drained()
        self._keeper.remove(self)
        self.gone.set_result(None)
        # Parser and reader reference each other: breaking the cycle saves the garbage collector work.
        self._reader.parser = None  # type: ignore[assignment]

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._note_drained()
        if not self._is_pumping:
            self._pump()

    # the response

    def _receive(self, data: bytes) -> None:
        exchange, reader = self._exchange, self._reader
        if exchange is None:
            self._receive_unasked(data)
            return
        self.unread += len(data)
        try:
            reader.feed(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not reader.is_complete:
                self._fail(truncated() if exchange.status else malformed(), error)
                return
            reader.is_kept = False  # a complete response is not affected by what comes after it
        if not exchange.status:
            self._note_head(exchange)
        if reader.is_complete:
            self._complete(exchange)
        elif self.unread > _UNREAD_BYTES:
            self._hold_back(exchange)

    def _note_head(self, exchange: UpstreamExchange) -> None:
        """Handles a head that may be complete: the response's, or that of an informational response before it."""
        if self._reader.status:
            self._begin(exchange)
        elif self._reader.has_interim:
            self._reader.has_interim = False
            self.unread = 0

    def _begin(self, exchange: UpstreamExchange) -> None:
        reader = self._reader
        exchange.status, exchange.reason, exchange.headers = reader.status, reader.reason, reader.headers
        if reader.status >= 400 and self._unsent is not None:
            # An upstream that refuses a body does not need the rest, and a failing write would lose the response.
            self._unsent = None
            reader.is_kept = False

    def _complete(self, exchange: UpstreamExchange) -> None:
        """Handles a complete response: the connection is free for the next exchange, even if the body is still
        unread."""
        reader, pieces = self._reader, self.pieces
        exchange.end(b"".join(pieces), None)
        pieces.clear()
        self._exchange = None
        if reader.is_kept and self._unsent is None and not self._is_full:
            self._is_reused = True
            self._keeper.keep(self, reader.keep_alive_s)
        else:
            self.abort()

    def _hold_back(self, exchange: UpstreamExchange) -> None:
        if not self.pieces:  # a head, trailers or chunk extensions without end
            self._fail(truncated() if exchange.status else malformed())
        elif not self.is_paused:
            self.is_paused = True
            self.transport.pause_reading()

    def _receive_unasked(self, data: bytes) -> None:
        if self._inbox is not None:
            self._inbox.feed_data(data)
        elif self._is_upgraded:
            self.pieces.append(data)
        else:  # unsolicited data would be taken for the response to the next request
            self._keeper.drop(self)
            self.abort()

    def _upgrade(self, rest: bytes) -> None:
        """Stops HTTP after an upgrade; reads nothing more until `take_over`."""
        self._exchange = None
        self._is_upgraded = self.is_paused = True
        self.transport.pause_reading()
        self.pieces.append(rest)

    def _end(self, error: Exception | None) -> None:
        """Handles the end of what the upstream sends."""
        exchange = self._exchange
        if exchange is None:
            self._keeper.drop(self)
        elif error is None and exchange.status and not self._reader.is_framed:
            self._reader.is_kept = False
            self._complete(exchange)
            self.arrival.wake_soon()
        else:
            self._fail(self._broken(exchange, error), error)

    def _broken(self, exchange: UpstreamExchange, error: Exception | None) -> UpstreamError:
        if exchange.status:
            return truncated()
        is_soon = self._loop.time() - self._taken_at < _STALE_WITHIN_S
        return retired() if self._is_reused and is_soon and not self.unread else disconnected(error)

    def _fail(self, error: UpstreamError, cause: Exception | None = None) -> None:
        exchange = self._exchange
        assert exchange is not None  # noqa: S101  # called only during an exchange
        error.__cause__ = cause
        exchange.end(b"".join(self.pieces), error)
        self.pieces.clear()
        self.abort()
        self.arrival.wake_soon()

    def _note_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _pump(self) -> None:
        """Writes one block of a large body. The next one follows in the loop's next iteration, so that other tasks run
        in between, or when more of the body has arrived."""
        self._is_pumping = False
        if self._unsent is None or self._is_full:
            return
        try:
            block = next(self._unsent, None)
        except OSError as error:
            self._fail(unsendable(str(error)), error)
            return
        if block is None:
            self._unsent = None
            return
        self._is_pumping = True
        if isinstance(block, asyncio.Future):
            block.add_done_callback(self._go_on)
        else:
            self.transport.write(block)
            self._loop.call_soon(self._pump)

    def _go_on(self, _arrived: asyncio.Future[None]) -> None:
        self._pump()


def _blocks(body: bytes | FileBody) -> Iterator[Block | memoryview]:
    """Yields a body with its framing: by length, or chunked if the length is unknown. Raises OSError if the body does
    not have its announced length."""
    if isinstance(body, bytes):
        view = memoryview(body)
        yield from (view[at : at + _BLOCK_BYTES] for at in range(0, len(view), _BLOCK_BYTES))
    elif body.size is None:
        for block in body.blocks():
            yield b"%x\r\n%b\r\n" % (len(block), block) if isinstance(block, bytes) else block
        yield b"0\r\n\r\n"
    else:
        yield from _measured(body.blocks(), body.size)


def _measured(blocks: Iterator[Block], size: int) -> Iterator[Block]:
    left = size
    for block in blocks:
        if isinstance(block, bytes):
            left -= len(block)
            if left < 0:
                break
        yield block
    if left:
        raise OSError("the spooled body's file has changed")
