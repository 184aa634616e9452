"""A client's connection during its TLS handshake; then a `ClientConnection` takes its place.

The connection counts against the listener's limit from its beginning: in asyncio's own TLS servers it counts only after
the handshake, so that half-open connections would be unbounded. Until its first bytes it holds nothing but its socket.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

import structlog

from llm_guard.proxy.http_server.connection import ClientConnection, Listener
from llm_guard.proxy.http_server.response_writer import bare_answer
from llm_guard.proxy.request_body.fields import BadRequest

_log = structlog.get_logger("llm_guard.proxy.http_server.tls_handshake")

HANDSHAKE_S = 10.0
_CLOSE_S = 5.0
"""Seconds for the peer to confirm the TLS shutdown."""
_IS_HANDSHAKE = 0x16
"""The first byte of a TLS connection (RFC 8446, section 5.1)."""
_SLICE_BYTES = 1 << 14
_PLAIN = BadRequest(400, "tls_required", "this port speaks TLS: write https:// instead of http://")


class TlsHandshake(asyncio.Protocol):
    """The protocol of one connection: first below TLS, then above it until the `ClientConnection` takes over."""

    __slots__ = ("_context", "_early", "_is_lost", "_listener", "_task", "_transport", "due_at", "unsent_bytes")

    def __init__(self, listener: Listener, *, context: ssl.SSLContext) -> None:
        self._listener = listener
        self._context = context
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        """Received bytes not yet processed: before the handshake they are for TLS, after it for `ClientConnection`."""
        self._is_lost = False
        self.due_at = float("inf")
        self.unsent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._listener.add(self):
            self.due_at = self._listener.now + self._limit_s
        else:
            self._transport.abort()  # before the handshake the client could not read a response

    def data_received(self, data: bytes) -> None:
        if self._task is not None:
            self._early.append(data)
        elif data[0] == _IS_HANDSHAKE:
            self._early.append(data)
            self._transport.pause_reading()
            self._task = asyncio.get_running_loop().create_task(self._shake_hands())
        else:
            self._transport.write(bare_answer(_PLAIN))
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._is_lost = True
        self._listener.remove(self)
        self.due_at = float("inf")

    def expire(self) -> None:
        """Closes the connection, because `due_at` has passed."""
        self.abort()

    def close(self) -> None:
        """Closes the connection at once: nothing was written that could be lost."""
        self.abort()

    def abort(self) -> None:
        """Closes the connection at once."""
        self._transport.abort()

    @property
    def _limit_s(self) -> float:
        return min(HANDSHAKE_S, self._listener.settings.head_timeout)

    async def _shake_hands(self) -> None:
        loop = asyncio.get_running_loop()
        upgrading = loop.create_task(
            loop.start_tls(
                self._transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._limit_s,
                ssl_shutdown_timeout=_CLOSE_S,
            )
        )
        loop.call_soon(loop.call_soon, self._feed)
        try:
            transport = await upgrading
        except (OSError, RuntimeError) as error:  # RuntimeError: the connection was closed meanwhile
            _log.debug("a TLS handshake failed", reason=getattr(error, "reason", None) or type(error).__name__)
            self._listener.failed_handshakes += 1
            self._transport.abort()
            self.connection_lost(None)
            return
        self._listener.remove(self)
        if transport is not None and not self._is_lost and not transport.is_closing():
            self._hand_over(transport)

    def _feed(self) -> None:
        """Passes the bytes that came before the handshake to TLS. By now `start_tls` has replaced this protocol with
        its own and connected it, and the loop has not read from the socket since."""
        tls = self._transport.get_protocol()
        if tls is self:
            return  # `start_tls` has failed at once
        received, self._early = b"".join(self._early), []
        buffered = cast("asyncio.BufferedProtocol", tls)
        for start in range(0, len(received), _SLICE_BYTES):
            part = received[start : start + _SLICE_BYTES]
            memoryview(buffered.get_buffer(len(part)))[: len(part)] = part
            buffered.buffer_updated(len(part))

    def _hand_over(self, transport: asyncio.Transport) -> None:
        connection = ClientConnection(self._listener)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        for data in self._early:
            connection.data_received(data)
