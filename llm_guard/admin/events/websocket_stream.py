"""An event reader connected by a WebSocket.

Answers pings and the close frame of the client, and ignores its messages. `admin.http.websocket` has the framing,
`admin.events.subscriber` what is sent.
"""

from __future__ import annotations

from llm_guard.admin.events.subscriber import MessageFormat, Subscriber
from llm_guard.admin.http.websocket import ClientFrames
from llm_guard.proxy.http_server.response_writer import ResponseConnection

PROTOCOL = "llm-guard.events"

_SILENT_BEATS = 3
"""Unanswered pings after which the client is considered gone, even if the connection looks alive."""


class EventSocket(Subscriber):
    """A reader that handles the connection's bytes after the upgrade."""

    def __init__(self, form: MessageFormat, connection: ResponseConnection) -> None:
        super().__init__(form, connection.abort)
        self._connection = connection
        self._frames = ClientFrames()
        self._unanswered = 0
        self._is_closed = False
        """A close frame has been sent: nothing may follow it."""

    def beat(self) -> None:
        self._unanswered += 1
        if self._unanswered > _SILENT_BEATS:
            self.end()
            self._connection.abort()
        else:
            super().beat()

    def closing_bytes(self) -> bytes:
        return b"" if self._is_closed or self._connection.is_stuck else super().closing_bytes()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Handles bytes from the client."""
        self._unanswered = 0
        if not self._is_closed:
            for reply in self._frames.feed(data):
                if reply.is_close:
                    self._close(reply.frame)
                else:
                    self._pong(reply.frame)
        return False, b""

    def feed_eof(self) -> None:
        """Handles the end of the connection."""
        self.end()

    def _pong(self, frame: bytes) -> None:
        if self._connection.is_stuck:  # the client pings but does not read: pongs would pile up
            self.end()
            self._connection.abort()
        else:
            self._connection.push(frame)

    def _close(self, frame: bytes) -> None:
        if not self._is_closed and not self._connection.is_stuck:
            self._connection.push(frame)
        self._is_closed = True
        self.end()
