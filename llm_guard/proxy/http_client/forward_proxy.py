"""Connections to one origin through a forward proxy, as configured by `HTTPS_PROXY` and related variables.

Uses aiohttp's ClientSession, which supports proxies, and maps its errors to failure kinds. It costs five times as much
as `proxy.http_client.connection_pool`, which is acceptable because proxies are rare.
"""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from collections.abc import AsyncIterator, Mapping
from functools import partial
from types import SimpleNamespace
from urllib.parse import urlsplit

import aiohttp
from aiohttp import hdrs
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import _EXC_SENTINEL as _NO_CAUSE
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from llm_guard.outcome import FailureKind
from llm_guard.proxy.call import Exchange, Headers
from llm_guard.proxy.http_client.errors import (
    UpstreamError,
    connecting_failed,
    disconnected,
    malformed,
    retired,
    truncated,
    unsendable,
)
from llm_guard.proxy.http_client.http1 import RequestHeaders, request_head
from llm_guard.proxy.http_client.interfaces import Dialing, Inbox, Wire
from llm_guard.proxy.request_body.interfaces import FileBody

_STALE_WITHIN_S = 1.0
_LAST_BYTES_S = 1.0
"""Seconds an upgraded connection may take to flush what was written to it."""
_STALE = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


def proxy_for(origin: str, proxies: Mapping[str, str]) -> str | None:
    """Returns the proxy for an origin; None to connect directly. `proxies` is from `urllib.request.getproxies`."""
    parts = urlsplit(origin)
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


class ProxiedOrigin:
    """Sends requests to one origin through a proxy; has the interface of `Origin`."""

    def __init__(self, url: str, proxy: str, tls: ssl.SSLContext | None) -> None:
        self._url = url
        self._proxy = proxy
        self._pooled = _session(tls, force_close=False)
        self._unpooled = _session(tls, force_close=True)

    async def send(
        self,
        method: str,
        target: str,
        headers: RequestHeaders,
        body: bytes | FileBody,
        dialing: Dialing | None,
        *,
        is_repeatable: bool,
    ) -> Exchange:
        """See `connection_pool.UpstreamOrigin`."""
        size = len(body) if isinstance(body, bytes) else body.size
        request_head(method, target, "", headers, size)  # rejects what aiohttp would accept
        session = self._pooled if is_repeatable else self._unpooled
        if dialing is not None:
            dialing.on_dialing()  # aiohttp may have an idle connection, which shows only later
        wire = _Sending(dialing)
        try:
            response = await session.request(
                method,
                URL(self._url + target, encoded=True),
                headers=[*headers.pairs, ("Content-Length", str(size))] if size else headers.pairs,
                data=None if size == 0 else _blocks(body),  # chunked if the size is unknown
                allow_redirects=False,
                proxy=self._proxy,
                trace_request_ctx=wire,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, _STALE) and wire.is_stale():
                raise retired() from error
            raise _broken(error) from error
        return _Exchange(response)

    @property
    def count(self) -> int:
        """Number of connections in use or kept alive."""
        return _count(self._pooled) + _count(self._unpooled)

    async def close(self) -> None:
        """Closes every connection."""
        await self._pooled.close()
        await self._unpooled.close()


def _session(tls: ssl.SSLContext | None, *, force_close: bool) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=0, ttl_dns_cache=30, timeout_ceil_threshold=1e9, force_close=force_close, ssl=tls or True
    )
    # aiohttp flushes a connection before it closes it: a provider that has stopped reading would keep a cancelled
    # upload alive for ever. The factory is the only place to change that.
    connector._factory = partial(_AbortingHandler, loop=asyncio.get_running_loop())  # type: ignore[assignment]  # noqa: SLF001
    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(_on_connected)
    trace.on_connection_reuseconn.append(_on_reused)
    session = aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        skip_auto_headers=(hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE),
        trace_configs=[trace],
        max_line_size=1 << 15,
        max_field_size=1 << 15,
    )
    # aiohttp retries idempotent requests by itself; here only the attempt loop may retry, because it counts attempts.
    session._retry_connection = False  # noqa: SLF001  # no public switch
    return session


async def _blocks(body: bytes | FileBody) -> AsyncIterator[bytes]:
    if isinstance(body, bytes):
        yield body
    else:
        for block in body.blocks():
            if isinstance(block, bytes):
                yield block
            else:
                await block


