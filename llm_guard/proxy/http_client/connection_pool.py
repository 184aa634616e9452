"""The HTTP client: connections to upstreams, pooled by origin, kept alive, and closed at once when an exchange is
abandoned.

Owns how each origin is reached: keep-alive, name resolution and dialling. The rest of the gateway uses only
`UpstreamOrigin.send` and the `Exchange` that it returns; `proxy.http_client.connection` has the connections themselves.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import urllib.request
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

from aiohappyeyeballs import AddrInfoType, start_connection

from llm_guard.proxy.call import Exchange
from llm_guard.proxy.http_client.authorized_origin import AuthorizedOrigin
from llm_guard.proxy.http_client.connection import UpstreamConnection
from llm_guard.proxy.http_client.errors import UpstreamError, connecting_failed, unsendable
from llm_guard.proxy.http_client.forward_proxy import ProxiedOrigin, proxy_for
from llm_guard.proxy.http_client.http1 import RequestHeaders, request_head
from llm_guard.proxy.http_client.interfaces import Dialing, RequestAuthorizer
from llm_guard.proxy.request_body.interfaces import FileBody
from llm_guard.tls import system_context

_IDLE_S = 15.0
"""Idle connections are kept this long: providers close them after a minute or more, but uvicorn after 5 s, and
middleboxes at any time. A request on an older one is not worth the risk."""
_MARGIN_S = 1.0
"""A connection is closed this long before the time announced by the upstream (`Keep-Alive: timeout=`)."""
_SWEEP_S = 5.0
_MAX_IDLE = 512
_RESOLUTION_S = 30.0
_HAPPY_EYEBALLS_S = 0.25
"""Delay after which a connection attempt to the next address starts in parallel (RFC 8305, section 8)."""


class Origin:
    """Sends requests to one `https://host[:port]`, each on a connection that no other request uses meanwhile."""

    def __init__(self, url: str, living: set[UpstreamConnection], tls: ssl.SSLContext | None) -> None:
        """`living` is the set that every open connection is a member of. Raises ValueError for an invalid URL."""
        parts = urlsplit(url)
        name, default_port = parts.hostname or "", 80 if tls is None else 443
        name = name if name.isascii() else name.encode("idna").decode()
        self._living = living
        self._tls = tls
        self._name = name.rstrip(".")
        self._port = parts.port or default_port
        self._host = host_of(url)
        self._idle: dict[UpstreamConnection, None] = {}
        """Idle connections, the most recently used last."""
        self._sweeping: asyncio.TimerHandle | None = None
        self._addresses: list[AddrInfoType] = []
        self._resolved_until = 0.0
        self._resolving: asyncio.Task[None] | None = None
        self._turn = 0
        self._is_closed = False
        self.dials = 0
        """Number of connections begun since the start."""
        self._loop = asyncio.get_running_loop()

    def send(
        self,
        method: str,
        target: str,
        headers: RequestHeaders,
        body: bytes | FileBody,
        dialing: Dialing | None,
        *,
        is_repeatable: bool,
    ) -> Awaitable[Exchange]:
        """See `connection_pool.UpstreamOrigin`."""
        size = len(body) if isinstance(body, bytes) else body.size
        head, is_upgrade = request_head(method, target, self._host, headers, size), headers.is_upgrade
        # If a kept-alive connection breaks, it is unknown whether the upstream had closed it before the request: what
        # must not be sent twice gets a new connection.
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
        """Stops keeping and making connections; the caller closes those that are open."""
        self._is_closed = True
        self._idle.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._resolving is not None:
            self._resolving.cancel()

    def trust(self, tls: ssl.SSLContext) -> None:
        """Makes all further connections with these certificates; those made with others serve no further request."""
        self._tls = tls
        for connection in list(self._idle):
            self.drop(connection)
            connection.abort()

    # idle connections

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
        """Returns the most recently used idle connection, so that unneeded ones expire; None if there is none."""
        now = self._loop.time()
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.expires_at > now:
                return connection
            connection.abort()
        return None

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in [connection for connection in self._idle if connection.expires_at <= now]:
            del self._idle[connection]
            connection.abort()
        self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep) if self._idle else None

    # new connections

    async def _dial(self) -> UpstreamConnection:
        """Opens a connection. Raises UpstreamError. Leaves nothing open when cancelled."""
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
                if connection.has_transport:  # asyncio's TLS would wait for the peer, and uvloop reports nothing
                    connection.transport.abort()
                    self.remove(connection)
                else:
                    sock.close()
                raise
        except (OSError, RuntimeError, ValueError) as error:
            raise connecting_failed(error) from error
        return connection

    async def _resolve(self) -> list[AddrInfoType]:
        """Returns the addresses, rotated within each family at each call so that connections spread over them."""
        if self._loop.time() >= self._resolved_until:
            if self._resolving is None:
                self._resolving = self._loop.create_task(self._look_up())
                self._resolving.add_done_callback(_hear)
            await asyncio.shield(self._resolving)  # other connections wait for it too
        self._turn += 1
        families: dict[int, list[AddrInfoType]] = {}
        for address in self._addresses:
            families.setdefault(address[0], []).append(address)
        starts = [(family, self._turn % len(family)) for family in families.values()]
        return [address for family, start in starts for address in (*family[start:], *family[:start])]

    async def _look_up(self) -> None:
        try:
            found = await self._loop.getaddrinfo(
                self._name, self._port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
            )
            self._addresses = list(found)
            self._resolved_until = self._loop.time() + _RESOLUTION_S
        finally:
            self._resolving = None


def host_of(url: str) -> str:
    """Returns the value of the Host header for a `https://host[:port]`. Raises ValueError for an invalid URL."""
    parts = urlsplit(url)
    name = parts.hostname or ""
    name = name if name.isascii() else name.encode("idna").decode()
    host = f"[{name}]" if ":" in name else name
    port = parts.port or 0
    return host if port in (0, 443 if parts.scheme == "https" else 80) else f"{host}:{port}"


def _hear(resolving: asyncio.Task[None]) -> None:
    """Retrieves the exception, which asyncio would report if all waiting requests were cancelled meanwhile."""
    if not resolving.cancelled():
        resolving.exception()


__all__ = ["ConnectionPool", "UpstreamError"]


_GONE_WITHIN_S = 1.0


class UpstreamOrigin(Protocol):
    """Sends requests to one origin, directly or through a proxy."""

    def send(
        self,
        method: str,
        target: str,
        headers: RequestHeaders,
        body: bytes | FileBody,
        dialing: Dialing | None,
        *,
        is_repeatable: bool,
    ) -> Awaitable[Exchange]:
        """Sends a request. Returns once the head of the response has arrived.

        `target`, a path with its query, is sent as it is written. `headers` must not contain any that frame the
        request: those are added here. `dialing` is notified as the request gets its connection. A request that is not
        `is_repeatable` gets a fresh connection. Raises UpstreamError. Cancelled, it closes the connection at once.
        """


class ConnectionPool:
    """Connections to all upstreams, without a limit on their number."""

    def __init__(self) -> None:
        self._origins: dict[str, Origin] = {}
        self._proxied: dict[str, ProxiedOrigin] = {}
        self._authorized: dict[str, AuthorizedOrigin] = {}
        self._living: set[UpstreamConnection] = set()
        self._proxies = urllib.request.getproxies()
        self._tls = system_context()
        self._own_tls: dict[str, ssl.SSLContext] = {}
        """TLS contexts by upstream, for upstreams with certificates of their own."""
        self._retired: list[ProxiedOrigin] = []
        """Origins that were connected to with certificates which have changed since. Their running exchanges go on, and
        idle connections are closed after a while. The origins are few, and are kept until the gateway stops."""

    def origin(self, link: str) -> UpstreamOrigin:
        """Returns the client of one origin. `link` is `https://host[:port]`, followed by a space and the upstream's
        name if it has certificates of its own; or one that `authorize` was called with. Raises UpstreamError if it is
        not an origin."""
        return self._origins.get(link) or self._proxied.get(link) or self._authorized.get(link) or self._add(link)

    def authorize(
        self, link: str, connections: str, query: Iterable[tuple[str, str]], authorizer: RequestAuthorizer | None
    ) -> None:
        """Makes `link` lead to the connections of the link `connections`, with these parameters and credentials in
        every request."""
        host = host_of(connections.partition(" ")[0])
        self._authorized[link] = AuthorizedOrigin(partial(self.origin, connections), host, query, authorizer)

    @property
    def count(self) -> int:
        """Number of connections in use or kept alive."""
        return len(self._living) + sum(origin.count for origin in (*self._proxied.values(), *self._retired))

    def trust(self, upstream: str, tls: ssl.SSLContext) -> None:
        """Replaces the certificates of an upstream: new connections use these, and old connections take no further
        request."""
        self._own_tls[upstream] = tls
        for link, origin in self._origins.items():
            if _upstream_in(link) == upstream:
                origin.trust(tls)
        for link in [link for link in self._proxied if _upstream_in(link) == upstream]:
            self._retired.append(self._proxied.pop(link))

    def dials(self, link: str) -> int:
        """Returns how often a connection was attempted since the start, for a link of connections. Those through an
        HTTP proxy are not known, and count 0."""
        place = self._origins.get(link)
        return place.dials if place is not None else 0

    async def close(self) -> None:
        """Closes every connection."""
        for origin in self._origins.values():
            origin.close()
        for proxied in (*self._proxied.values(), *self._retired):
            await proxied.close()
        living = list(self._living)
        for connection in living:
            connection.transport.abort()
        if living:
            await asyncio.wait([connection.gone for connection in living], timeout=_GONE_WITHIN_S)

    def _add(self, link: str) -> Origin | ProxiedOrigin:
        origin, _, mark = link.partition(" ")
        if "@" in mark:
            raise unsendable("it has no credentials")  # never without those that it is meant to have
        tls = self._own_tls.get(_upstream_in(link), self._tls) if origin.startswith("https:") else None
        try:
            proxy = proxy_for(origin, self._proxies)
            if proxy is not None:
                proxied = self._proxied[link] = ProxiedOrigin(origin, proxy, tls)
                return proxied
            direct = self._origins[link] = Origin(origin, self._living, tls)
        except ValueError as error:
            raise unsendable(f"{origin} is not an origin") from error
        return direct


def _upstream_in(link: str) -> str:
    return link.partition(" ")[2]
