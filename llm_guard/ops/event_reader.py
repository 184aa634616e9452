"""Somebody who reads events: what is on its way to them, in which form, and when they are given up.

Owns one reader's queue. Does not own what there is to read (`ops.journal`), nor who reads (`ops.events`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog

from llm_guard.ops import websocket
from llm_guard.ops.journal import Event
from llm_guard.ops.views import Hello, Missed

_log = structlog.get_logger("llm_guard.ops.event_reader")

MAX_EVENTS = 500
MAX_BYTES = 1 << 18
"""Of events that wait for a reader who takes none; what the connection holds, comes to it."""

Message = Event | Hello | Missed


class Form(Protocol):
    """How a message looks on the wire. One for all readers of its kind."""

    beat: bytes
    """Says only that nothing has happened."""
    end: bytes
    """The last bytes."""

    def of(self, message: Message, position: str) -> bytes:
        """`position`: from where to go on after it."""


class ServerSentEvents:
    """html.spec.whatwg.org, section 9.2: `id`, `event` and `data` lines."""

    beat = b":\n\n"
    end = b""

    def of(self, message: Message, position: str) -> bytes:
        kind = message.kind if isinstance(message, Event) else _KINDS[type(message)]
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (position.encode(), kind.encode(), as_json(message))


class Texts:
    """The same JSON, a WebSocket text each; its `kind` says what it is."""

    beat = websocket.frame(websocket.PING)
    end = websocket.close_frame(websocket.GOING_AWAY, "the gateway is going away")

    def of(self, message: Message, position: str) -> bytes:  # noqa: ARG002  # boot and id are in the messages
        return websocket.frame(websocket.TEXT, as_json(message))


_KINDS: dict[type[Hello | Missed], str] = {Hello: "hello", Missed: "missed"}


class Reader:
    """What waits for one reader. `take` is for one task at a time."""

    def __init__(self, form: Form, drop: Callable[[], None]) -> None:
        """`drop` ends the connection at once: its reader does not read."""
        self.form = form
        self._drop = drop
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._is_over = False

    def put(self, data: bytes) -> None:
        """To be sent as soon as there is room. Who has too much waiting is dropped: nobody waits for a reader."""
        if self._is_over:
            return
        self._waiting.append(data)
        self._bytes += len(data)
        if len(self._waiting) > MAX_EVENTS or self._bytes > MAX_BYTES:
            _log.warning("an event reader is dropped: it does not read", waiting=len(self._waiting))
            self._waiting.clear()
            self.end()
            self._drop()
        self._wake()

    def beat(self) -> None:
        """Nothing has happened for a while: the reader hears that it is still connected."""
        self.put(self.form.beat)

    def farewell(self) -> bytes:
        """The last bytes; b"": none."""
        return self.form.end

    def end(self) -> None:
        """What waits is still sent, and nothing more."""
        self._is_over = True
        self._wake()

    async def take(self) -> bytes:
        """All that waits; b"" at the end."""
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


def as_json(message: Message) -> bytes:
    """Also where a name has half of a surrogate pair, as a config may."""
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(message)).encode()
