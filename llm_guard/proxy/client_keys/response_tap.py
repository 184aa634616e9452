"""Observes streams as they are relayed, and extracts the events of a streamed response that contain object ids.

Changes no byte, and buffers at most one event. `resilience.client_keys.provider_objects` reads the ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from llm_guard.proxy.call import Exchange
from llm_guard.proxy.http_client.interfaces import Inbox, Wire

_MOST_BYTES = 1 << 20
"""Longer events are skipped: `response.completed` only repeats what earlier events contained."""
_TELLING = re.compile(rb"response\.(?:created|queued|in_progress|completed|incomplete|output_item\.(?:added|done))")
_END = re.compile(rb"\r?\n\r?\n")


OnEvent = Callable[[Mapping[str, Any]], None]


class TapObserver(Protocol):
    """An observer of a stream."""

    def feed(self, chunk: bytes) -> None:
        """Takes the next chunk of the stream."""


class ResponseTap:
    """An exchange that shows its stream to an observer; implements `proxy.call.Exchange`."""

    def __init__(self, exchange: Exchange, reader: TapObserver) -> None:
        self.status, self.reason, self.headers = exchange.status, exchange.reason, exchange.headers
        self._exchange = exchange
        self._reader = reader

    async def read(self) -> bytes:
        """Reads from the exchange. The observer sees the bytes before the client does."""
        chunk = await self._exchange.read()
        self._reader.feed(chunk)
        return chunk

    def abort(self) -> None:
        """Implements `proxy.call.Exchange`."""
        self._exchange.abort()

    def take_over(self, inbox: Inbox) -> Wire:
        """Implements `proxy.call.Exchange`."""
        return self._exchange.take_over(inbox)


class EventReader:
    """Calls back with the events of a response that may contain a new id."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Implements `TapObserver`."""
        *events, self._rest = _END.split(self._rest + chunk)
        if len(self._rest) > _MOST_BYTES:
            self._rest = self._rest[-4:]  # the event's end may begin here
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
