"""Send queue of one event reader: what waits for it, in which format, and when it is dropped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog

from llm_guard.admin.events.event_log import OperatorEvent
from llm_guard.admin.http import websocket
from llm_guard.admin.schemas.history import Hello, Missed

_log = structlog.get_logger("llm_guard.admin.events.subscriber")

MAX_EVENTS = 500
MAX_BYTES = 1 << 18
"""Bytes of events that wait for a reader that does not read, beside those in the connection's buffer."""

StreamMessage = OperatorEvent | Hello | Missed


class MessageFormat(Protocol):
    """Wire format of messages, shared by all readers of its kind."""

    beat: bytes
    """A heartbeat."""
    end: bytes
    """Bytes that end the stream."""

    def of(self, message: StreamMessage, position: str) -> bytes:
        """Encodes a message. `position`: where to continue after it."""


class ServerSentEvents:
    """Server-sent events (html.spec.whatwg.org, section 9.2): `id`, `event` and `data` lines."""

    beat = b":\n\n"
    end = b""

    def of(self, message: StreamMessage, position: str) -> bytes:
        kind = message.kind if isinstance(message, OperatorEvent) else _KINDS[type(message)]
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (position.encode(), kind.encode(), as_json(message))


class Texts:
    """WebSocket format: one text frame with the same JSON; its `kind` is the type."""

    beat = websocket.ping_frame()
    end = websocket.close_frame(websocket.GOING_AWAY, "the gateway is shutting down")

    def of(self, message: StreamMessage, position: str) -> bytes:  # noqa: ARG002  # boot and id are in the messages
        return websocket.text_frame(as_json(message))


_KINDS: dict[type[Hello | Missed], str] = {Hello: "hello", Missed: "missed"}


class Subscriber:
    """Queue of one reader. Only one task at a time may call `take`."""

    def __init__(self, form: MessageFormat, drop: Callable[[], None]) -> None:
        """`drop` aborts the connection of a reader that does not read."""
        self.form = form
        self._drop = drop
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._is_over = False

    def put(self, data: bytes) -> None:
        """Queues data for sending. A reader with too much pending is dropped, as events are never delayed for one."""
        if self._is_over:
            return
        self._waiting.append(data)
        self._bytes += len(data)
        if len(self._waiting) > MAX_EVENTS or self._bytes > MAX_BYTES:
            _log.warning("event reader dropped: it reads too slowly", pending=len(self._waiting))
            self._waiting.clear()
            self.end()
            self._drop()
        self._wake()

    def beat(self) -> None:
        """Queues a heartbeat."""
        self.put(self.form.beat)

    def closing_bytes(self) -> bytes:
        """Returns the last bytes of the stream, possibly none."""
        return self.form.end

    def end(self) -> None:
        """Ends the stream after what is queued."""
        self._is_over = True
        self._wake()

    async def take(self) -> bytes:
        """Waits for data, and returns all that is queued; b"" at the end."""
        while not self._waiting and not self._is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        taken, self._waiting, self._bytes = b"".join(self._waiting), [], 0
        return taken

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def as_json(message: StreamMessage) -> bytes:
    """Encodes as JSON. Handles unpaired surrogates, which names in a config may have."""
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(message)).encode()
