"""One exchange over an upstream's connection, as the rest of the gateway sees it: the head of an answer, and its body.

Owns what has come when the connection has already gone on to something else. Does not own how it comes
(`gateway.upstream_connection`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_guard.call import Headers, Inbox, Wire
from llm_guard.gateway.upstream_error import UpstreamError, truncated
from llm_guard.outcome import FailureKind

if TYPE_CHECKING:
    from llm_guard.gateway.upstream_connection import UpstreamConnection


class UpstreamExchange:
    """Is an `Exchange` from the moment in which `status` is not 0."""

    __slots__ = ("_connection", "_rest", "error", "headers", "reason", "status")

    def __init__(self, connection: UpstreamConnection) -> None:
        self.status = 0
        self.reason = ""
        self.headers: Headers = ()
        self.error: UpstreamError | None = None
        """How it broke."""
        self._connection: UpstreamConnection | None = connection
        """None: it is over, one way or the other."""
        self._rest = b""
        """What had not been read when it was over."""

    async def read(self) -> bytes:
        """What has arrived; b"" at a clean end. Raises UpstreamError, after all that came before the cut."""
        while (connection := self._connection) is not None:
            pieces = connection.pieces
            if pieces:
                data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                pieces.clear()
                connection.unread = 0
                if connection.is_paused:
                    connection.resume()
                return data
            await connection.next_arrival()
        rest, self._rest = self._rest, b""
        if not rest and self.error is not None:
            raise self.error
        return rest

    def abort(self) -> None:
        """Closes the connection now. After a clean end it does nothing: the connection is in the pool."""
        if (connection := self._connection) is not None:
            self.end(b"", truncated())
            connection.abort()

    def take_over(self, inbox: Inbox) -> Wire:
        """After an upgrade: from now on the bytes go to `inbox`. Raises UpstreamError when the connection is gone."""
        connection = self._connection
        if connection is None or connection.transport.is_closing():
            raise UpstreamError(FailureKind.NETWORK, "the upgraded connection was closed at once")
        connection.take_over(inbox)
        return connection

    def end(self, rest: bytes, error: UpstreamError | None) -> None:
        """The connection has nothing more for it; None: that is all of the answer."""
        self._connection = None
        self._rest = rest
        self.error = error