def _count(session: aiohttp.ClientSession) -> int:
    connector = session.connector
    if connector is None:
        return 0
    return len(connector._acquired) + sum(map(len, connector._conns.values()))  # noqa: SLF001  # no public count


class _Exchange:
    """Adapts an aiohttp response to `proxy.call.Exchange`."""

    __slots__ = ("_response", "headers", "reason", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.reason = _readable(response.reason or "")
        self.headers: Headers = tuple((str(name), _readable(value)) for name, value in response.headers.items())

    async def read(self) -> bytes:
        content = self._response.content
        try:
            return await content.readany()
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            # aiohttp would drop what had arrived before the cut, which for a slow client is most of the body.
            if content._buffer:  # noqa: SLF001  # no public way behind the exception
                return content._read_nowait(-1)  # noqa: SLF001
            raise truncated() from error

    def abort(self) -> None:
        self._response.close()

    def take_over(self, inbox: Inbox) -> Wire:
        connection = self._response.connection
        if connection is None or connection.protocol is None or connection.transport is None:
            raise UpstreamError(FailureKind.NETWORK, "the upgraded connection was closed at once")
        connection.protocol.set_parser(inbox, inbox)
        return _Wire(connection.protocol, connection.transport)


class _Wire:
    """Writes to an upgraded connection; implements `proxy.http_client.interfaces.Wire`."""

    __slots__ = ("_protocol", "transport")

    def __init__(self, protocol: ResponseHandler, transport: asyncio.Transport) -> None:
        self._protocol = protocol
        self.transport = transport

    async def write(self, data: bytes) -> None:
        if self.transport.is_closing():
            raise ConnectionResetError("the upstream has closed the connection")
        self.transport.write(data)
        await self._protocol._drain_helper()  # noqa: SLF001  # as aiohttp's own websocket writer does


class _AbortingHandler(ResponseHandler):
    def close(self) -> None:
        if not self.upgraded:
            self.abort()
        elif (transport := self.transport) is not None:
            super().close()  # flushes, so that a WebSocket's close frame is sent
            self._loop.call_later(_LAST_BYTES_S, transport.abort)

    def set_exception(self, exc: BaseException, exc_cause: BaseException = _NO_CAUSE) -> None:
        super().set_exception(exc, exc_cause)
        # aiohttp raises the error where the head is awaited; a reader of the body would see a broken chunk only as a
        # timeout. A complete body is not affected by what comes after it.
        if self._payload is not None and not self._payload.is_eof():
            self._payload.set_exception(exc, exc_cause)


class _Sending:
    """The state of one request, as reported by aiohttp's traces."""

    def __init__(self, dialing: Dialing | None) -> None:
        self._dialing = dialing
        self._now = asyncio.get_running_loop().time
        self._reused_at: float | None = None

    def on_connected(self) -> None:
        if self._dialing is not None:
            self._dialing.on_connected()

    def on_reused(self) -> None:
        self._reused_at = self._now()
        self.on_connected()

    def is_stale(self) -> bool:
        """Returns True if a kept-alive connection ended so soon that the request was most likely never read."""
        return self._reused_at is not None and self._now() - self._reused_at < _STALE_WITHIN_S


async def _on_connected(_session: object, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.on_connected()


async def _on_reused(_session: object, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.on_reused()


def _broken(error: Exception) -> UpstreamError:
    """Maps aiohttp's errors before a response head to failure kinds."""
    match error:
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return UpstreamError(FailureKind.EGRESS, "the proxy did not connect")
        case aiohttp.ClientConnectorCertificateError():
            return connecting_failed(error.certificate_error)
        case aiohttp.ClientConnectorError():
            return connecting_failed(error.os_error)
        case aiohttp.ServerDisconnectedError():
            return disconnected(None)
        case aiohttp.ClientResponseError():
            return malformed()
        case aiohttp.ClientConnectionError() | OSError():
            return disconnected(error)
        case _:
            return unsendable(str(error))


def _readable(value: str) -> str:
    """Converts text as aiohttp has decoded it (UTF-8, other bytes as lone surrogates) to latin-1, so that its bytes can
    be written again. Replaces control characters, which aiohttp accepts, by spaces."""
    if value.isascii() and value.isprintable():
        return value
    text = value.encode("utf-8", "surrogateescape").decode("latin-1")
    return "".join(" " if char < " " or char == "\x7f" else char for char in text)
