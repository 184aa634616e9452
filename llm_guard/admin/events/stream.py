"""/admin/events: an event stream, as server-sent events or over a WebSocket.

Limits the number of readers, and replays missed events to one that reconnects. `admin.events.event_log` keeps the
events, `admin.events.subscriber` a reader's queue.

A position is `BOOT-ID`: ids are unique only within a process, so that those of another one mean other events.
"""

from __future__ import annotations

import re
import secrets
from typing import Annotated

from msgspec import Meta, Struct, field

from llm_guard.admin.events.event_log import EventLog, OperatorEvent
from llm_guard.admin.events.subscriber import MessageFormat, ServerSentEvents, StreamMessage, Subscriber, Texts
from llm_guard.admin.events.websocket_stream import PROTOCOL, EventSocket
from llm_guard.admin.http import websocket
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Endpoint, EndpointGroup, Refused
from llm_guard.admin.http.router import headers_of
from llm_guard.admin.schemas.history import Hello, Missed
from llm_guard.proxy.http_server.request import Request
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.version import __version__

MAX_READERS = 64
BEAT_S = 15.0

_POSITION = r"^([0-9a-f]{8}-)?[0-9]{1,15}(?!\n)$"
_STREAM = AdminResponse(
    b"",
    "text/event-stream; charset=utf-8",
    headers=(("X-Accel-Buffering", "no"),),  # disables buffering in nginx
)


_Position = Annotated[str, Meta(pattern=_POSITION, description="The id of an event, or its number alone.")]


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Position from which the stream continues."""

    since: _Position | None = None
    """Position: the events after it are sent first."""


class EventsHeaders(Struct):
    """Position from which the stream continues."""

    last_event_id: _Position | None = field(name="Last-Event-ID", default=None)
    """Position as in `since`, which takes precedence. Browsers send it when they reconnect."""


class EventStream(EndpointGroup):
    """Publishes every event to every reader. `look` sends heartbeats."""

    def __init__(self, journal: EventLog, now: float) -> None:
        self.boot = secrets.token_hex(4)
        self._journal = journal
        self._readers: set[Subscriber] = set()
        self._beat_at = now + BEAT_S
        self._is_over = False
        self._sse = ServerSentEvents()
        self._texts = Texts()
        journal.subscribe(self._tell)

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET", "/admin/events", "Streams events as server-sent events, from ?since= or Last-Event-ID.",
                live=self._stream, query=EventsQuery, heeds=EventsHeaders, gives=StreamMessage,
            ),
            Endpoint(
                "GET", "/admin/events/ws", "Streams events over a WebSocket, from ?since=.",
                live=self._talk, query=EventsQuery, heeds=EventsHeaders, gives=StreamMessage,
            ),
        ]  # fmt: skip

    @property
    def count(self) -> int:
        """Number of readers."""
        return len(self._readers)

    def look(self, now: float) -> None:
        """Sends a heartbeat when it is due."""
        if now < self._beat_at:
            return
        self._beat_at = now + BEAT_S
        for reader in tuple(self._readers):
            reader.beat()

    def end(self) -> None:
        """Ends all readers after their pending events, and accepts no more."""
        self._is_over = True
        self.drop_readers()

    def drop_readers(self) -> None:
        """Ends all readers after their pending events; they may reconnect."""
        for reader in tuple(self._readers):
            reader.end()

    def _tell(self, event: OperatorEvent) -> None:
        written: dict[MessageFormat, bytes] = {}
        for reader in tuple(self._readers):
            data = written.get(reader.form)
            if data is None:
                data = written[reader.form] = reader.form.of(event, self._position(event.id))
            reader.put(data)

    async def _stream(self, asked: AdminRequest, request: Request, reply: ResponseWriter) -> None:
        messages = self._missed(asked)
        reply.closes_connection = True  # an endless response: no other request can follow it
        if request.method == "HEAD":
            await reply.send(200, "", headers_of(_STREAM), b"")
            return
        reader = Subscriber(self._sse, reply.connection.abort)
        self._join(reader)
        try:
            reply.begin(200, "", headers_of(_STREAM))
            await self._send(messages, reader, reply)
            await reply.end()
        finally:
            self._readers.discard(reader)

    async def _talk(self, asked: AdminRequest, request: Request, reply: ResponseWriter) -> None:
        messages = self._missed(asked)
        headers = [("Upgrade", "websocket"), ("Connection", "Upgrade")]
        headers.append(("Sec-WebSocket-Accept", websocket.accept(request)))
        offered = [protocol.strip() for protocol in request.names.get("sec-websocket-protocol", "").split(",")]
        if PROTOCOL in offered:
            headers.append(("Sec-WebSocket-Protocol", PROTOCOL))
        socket = EventSocket(self._texts, reply.connection)
        self._join(socket)
        try:
            reply.begin(101, "", headers)
            await reply.write(b"")
            reply.connection.take_over(socket)
            await self._send(messages, socket, reply)
        finally:
            self._readers.discard(socket)
            reply.connection.close()

    def _join(self, reader: Subscriber) -> None:
        if self._is_over:
            raise Refused(503, "draining", "the gateway is shutting down: connect to another one")
        if len(self._readers) >= MAX_READERS:
            raise Refused(503, "too_many_readers", f"there are already {MAX_READERS} readers: close one and retry")
        self._readers.add(reader)

    async def _send(self, messages: list[tuple[StreamMessage, str]], reader: Subscriber, reply: ResponseWriter) -> None:
        for message, position in messages:
            await reply.write(reader.form.of(message, position))
        while data := await reader.take():
            await reply.write(data)
        if closing := reader.closing_bytes():
            await reply.write(closing)

    def _missed(self, asked: AdminRequest) -> list[tuple[StreamMessage, str]]:
        """Returns a reader's first messages, each with the position after it. Raises Refused."""
        after = asked.wants.since or asked.headers.get("last-event-id")
        last_id = self._journal.last_id
        hello = Hello(__version__, self.boot, last_id)
        if after is None:
            return [(hello, self._position(last_id))]
        boot, number = _parsed(after)
        is_ours = boot in ("", self.boot) and number <= last_id
        events, is_whole = self._journal.since(number if is_ours else 0)
        begun = self._position(events[0].id - 1 if events else last_id)
        messages: list[tuple[StreamMessage, str]] = [(hello, begun)]
        if not is_ours:
            messages.append((Missed(after, "other_process"), begun))
        elif not is_whole:
            messages.append((Missed(after, "expired"), begun))
        return messages + [(event, self._position(event.id)) for event in events]

    def _position(self, event_id: int) -> str:
        return f"{self.boot}-{event_id}"


def _parsed(position: str) -> tuple[str, int]:
    """Parses a position. Raises Refused for a bad header; `since` was validated with the query."""
    if re.search(_POSITION, position) is None:
        raise Refused(400, "invalid_position", "Last-Event-ID must be the id of an event")
    boot, _, number = position.rpartition("-")
    return boot, int(number)
