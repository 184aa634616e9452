"""The HTTP client: connections to upstreams, pooled, kept alive, and closed at once when an exchange is abandoned.

Owns how each origin is reached. The rest of the gateway uses only `UpstreamOrigin.send` and the `Exchange` that it
returns.
"""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Protocol

from llm_guard.proxy.call import Exchange
from llm_guard.proxy.http_client.authorized_origin import AuthorizedOrigin
from llm_guard.proxy.http_client.connection import UpstreamConnection
from llm_guard.proxy.http_client.errors import UpstreamError, unsendable
from llm_guard.proxy.http_client.forward_proxy import ProxiedOrigin, proxy_for
from llm_guard.proxy.http_client.http1 import RequestHeaders
from llm_guard.proxy.http_client.interfaces import Dialing, RequestAuthorizer
from llm_guard.proxy.http_client.origin_pool import Origin, host_of
from llm_guard.proxy.request_body.interfaces import FileBody
from llm_guard.tls import system_context

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
