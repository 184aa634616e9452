"""A stream that is read along as it passes, and the ids in a streamed response.

Owns which events are read, and their framing. Does not own what an event makes known (`policy.objects`). Changes no
byte, and keeps at most one event.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from llm_guard.call import Exchange, Inbox, Wire

_MOST_BYTES = 1 << 20
"""A longer event is not read: `response.completed` repeats what came before it."""
_TELLING = re.compile(rb"response\.(?:created|queued|in_progress|completed|incomplete|output_item\.(?:added|done))")
_END = re.compile(rb"\r?\n\r?\n")


OnEvent = Callable[[Mapping[str, Any]], None]


class Reader(Protocol):
    """What reads a stream along."""

    def feed(self, chunk: bytes) -> None:
        """The next piece of the stream."""


class ResponseTap:
    """An exchange whose stream is read along; has the surface of `Exchange`."""

    def __init__(self, exchange: Exchange, reader: Reader) -> None:
        self.status, self.reason, self.headers = exchange.status, exchange.reason, exchange.headers
        self._exchange = exchange
        self._reader = reader

    async def read(self) -> bytes:
        """As of the exchange. What an event makes known is known before its bytes are passed on."""
        chunk = await self._exchange.read()
        self._reader.feed(chunk)
        return chunk

    def abort(self) -> None:
        """As of the exchange."""
        self._exchange.abort()

    def take_over(self, inbox: Inbox) -> Wire:
        """As of the exchange."""
        return self._exchange.take_over(inbox)


class EventReader:
    """Passes on the events of a response that may make an id known."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """The next piece of the stream."""
        *events, self._rest = _END.split(self._rest + chunk)
        if len(self._rest) > _MOST_BYTES:
            self._rest = self._rest[-4:]  # an end may begin here
        for event in events:
            if _TELLING.search(event) is not None:
                self._read(event)

    def _read(self, event: bytes) -> None:
        lines = (line.removeprefix(b"data:") for line in event.splitlines() if line.startswith(b"data:"))
        try:
            value = json.loads(b"\n".join(lines))
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            self._on_event(value)
