"""The listener: client connections, their number, and the deadline of each.

Owns the limits on connections and on the arrival of requests. Bytes are handled in `proxy.http_server.connection`,
calls in `proxy.handler`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from llm_guard.clock import Alarm, Clock
from llm_guard.proxy.http_server.connection import ClientConnection
from llm_guard.proxy.http_server.request import Request
from llm_guard.proxy.http_server.response_writer import ResponseWriter

Serve = Callable[[Request, ResponseWriter], Awaitable[None]]

_SWEEP_S = 0.5
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Limits of a listener: in seconds, or connections at once."""

    max_connections: int
    head_timeout: float = 15.0
    """Time from the first byte of a head, or from the connection, to its last byte."""
    body_timeout: float = 60.0
    """Time for a body, plus one second for every 16 KiB received."""
    keep_alive: float = 75.0
    """How long a connection may be idle between requests."""


class Mounts:
    """Serves the paths below some first segments differently from all others."""

    def __init__(self, serve: Serve, mounted: Serve, roots: Iterable[str]) -> None:
        """`mounted` serves the `roots` (`/health`) and what is below them, and `/` if it is one of them; `serve` all
        other paths."""
        self._serve = serve
        self._mounted = dict.fromkeys(roots, mounted)

    def serve(self, request: Request, reply: ResponseWriter) -> Awaitable[None]:
        path = request.path
        end = path.find("/", 1)
        return self._mounted.get(path[:end] if end > 1 else path, self._serve)(request, reply)


class AcceptedConnection(Protocol):
    """A client's connection, before or after its TLS handshake."""

    due_at: float
    """When the current step has taken too long."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and not yet accepted by the client."""

    def expire(self) -> None:
        """Handles a deadline that has passed: `due_at`."""

    def close(self) -> None:
        """Closes the connection once all written bytes are sent."""

    def abort(self) -> None:
        """Closes the connection at once."""


class Listener:
    """Creates a protocol for every connection, and ends connections that are over their deadline."""

    def __init__(self, serve: Serve, settings: ListenerSettings, clock: Clock) -> None:
        self.serve = serve
        self.now = clock.now()
        """Clock of the arrival limits, as of the last sweep. It stands still with the event loop: a request that the
        gateway was too busy to accept or to read is not late."""
        self._tls: Callable[[Listener], asyncio.Protocol] | None = None
        self.idle: dict[AcceptedConnection, None] = {}
        """Connections without a call, the longest idle first."""
        self.failed_handshakes = 0
        """Number of failed TLS handshakes."""
        self.refused = 0
        """Number of connections that found no room."""
        self._clock = clock
        self._swept_at = self.now
        self._connections: set[AcceptedConnection] = set()
        self._sweeper: Alarm | None = None
        self.adopt(settings)

    def __call__(self) -> asyncio.Protocol:
        return ClientConnection(self) if self._tls is None else self._tls(self)

    @property
    def has_tls(self) -> bool:
        """True if new connections begin with a TLS handshake."""
        return self._tls is not None

    def use_tls(self, handshake: Callable[[Listener], asyncio.Protocol] | None) -> None:
        """Sets what creates the protocol of a new TLS connection; None: plain HTTP."""
        self._tls = handshake

    @property
    def count(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def adopt(self, settings: ListenerSettings) -> None:
        """Applies new limits."""
        self.settings = settings
        shortest_s = min(settings.head_timeout, settings.body_timeout, settings.keep_alive)
        self._sweep_s = min(_SWEEP_S, shortest_s / 4)

    def add(self, connection: AcceptedConnection) -> bool:
        """Adds a new connection, if need be in place of the one that has been idle longest. Returns whether there is
        room."""
        if self._sweeper is None:
            self._sweep()
        if len(self._connections) >= self.settings.max_connections:
            longest = next((idle for idle in self.idle if not idle.unsent_bytes), None)
            if longest is None:
                self.refused += 1
                return False
            self.remove(longest)
            longest.abort()
        self._connections.add(connection)
        self.idle[connection] = None
        return True

    def remove(self, connection: AcceptedConnection) -> None:
        """Removes a connection that is gone."""
        self._connections.discard(connection)
        self.idle.pop(connection, None)

    async def close(self, within_s: float) -> None:
        """Closes every connection. Those that still send a response, or have a call, get `within_s` for it."""
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
        """Ends connections that are over their deadline. One timer for all: one per connection would cost every call
        two timers."""
        swept_at, self._swept_at = self._swept_at, self._clock.now()
        self.now += min(self._swept_at - swept_at, 2 * self._sweep_s)
        self._sweeper = self._clock.call_at(self._swept_at + self._sweep_s, self._sweep)  # first: it must never end
        for connection in [connection for connection in self._connections if connection.due_at <= self.now]:
            connection.expire()
