"""A client's connection until its TLS handshake is over; then a `ClientConnection` takes its place.

Owns what a handshake may take. It counts among the listener's connections from its beginning: in asyncio's own TLS
servers a connection counts only after the handshake, so that a crowd of half-open ones would have no bound.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import structlog

from llm_guard.gateway.client_connection import ClientConnection

if TYPE_CHECKING:
    from llm_guard.gateway.listener import Listener

_log = structlog.get_logger("llm_guard.gateway.tls_handshake")

HANDSHAKE_S = 10.0
_CLOSE_S = 5.0
"""How long the peer may take to answer that the connection ends."""


class TlsHandshake(asyncio.Protocol):
    """The protocol of one connection, at first below TLS, then above it until the client's protocol takes over."""

    __slots__ = ("_context", "_early", "_is_lost", "_listener", "_task", "_transport", "due_at", "unsent_bytes")

    def __init__(self, listener: Listener, context: ssl.SSLContext) -> None:
        self._listener = listener
        self._context = context
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        """What the client has sent in the same packet as the end of its handshake."""
        self._is_lost = False
        self.due_at = float("inf")
        self.unsent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if not self._listener.add(self):
            self._transport.abort()  # before the handshake no answer could be read
            return
        limit_s = min(HANDSHAKE_S, self._listener.settings.head_timeout)
        self.due_at = self._listener.now + limit_s
        self._transport.pause_reading()  # what comes is for TLS
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(limit_s))

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._is_lost = True
        self._listener.remove(self)
        self.due_at = float("inf")

    def expire(self) -> None:
        """`due_at` has come."""
        self.abort()

    def close(self) -> None:
        """As `abort`: nothing was written that could be lost."""
        self.abort()

    def abort(self) -> None:
        """Closes the connection at once."""
        self._transport.abort()

    async def _shake_hands(self, limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            transport = await loop.start_tls(
                self._transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=limit_s,
                ssl_shutdown_timeout=_CLOSE_S,
            )
        except (OSError, RuntimeError) as error:  # RuntimeError: uvloop, where the connection has gone meanwhile
            _log.debug("a TLS handshake failed", why=getattr(error, "reason", None) or type(error).__name__)
            self._transport.abort()
            self.connection_lost(None)
            return
        self._listener.remove(self)
        if transport is None or self._is_lost or transport.is_closing():
            return
        self._begin(transport)

    def _begin(self, transport: asyncio.Transport) -> None:
        connection = ClientConnection(self._listener)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        for data in self._early:
            connection.data_received(data)
