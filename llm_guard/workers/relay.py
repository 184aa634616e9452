"""Passes a request for the admin API on to a worker over its UNIX socket, and the response back: whole, a stream
without an end, or a WebSocket."""

from __future__ import annotations

import asyncio

from llm_guard.admin.http.endpoint import Refused
from llm_guard.admin.http.router import PEER
from llm_guard.clock import Clock
from llm_guard.proxy.call import Exchange
from llm_guard.proxy.http_client.connection import UpstreamConnection
from llm_guard.proxy.http_client.connection_pool import UpstreamError
from llm_guard.proxy.http_client.http1 import RequestHeaders, request_head
from llm_guard.proxy.http_server.request import Request
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.response.websocket_tunnel import tunnel
from llm_guard.worker_thread import wait_at_most

_MOST_BODY_BYTES = 1 << 20
"""The admin API takes no more."""
_HEAD_S = 60.0
"""The longest that a worker may take until it responds: a reload takes some seconds."""
_HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
    "upgrade", "content-length", "host", "expect", PEER,
})  # fmt: skip
_RESPONSE_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})
_UPGRADE = [("Connection", "Upgrade"), ("Upgrade", "websocket")]


class _Unpooled:
    """A connection's owner: each connection serves one exchange."""

    def add(self, connection: UpstreamConnection) -> None:
        """There is no pool."""

    def keep(self, connection: UpstreamConnection, keep_alive_s: int | None) -> None:  # noqa: ARG002  # as in the protocol
        connection.transport.close()

    def drop(self, connection: UpstreamConnection) -> None:
        connection.transport.close()

    def remove(self, connection: UpstreamConnection) -> None:
        """There is no pool."""


async def body_of(request: Request, reply: ResponseWriter) -> bytes:
    """Returns the body of a request. Raises Refused if it is too large, and BadRequest."""
    if request.names.get("expect", "").lower() == "100-continue" and request.version != "1.0":
        reply.send_continue()
    pieces, size = [], 0
    while piece := await request.read():
        size += len(piece)
        if size > _MOST_BODY_BYTES:
            raise Refused(413, "body_too_large", f"the body has more than {_MOST_BODY_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def ask(
    admin_socket: str, request: Request, target: str, body: bytes, peer: str | None, clock: Clock
) -> Exchange:
    """Sends a request to a worker; returns once the head of the response has arrived. Raises UpstreamError, OSError and
    TimeoutError."""
    headers = [(name, value) for name, value in request.headers if name.lower() not in _HOP_BY_HOP]
    headers.append((PEER, peer or "an unknown address"))
    if request.is_for_websocket:
        headers += _UPGRADE
    sent = RequestHeaders(headers)
    head = request_head(request.method, target, request.names.get("host", ""), sent, len(body))
    owner = _Unpooled()
    transport, connection = await asyncio.get_running_loop().create_unix_connection(
        lambda: UpstreamConnection(owner), admin_socket
    )
    try:
        sending = connection.send(head, body, is_head=request.method == "HEAD", is_upgrade=sent.is_upgrade)
        return await wait_at_most(_HEAD_S, sending, clock)
    except BaseException:
        transport.abort()
        raise


async def pass_on(exchange: Exchange, request: Request, reply: ResponseWriter) -> None:
    """Sends a worker's response to the client. A response that breaks is broken off."""
    headers = [(name, value) for name, value in exchange.headers if name.lower() not in _RESPONSE_HOP_BY_HOP]
    try:
        if exchange.status == 101:
            reply.begin(101, exchange.reason, [*headers, _UPGRADE[0]])
            await tunnel(reply, exchange)
            return
        reply.begin(exchange.status, exchange.reason, headers, _length(exchange))
        await reply.write(b"")
        while request.method != "HEAD" and (piece := await exchange.read()):
            await reply.write(piece)
        await reply.end()
    except UpstreamError:
        await reply.break_off()
    finally:
        exchange.abort()


async def whole(exchange: Exchange) -> bytes:
    """Returns the body of a response. Raises UpstreamError."""
    pieces = []
    try:
        while piece := await exchange.read():
            pieces.append(piece)
    finally:
        exchange.abort()
    return b"".join(pieces)


def _length(exchange: Exchange) -> int | None:
    return next((int(value) for name, value in exchange.headers if name.lower() == "content-length"), None)
