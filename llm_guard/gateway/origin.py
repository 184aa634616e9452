"""The connections to one origin: those that idle, and how new ones are made.

Owns keep-alive, name resolution and dialling. Does not own what passes over a connection
(`gateway.upstream_connection`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable
from urllib.parse import urlsplit

from aiohappyeyeballs import AddrInfoType, start_connection

from llm_guard.call import Dialing, Exchange
from llm_guard.gateway.request_head import request_head
from llm_guard.gateway.upstream_connection import UpstreamConnection
from llm_guard.gateway.upstream_error import connecting_failed
from llm_guard.request_body import FileBody

_IDLE_S = 15.0
"""Providers keep an idle connection for a minute and more, but uvicorn for 5 s, and middleboxes for as long as they
like: what is older is not worth the risk of a request on it."""
_MARGIN_S = 1.0
"""A connection is given up so long before the upstream has said that it would close it (`Keep-Alive: timeout=`)."""
_SWEEP_S = 5.0
_MAX_IDLE = 512
_RESOLUTION_S = 30.0
_HAPPY_EYEBALLS_S = 0.25
"""RFC 8305, section 8: how long one address is given before the next is tried beside it."""


class Origin:
    """One `https://host[:port]`: sends requests there, each on a connection that nobody else uses."""

    def __init__(self, url: str, living: set[UpstreamConnection], tls: ssl.SSLContext | None) -> None:
        """`living` has every connection from its beginning to its end. Raises ValueError."""
        parts = urlsplit(url)
        name, default_port = parts.hostname or "", 80 if tls is None else 443
        name = name if name.isascii() else name.encode("idna").decode()
        self._living = living
        self._tls = tls
        self._name = name.rstrip(".")
        self._port = parts.port or default_port
        self._host = f"[{name}]" if ":" in name else name
        if self._port != default_port:
            self._host += f":{self._port}"
        self._idle: dict[UpstreamConnection, None] = {}
        """The one that was used last stands last."""
        self._sweeping: asyncio.TimerHandle | None = None
        self._addresses: list[AddrInfoType] = []
        self._resolved_until = 0.0
        self._resolving: asyncio.Task[None] | None = None
        self._turn = 0
        self._is_closed = False
        self.dials = 0
        """Connections begun since the start."""
        self._loop = asyncio.get_running_loop()

    def send(
        self,
        method: str,
        target: str,
        headers: list[tuple[str, str]],
        body: bytes | FileBody,
        dialing: Dialing | None,
        *,
        is_repeatable: bool,
    ) -> Awaitable[Exchange]:
        """See `Connections.send`."""
        size = len(body) if isinstance(body, bytes) else body.size
        head, is_upgrade = request_head(method, target, self._host, headers, size)
        # On a kept-alive connection that breaks, nobody knows whether the upstream had closed it before: what must not
        # be sent twice gets a fresh one.
        connection = self._try_take() if is_repeatable else None
        if connection is None:
            return self._send_fresh(head, body, dialing, is_head=method == "HEAD", is_upgrade=is_upgrade)
        if dialing is not None:
            dialing.on_connected()
        return connection.send(head, body, is_head=method == "HEAD", is_upgrade=is_upgrade)

    async def _send_fresh(
        self, head: bytes, body: bytes | FileBody, dialing: Dialing | None, *, is_head: bool, is_upgrade: bool
    ) -> Exchange:
        if dialing is not None:
            dialing.on_dialing()
        connection = await self._dial()
        if dialing is not None:
            dialing.on_connected()
        return await connection.send(head, body, is_head=is_head, is_upgrade=is_upgrade)

    def close(self) -> None:
        """Keeps no connection any more, and makes none; those that there are, are the caller's to close."""
        self._is_closed = True
        self._idle.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._resolving is not None:
            self._resolving.cancel()

    def trust(self, tls: ssl.SSLContext) -> None:
        """From now on connections are made with these certificates, and those made with others serve no further
        request."""
        self._tls = tls
        for connection in list(self._idle):
            self.drop(connection)
            connection.abort()

    # what is kept

    def add(self, connection: UpstreamConnection) -> None:
        self._living.add(connection)
        if self._is_closed:
            connection.abort()

    def keep(self, connection: UpstreamConnection, keep_alive_s: int | None) -> None:
        idle_s = _IDLE_S if keep_alive_s is None else min(_IDLE_S, keep_alive_s - _MARGIN_S)
        if idle_s <= 0 or len(self._idle) >= _MAX_IDLE or self._is_closed or connection.tls is not self._tls:
            connection.abort()
            return
        connection.expires_at = self._loop.time() + idle_s
        self._idle[connection] = None
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep)

    def drop(self, connection: UpstreamConnection) -> None:
        self._idle.pop(connection, None)

    def remove(self, connection: UpstreamConnection) -> None:
        self._idle.pop(connection, None)
        self._living.discard(connection)

    def _try_take(self) -> UpstreamConnection | None:
        """The one that was used last: the others may then grow old."""
        now = self._loop.time()
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.expires_at > now:
                return connection
            connection.abort()
        return None

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in [each for each in self._idle if each.expires_at <= now]:
            del self._idle[connection]
            connection.abort()
        self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep) if self._idle else None

    # what is new

    async def _dial(self) -> UpstreamConnection:
        """Raises UpstreamError. Cancelled, it leaves nothing behind."""
        self.dials += 1
        try:
            addresses = await self._resolve()
            sock = await start_connection(addresses, happy_eyeballs_delay=_HAPPY_EYEBALLS_S, loop=self._loop)
            connection = UpstreamConnection(self, self._tls)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                await self._loop.create_connection(
                    lambda: connection,
                    sock=sock,
                    ssl=connection.tls,
                    server_hostname=self._name if connection.tls is not None else None,
                )
            except BaseException:
                if connection.has_transport:  # asyncio's TLS would wait for its peer, and uvloop tells nobody
                    connection.transport.abort()
                    self.remove(connection)
                else:
                    sock.close()
                raise
        except (OSError, RuntimeError, ValueError) as error:
            raise connecting_failed(error) from error
        return connection

    async def _resolve(self) -> list[AddrInfoType]:
        """The addresses, each family beginning with another one every time, so that connections spread over them."""
        if self._loop.time() >= self._resolved_until:
            if self._resolving is None:
                self._resolving = self._loop.create_task(self._look_up())
                self._resolving.add_done_callback(_hear)
            await asyncio.shield(self._resolving)  # others wait for it too
        self._turn += 1
        families: dict[int, list[AddrInfoType]] = {}
        for address in self._addresses:
            families.setdefault(address[0], []).append(address)
        starts = [(each, self._turn % len(each)) for each in families.values()]
        return [address for each, start in starts for address in (*each[start:], *each[:start])]

    async def _look_up(self) -> None:
        try:
            found = await self._loop.getaddrinfo(
                self._name, self._port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
            )
            self._addresses = list(found)
            self._resolved_until = self._loop.time() + _RESOLUTION_S
        finally:
            self._resolving = None


def _hear(resolving: asyncio.Task[None]) -> None:
    """Everybody who waited may have left: the failure is nobody's then."""
    if not resolving.cancelled():
        resolving.exception()
