"""A reader of events at the other end of a WebSocket.

Owns what is made of what the client sends: pings are answered, a close is, and words are not listened to. Does not own
frames (`ops.websocket`), nor what the client is sent (`ops.event_reader`).
"""

from __future__ import annotations

from llm_guard.gateway.reply import Connection
from llm_guard.ops import websocket
from llm_guard.ops.event_reader import Form, Reader
from llm_guard.ops.websocket import ClientFrames, Message, ProtocolError

PROTOCOL = "llm-guard.events"

_SILENT_BEATS = 3
"""Who has not answered so many pings is gone, whatever its connection looks like."""


class EventSocket(Reader):
    """Takes the connection's bytes once it is upgraded."""

    def __init__(self, form: Form, connection: Connection) -> None:
        super().__init__(form, connection.abort)
        self._connection = connection
        self._frames = ClientFrames()
        self._unanswered = 0
        self._is_closed = False
        """A close frame is sent: nothing may follow it."""

    def beat(self) -> None:
        self._unanswered += 1
        if self._unanswered > _SILENT_BEATS:
            self.end()
            self._connection.abort()
        else:
            super().beat()

    def farewell(self) -> bytes:
        return b"" if self._is_closed or self._connection.is_stuck else super().farewell()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """What the client has sent."""
        self._unanswered = 0
        if not self._is_closed:
            try:
                for message in self._frames.feed(data):
                    self._hear(message)
            except ProtocolError as error:
                self._close(websocket.close_frame(error.code, error.reason))
        return False, b""

    def feed_eof(self) -> None:
        """The connection is gone."""
        self.end()

    def _hear(self, message: Message) -> None:
        if message.opcode == websocket.CLOSE:
            self._close(websocket.answer_to_close(message.payload))
        elif message.opcode == websocket.PING and not self._is_closed:
            if self._connection.is_stuck:  # it asks, and does not read: the answers would pile up
                self.end()
                self._connection.abort()
            else:
                self._connection.push(websocket.frame(websocket.PONG, message.payload))

    def _close(self, frame: bytes) -> None:
        if not self._is_closed and not self._connection.is_stuck:
            self._connection.push(frame)
        self._is_closed = True
        self.end()
