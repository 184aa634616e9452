"""The listener: connections of clients, how many there are, how long each may take over what it does.

Owns the limits on connections and on a request's arrival. Does not own their bytes (`gateway.client_connection`), nor
calls (`gateway.server`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from llm_guard.clock import Alarm, Clock
from llm_guard.gateway.client_connection import ClientConnection
from llm_guard.gateway.reply import Reply
from llm_guard.gateway.request import Request
from llm_guard.gateway.tls_handshake import TlsHandshake

Serve = Callable[[Request, Reply], Awaitable[None]]

_SWEEP_S = 0.5
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Seconds; connections at once."""

    max_connections: int
    head_timeout: float = 15.0
    """From the first byte of a head, or from the connection, to its last byte."""
    body_timeout: float = 60.0
    """And a second more for every 16 KiB that have come."""
    keep_alive: float = 75.0
    """A connection may be idle for so long between requests."""


class Connection(Protocol):
    """A client's, before its TLS handshake or after it."""

    due_at: float
    """When it will have taken too long over what it does."""

    @property
    def unsent_bytes(self) -> int:
        """Written, and not taken."""

    def expire(self) -> None:
        """`due_at` has come."""

    def close(self) -> None:
        """Closes the connection when what was written is out."""

    def abort(self) -> None:
        """Closes the connection at once."""


class Listener:
    """Makes a protocol for every connection, and sees to it that none is forgotten."""

    def __init__(self, serve: Serve, settings: ListenerSettings, clock: Clock) -> None:
        self.serve = serve
        self.now = clock.now()
        """Clock of the limits on arrival, as of the last sweep. It stands still with the event loop: a request that the
        gateway was too busy to accept or to read is not late."""
        self.tls: ssl.SSLContext | None = None
        """For connections from now on; None: they are plain HTTP."""
        self.idle: dict[Connection, None] = {}
        """Those without a call, the longest idle first."""
        self.failed_handshakes = 0
        """TLS handshakes that have failed."""
        self.refused = 0
        """Connections so far that found no room."""
        self._clock = clock
        self._swept_at = self.now
        self._connections: set[Connection] = set()
        self._sweeper: Alarm | None = None
        self.adopt(settings)

    def __call__(self) -> asyncio.Protocol:
        return ClientConnection(self) if self.tls is None else TlsHandshake(self, self.tls)

    @property
    def count(self) -> int:
        """Open connections."""
        return len(self._connections)

    def adopt(self, settings: ListenerSettings) -> None:
        """From now on these hold."""
        self.settings = settings
        shortest_s = min(settings.head_timeout, settings.body_timeout, settings.keep_alive)
        self._sweep_s = min(_SWEEP_S, shortest_s / 4)

    def add(self, connection: Connection) -> bool:
        """Takes a new connection on, where need be in the place of the one that has been idle for longest; returns
        whether there is room."""
        if self._sweeper is None:
            self._sweep()
        if len(self._connections) >= self.settings.max_connections:
            longest = next((each for each in self.idle if not each.unsent_bytes), None)
            if longest is None:
                self.refused += 1
                return False
            self.remove(longest)
            longest.abort()
        self._connections.add(connection)
        self.idle[connection] = None
        return True

    def remove(self, connection: Connection) -> None:
        """It is gone."""
        self._connections.discard(connection)
        self.idle.pop(connection, None)

    async def close(self, within_s: float) -> None:
        """Closes every connection: who still reads an answer, or has a call, gets `within_s` for it."""
        for connection in list(self.idle):
            connection.close()
        give_up_at = self._clock.now() + within_s
        while self._connections and self._clock.now() < give_up_at:
            await self._clock.sleep(_POLL_S)
        for connection in list(self._connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _sweep(self) -> None:
        """Ends who is over time. One timer for all: one for each would cost every call two of them."""
        swept_at, self._swept_at = self._swept_at, self._clock.now()
        self.now += min(self._swept_at - swept_at, 2 * self._sweep_s)
        self._sweeper = self._clock.call_at(self._swept_at + self._sweep_s, self._sweep)  # first: it must never end
        for connection in [each for each in self._connections if each.due_at <= self.now]:
            connection.expire()
