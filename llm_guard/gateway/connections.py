"""The HTTP client: connections to upstreams, pooled, kept alive, and closed at once when an exchange is given up.

Owns aiohttp's ClientSession and how its errors become failure kinds. All that the rest of the gateway knows of it is
`send` and the `Exchange` that it returns, so that a leaner client can take its place.
"""

from __future__ import annotations

import asyncio
import errno
import io
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import aiohttp
from aiohttp import hdrs
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import _EXC_SENTINEL as _NO_CAUSE
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from llm_guard.call import Exchange, Headers, Inbox, Wire
from llm_guard.outcome import FailureKind
from llm_guard.policy.classify import classify_network

_LARGE_BODY_BYTES = 1 << 16
_STALE_WITHIN_S = 1.0
_LAST_BYTES_S = 1.0
"""How long an upgraded connection may take to send what was written to it."""
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOMEM, errno.ENOBUFS})
"""Errors of connecting that say something about this machine, not about the upstream."""
_STALE = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


class UpstreamError(Exception):
    """An exchange that broke."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class Connections:
    """Connections to all upstreams, without a limit of their own on their number."""

    def __init__(self) -> None:
        self._pooled = _session(force_close=False)
        self._unpooled = _session(force_close=True)

    async def send(
        self,
        method: str,
        url: str,
        headers: list[tuple[str, str]],
        body: bytes,
        on_connected: Callable[[], None],
        *,
        is_repeatable: bool,
    ) -> Exchange:
        """Sends a request; returns when the head of the answer is here.

        `url` goes out as it is written. `on_connected` is called when a connection is there, before the request is
        sent. Raises UpstreamError. Cancelled, it closes the connection at once.
        """
        # On a kept-alive connection that breaks, nobody knows whether the provider had closed it before: what must not
        # be sent twice gets a connection of its own.
        session = self._pooled if is_repeatable else self._unpooled
        wire = _Sending(on_connected)
        try:
            response = await session.request(
                method,
                URL(url, encoded=True),
                headers=headers,
                data=io.BytesIO(body) if len(body) > _LARGE_BODY_BYTES else body or None,
                allow_redirects=False,
                trace_request_ctx=wire,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, _STALE) and wire.is_stale():
                raise UpstreamError(FailureKind.RETIRED, "it had closed the kept-alive connection") from error
            raise _broken(error) from error
        return _Exchange(response)

    @property
    def count(self) -> int:
        """Connections in use or kept alive."""
        return _count(self._pooled) + _count(self._unpooled)

    async def close(self) -> None:
        """Closes every connection."""
        await self._pooled.close()
        await self._unpooled.close()


def _session(*, force_close: bool) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=30, timeout_ceil_threshold=1e9, force_close=force_close)
    # aiohttp flushes a connection before it closes it: a provider that has stopped reading would keep a cancelled
    # upload alive for ever. The factory is the only place to say otherwise.
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
    # aiohttp sends an idempotent request twice by itself; here the attempt loop counts what is sent.
    session._retry_connection = False  # noqa: SLF001  # no public switch
    return session


def _count(session: aiohttp.ClientSession) -> int:
    connector = session.connector
    assert connector is not None  # noqa: S101  # until it is closed
    return len(connector._acquired) + sum(map(len, connector._conns.values()))  # noqa: SLF001  # no count of its own


class _Exchange:
    """An aiohttp response as the gateway's `Exchange`."""

    __slots__ = ("_response", "headers", "reason", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.reason = response.reason or ""
        self.headers: Headers = tuple((str(name), _readable(value)) for name, value in response.headers.items())

    async def read(self) -> bytes:
        content = self._response.content
        try:
            return await content.readany()
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            # aiohttp would drop what came before the cut, which for a slow client is most of it.
            if content._buffer:  # noqa: SLF001  # no public way behind the exception
                return content._read_nowait(-1)  # noqa: SLF001
            raise UpstreamError(FailureKind.TRUNCATED, "the answer was cut") from error

    def abort(self) -> None:
        self._response.close()

    def take_over(self, inbox: Inbox) -> Wire:
        connection = self._response.connection
        if connection is None or connection.protocol is None or connection.transport is None:
            raise UpstreamError(FailureKind.NETWORK, "the upgraded connection was closed at once")
        connection.protocol.set_parser(inbox, inbox)
        return _Wire(connection.protocol, connection.transport)


class _Wire:
    """An upgraded connection's way to the upstream."""

    __slots__ = ("_protocol", "transport")

    def __init__(self, protocol: ResponseHandler, transport: asyncio.Transport) -> None:
        self._protocol = protocol
        self.transport = transport

    async def write(self, data: bytes) -> None:
        if self.transport.is_closing():
            raise ConnectionResetError("the upstream is gone")
        self.transport.write(data)
        await self._protocol._drain_helper()  # noqa: SLF001  # aiohttp's own websocket writer waits so


class _AbortingHandler(ResponseHandler):
    def close(self) -> None:
        if not self.upgraded:
            self.abort()
        elif (transport := self.transport) is not None:
            super().close()  # flushes: a WebSocket's close frame is worth its way
            self._loop.call_later(_LAST_BYTES_S, transport.abort)

    def set_exception(self, exc: BaseException, exc_cause: BaseException = _NO_CAUSE) -> None:
        super().set_exception(exc, exc_cause)
        # aiohttp tells whoever awaits the head; whoever reads the body would learn of a broken chunk by a timeout. A
        # body that is there as a whole is not broken by what comes after it.
        if self._payload is not None and not self._payload.is_eof():
            self._payload.set_exception(exc, exc_cause)


class _Sending:
    """What aiohttp's traces tell of one request."""

    def __init__(self, on_connected: Callable[[], None]) -> None:
        self.on_connected = on_connected
        self._now = asyncio.get_running_loop().time
        self._reused_at: float | None = None

    def on_reused(self) -> None:
        self._reused_at = self._now()
        self.on_connected()

    def is_stale(self) -> bool:
        """Whether the connection, kept alive, ended so soon that the request was most likely never read."""
        return self._reused_at is not None and self._now() - self._reused_at < _STALE_WITHIN_S


async def _on_connected(_session: object, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.on_connected()


async def _on_reused(_session: object, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.on_reused()


def _broken(error: Exception) -> UpstreamError:
    """aiohttp's errors before the head of an answer, as failure kinds."""
    match error:
        case OSError() if error.errno in _OURS:
            return UpstreamError(FailureKind.OWN_RESOURCES, f"this machine is out of resources: {error.strerror}")
        case aiohttp.ClientConnectorDNSError():
            return UpstreamError(FailureKind.NETWORK, "its host name was not found")
        case aiohttp.ClientSSLError():
            kind = classify_network("tls", str(error)).kind
            return UpstreamError(kind, f"TLS failed: {error}")
        case aiohttp.ClientConnectorError():
            return UpstreamError(FailureKind.NETWORK, f"connecting failed: {error.os_error.strerror or error.os_error}")
        case aiohttp.ServerDisconnectedError():
            return UpstreamError(FailureKind.NETWORK, "closed the connection without an answer")
        case aiohttp.ClientOSError():
            return UpstreamError(FailureKind.NETWORK, f"the connection broke: {error.strerror or error}")
        case aiohttp.ClientResponseError():
            return UpstreamError(FailureKind.MALFORMED, "its answer is not valid HTTP")
        case aiohttp.ClientConnectionError() | OSError():
            return UpstreamError(FailureKind.NETWORK, f"the connection broke: {error}")
        case _:
            return UpstreamError(FailureKind.INTERNAL, f"the request could not be sent: {error}")


def _readable(value: str) -> str:
    """A header value that can be written again: aiohttp lets control characters pass, and keeps bytes that are not
    UTF-8 as lone surrogates."""
    if value.isascii() and value.isprintable():
        return value
    return "".join(char if char.isprintable() else " " for char in value.encode("utf-8", "replace").decode())
