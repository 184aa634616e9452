"""One exchange over an upstream's connection: the response head, and its body.

Keeps the unread rest of a body, so that the connection can already serve the next exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_guard.outcome import FailureKind
from llm_guard.proxy.call import Headers
from llm_guard.proxy.http_client.errors import UpstreamError, truncated
from llm_guard.proxy.http_client.interfaces import Inbox, Wire
from llm_guard.proxy.kept_errors import raisable

if TYPE_CHECKING:
    from llm_guard.proxy.http_client.connection import UpstreamConnection


class UpstreamExchange:
    """Implements `proxy.call.Exchange` once `status` is not 0."""

    __slots__ = ("_connection", "_rest", "error", "headers", "reason", "status")

    def __init__(self, connection: UpstreamConnection) -> None:
        self.status = 0
        self.reason = ""
        self.headers: Headers = ()
        self.error: UpstreamError | None = None
        """The error that broke the exchange, if any."""
        self._connection: UpstreamConnection | None = connection
        """Its connection; None once the exchange is over."""
        self._rest = b""
        """Bytes that were unread when the exchange ended."""

    async def read(self) -> bytes:
        """Returns what has arrived; b"" at a clean end. Raises UpstreamError, after all bytes before the cut."""
        while (connection := self._connection) is not None:
            pieces = connection.pieces
            if pieces:
                data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                pieces.clear()
                connection.unread = 0
                if connection.is_paused:
                    connection.resume()
                return data
            await connection.arrival
        rest, self._rest = self._rest, b""
        if not rest and self.error is not None:
            raise raisable(self.error)
        return rest

    def abort(self) -> None:
        """Closes the connection now. Does nothing after a clean end: the connection is back in the pool."""
        if (connection := self._connection) is not None:
            self.end(b"", truncated())
            connection.abort()

    def take_over(self, inbox: Inbox) -> Wire:
        """Sends all further bytes to `inbox`, after an upgrade. Raises UpstreamError if the connection is gone."""
        connection = self._connection
        if connection is None or connection.transport.is_closing():
            raise UpstreamError(FailureKind.NETWORK, "the upgraded connection was closed at once")
        connection.take_over(inbox)
        return connection

    def end(self, rest: bytes, error: UpstreamError | None) -> None:
        """Ends the exchange with its unread bytes; `error` is None if the response is complete."""
        self._connection = None
        self._rest = rest
        self.error = error
