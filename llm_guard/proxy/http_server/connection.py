"""Client connections: each receives requests and answers them in their order; the listener counts and limits them.

Owns the order of requests, the deadline of each step, the end of a connection, and the limits on connections and on the
arrival of requests. `proxy.http_server.request` parses requests, `proxy.http_server.response_writer` writes responses,
`proxy.handler` handles calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import structlog

from llm_guard.clock import Alarm, Clock
from llm_guard.proxy.http_client.interfaces import Inbox
from llm_guard.proxy.http_server.request import Request, RequestParser
from llm_guard.proxy.http_server.response_writer import ResponseWriter, bare_answer
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.proxy.wakeup import Wakeup

_log = structlog.get_logger("llm_guard.proxy.http_server.connection")

_STASH_BYTES = 1 << 16
_WRITE_BUFFER_BYTES = (3 << 14, 1 << 16)
"""Low and high water marks of the write buffer. Close together, so that a client that reads slowly is still seen to
read."""
_BODY_BYTES_PER_S = 1 << 14
_LINGER_S = 2.0
"""Time that a client that is answered before it has sent everything gets to read the response: closing at once would
reset the connection, and the response be lost (RFC 9112, section 9.6)."""
_MOST_LINGER_S = 30.0
"""The longest such time, while more of the request arrives: some clients read nothing before they have sent
everything."""
_STALL_S = 60.0
"""A client that accepts none of the written bytes for this long is gone."""

_NEVER = float("inf")
_FULL = BadRequest(503, "too_many_connections", "the gateway has too many open connections")


class ClientConnection(asyncio.Protocol):
    """The asyncio protocol of one connection."""

    __slots__ = (
        "_begun_at", "_inbox", "_is_closing", "_is_full", "_is_paused", "_last_words", "_lingers_until", "_listener",
        "_loop", "_next", "_parser", "_queue", "_running", "_stash", "_unsent_bytes", "_waiters", "due_at", "task",
        "transport",
    )  # fmt: skip

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._parser = RequestParser(self)
        self.transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self.task: asyncio.Task[None] | None = None
        """Answers the requests, from the first one on."""
        self._next = Wakeup(self._loop)
        """Awaited by the task while there is no request."""
        self.due_at = _NEVER
        """When the current step has taken too long."""
        self._begun_at = 0.0
        self._running: Request | None = None
        """The request that is being answered."""
        self._queue: deque[Request] = deque()
        """Requests that the client has pipelined after it."""
        self._last_words: BadRequest | None = None
        """The error of the first invalid request after those; the bytes after it are ignored."""
        self._stash = b""
        """Bytes that are not parsed yet, because a request is being answered."""
        self._inbox: Inbox | None = None
        self._is_closing = False
        self._lingers_until = 0.0
        """Until then, at the latest, incoming bytes are read and dropped."""
        self._is_paused = False
        """The gateway has stopped reading from the client."""
        self._is_full = False
        """The client does not read: the write buffer is full."""
        self._waiters: list[asyncio.Future[None]] = []
        """Futures of tasks that wait for room: one each, because cancelling a task cancels the future that it
        awaits."""
        self._unsent_bytes = 0

    # the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a server's transports are
        low, high = _WRITE_BUFFER_BYTES
        self.transport.set_write_buffer_limits(high, low)
        if self._listener.add(self):
            self.due_at = self._listener.now + self._listener.settings.head_timeout
        else:
            self._is_closing = True
            self.transport.write(bare_answer(_FULL))
            self.transport.close()  # no lingering, which would take room that there is not

    def eof_received(self) -> None:
        """The client has closed its side: asyncio closes the transport."""

    def connection_lost(self, _error: Exception | None) -> None:
        self._listener.remove(self)
        self._is_closing = True
        self.due_at = _NEVER
        self._wake()
        if self._inbox is not None:
            self._inbox.feed_eof()
        elif self._running is None:
            self._next.wake_soon()
        elif (task := self.task) is not None:
            self.task = None  # a cancelled task may keep the error, and that the frames
            task.cancel()

    def pause_writing(self) -> None:
        self._is_full = True
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self.due_at = self._listener.now + _STALL_S

    def resume_writing(self) -> None:
        self._is_full = False
        if not self._is_closing:
            if self._parser.reading is not None:
                self.due_at = self._listener.now  # its body has a limit: see `expire`
            elif self._running is not None:
                self.due_at = _NEVER
            else:
                self.due_at = self._listener.now + self._listener.settings.keep_alive
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._inbox is not None:
            self._inbox.feed_data(data)
        elif self._lingers_until:
            self.due_at = min(self._lingers_until, self._listener.now + _LINGER_S)
        else:
            self._parse(data)
            if self._running is not None:
                self._next.wake()

    # the reply's side

    @property
    def is_stuck(self) -> bool:
        """True if the client accepts no more for now, or is gone."""
        return self._is_full or self.transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and not yet accepted by the client."""
        return self.transport.get_write_buffer_size()

    def push(self, data: bytes) -> bool:
        """Writes, and returns whether there is room for more. Raises ConnectionResetError when the client is gone."""
        if self.transport.is_closing():
            raise ConnectionResetError("the client disconnected")
        self.transport.write(data)
        return not self._is_full

    async def wait_room(self) -> None:
        """Returns when there is room. Raises ConnectionResetError when the client is gone."""
        while self._is_full and not self.transport.is_closing():
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
        if self.transport.is_closing():
            raise ConnectionResetError("the client disconnected")

    def take_over(self, inbox: Inbox) -> None:
        """Passes all further bytes to `inbox`, after an upgrade."""
        self._inbox = inbox
        if self._stash:
            inbox.feed_data(self._stash)
            self._stash = b""
        self._resume()

    def close(self) -> None:
        """Closes the connection once all written bytes are sent."""
        self._is_closing = True
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self.due_at = self._listener.now + _STALL_S
        self.transport.close()

    def abort(self) -> None:
        """Closes the connection at once."""
        self._is_closing = True
        self.transport.abort()

    # time is up

    def expire(self) -> None:
        """Handles a deadline that has passed: `due_at`."""
        now = self._listener.now
        if self._is_full or self._is_closing:
            unsent_bytes = self.transport.get_write_buffer_size()
            if not 0 < unsent_bytes < self._unsent_bytes:
                self.abort()
            self._unsent_bytes, self.due_at = unsent_bytes, now + _STALL_S
        elif (reading := self._parser.reading) is not None:
            if self._is_paused or reading is not self._running:  # the gateway itself has paused it
                self._begun_at = now
            extra_s = reading.received_bytes / _BODY_BYTES_PER_S
            self.due_at = self._begun_at + self._listener.settings.body_timeout + extra_s
            if self.due_at <= now:
                self.due_at = _NEVER
                reading.fail(_too_slow())
        elif self._running is not None:
            self.due_at = _NEVER
        elif self._parser.is_in_head:
            self._reject(_too_slow())
        else:
            self.close()

    # requests in their order

    def _begin(self, request: Request) -> None:
        self._running = request
        self._listener.idle.pop(self, None)
        if self.task is None:
            self.task = self._loop.create_task(self._serve())

    async def _serve(self) -> None:
        """Answers the requests, one after the other. A task for each would cost a twentieth of a call."""
        while (request := self._running) is not None and not self._is_closing:
            reply = ResponseWriter(request, self)
            try:
                await self._listener.serve(request, reply)
            except ConnectionError:
                self.abort()  # the client left
            except asyncio.CancelledError:
                # If the task kept the error, its traceback would keep the call until garbage is collected.
                self.task = None
                return
            except Exception:  # noqa: BLE001  # any error must end the client's wait
                _log.exception("unexpected error on a client connection")
                self.abort()
            finally:
                self._finish(request, reply)
            if self.transport.is_closing():  # the connection may be lost already: nothing would wake this task
                break
            del request, reply  # an idle connection keeps neither
            if self._running is not None:  # the client has pipelined it: other connections are served first
                self._loop.call_soon(self._next.wake)
            await self._next
        self.task = None

    def _finish(self, request: Request, reply: ResponseWriter) -> None:
        self._running = None
        if self._is_closing:
            return
        if not reply.is_over:
            self.close()  # in the middle of a response: the client sees that it is incomplete
        elif not request.has_arrived:
            self._linger()
        elif reply.closes_connection:
            self.close()
        elif self._queue:
            self._begin(self._queue.popleft())
        elif self._last_words is not None:
            self._reject(self._last_words)
        else:
            self._await_next()

    def _await_next(self) -> None:
        self.due_at = self._listener.now + self._listener.settings.keep_alive
        self._listener.idle[self] = None
        self._resume()
        if self._stash:
            data, self._stash = self._stash, b""
            self._parse(data)

    def _reject(self, bad: BadRequest) -> None:
        self.transport.write(bare_answer(bad))
        self._linger()

    def _linger(self) -> None:
        self._is_closing = True
        self._listener.idle.pop(self, None)
        self._unsent_bytes = 0
        self.due_at = self._listener.now + _LINGER_S
        self._lingers_until = self._listener.now + _MOST_LINGER_S
        if not self.transport.is_closing():
            self._resume()
            if self.transport.can_write_eof():  # TLS has no half-closed connections
                self.transport.write_eof()

    # bytes in

    def _parse(self, data: bytes) -> None:
        while data and not self._is_closing and self._last_words is None:
            if self._running is not None and self._parser.reading is None:
                self._keep(data)
                return
            try:
                data = self._parser.feed(data)
            except BadRequest as bad:
                # The request that is being answered comes first.
                if self._running is None:
                    self._reject(bad)
                self._last_words = bad

    def _keep(self, data: bytes) -> None:
        self._stash += data
        if len(self._stash) > _STASH_BYTES:
            self._pause()

    # the parser's side

    def on_begun(self) -> None:
        if self._running is None:
            self.due_at = self._listener.now + self._listener.settings.head_timeout

    def on_request(self, request: Request) -> None:
        self._begun_at = self._listener.now
        self.due_at = self._begun_at + self._listener.settings.body_timeout
        if self._running is None:
            self._begin(request)
        else:
            self._queue.append(request)

    def on_whole(self, request: Request) -> None:
        if request is self._running and not self._is_full:
            self.due_at = _NEVER

    def on_full(self, request: Request) -> None:
        self._pause()
        request.resume_with(self._resume)

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()


def _too_slow() -> BadRequest:
    """Returns a new error each time: a raised exception keeps references to frames."""
    return BadRequest(408, "request_timeout", "the request took too long to arrive")


Serve = Callable[[Request, ResponseWriter], Awaitable[None]]

_SWEEP_S = 0.5
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Limits of a listener: in seconds, or connections at once."""

    max_connections: int
    head_timeout: float = 15.0
    """Time from the first byte of a head, or from the connection, to its last byte."""
    body_timeout: float = 60.0
    """Time for a body, plus one second for every 16 KiB received."""
    keep_alive: float = 75.0
    """How long a connection may be idle between requests."""


class Mounts:
    """Serves the paths below some first segments differently from all others."""

    def __init__(self, serve: Serve, mounted: Serve, roots: Iterable[str]) -> None:
        """`mounted` serves the `roots` (`/health`) and what is below them, and `/` if it is one of them; `serve` all
        other paths."""
        self._serve = serve
        self._mounted = dict.fromkeys(roots, mounted)

    def serve(self, request: Request, reply: ResponseWriter) -> Awaitable[None]:
        path = request.path
        end = path.find("/", 1)
        return self._mounted.get(path[:end] if end > 1 else path, self._serve)(request, reply)


class AcceptedConnection(Protocol):
    """A client's connection, before or after its TLS handshake."""

    due_at: float
    """When the current step has taken too long."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and not yet accepted by the client."""

    def expire(self) -> None:
        """Handles a deadline that has passed: `due_at`."""

    def close(self) -> None:
        """Closes the connection once all written bytes are sent."""

    def abort(self) -> None:
        """Closes the connection at once."""


class Listener:
    """Creates a protocol for every connection, and ends connections that are over their deadline."""

    def __init__(self, serve: Serve, settings: ListenerSettings, clock: Clock) -> None:
        self.serve = serve
        self.now = clock.now()
        """Clock of the arrival limits, as of the last sweep. It stands still with the event loop: a request that the
        gateway was too busy to accept or to read is not late."""
        self._tls: Callable[[Listener], asyncio.Protocol] | None = None
        self.idle: dict[AcceptedConnection, None] = {}
        """Connections without a call, the longest idle first."""
        self.failed_handshakes = 0
        """Number of failed TLS handshakes."""
        self.refused = 0
        """Number of connections that found no room."""
        self._clock = clock
        self._swept_at = self.now
        self._connections: set[AcceptedConnection] = set()
        self._sweeper: Alarm | None = None
        self.adopt(settings)

    def __call__(self) -> asyncio.Protocol:
        return ClientConnection(self) if self._tls is None else self._tls(self)

    @property
    def has_tls(self) -> bool:
        """True if new connections begin with a TLS handshake."""
        return self._tls is not None

    def use_tls(self, handshake: Callable[[Listener], asyncio.Protocol] | None) -> None:
        """Sets what creates the protocol of a new TLS connection; None: plain HTTP."""
        self._tls = handshake

    @property
    def count(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def adopt(self, settings: ListenerSettings) -> None:
        """Applies new limits."""
        self.settings = settings
        shortest_s = min(settings.head_timeout, settings.body_timeout, settings.keep_alive)
        self._sweep_s = min(_SWEEP_S, shortest_s / 4)

    def add(self, connection: AcceptedConnection) -> bool:
        """Adds a new connection, if need be in place of the one that has been idle longest. Returns whether there is
        room."""
        if self._sweeper is None:
            self._sweep()
        if len(self._connections) >= self.settings.max_connections:
            longest = next((idle for idle in self.idle if not idle.unsent_bytes), None)
            if longest is None:
                self.refused += 1
                return False
            self.remove(longest)
            longest.abort()
        self._connections.add(connection)
        self.idle[connection] = None
        return True

    def remove(self, connection: AcceptedConnection) -> None:
        """Removes a connection that is gone."""
        self._connections.discard(connection)
        self.idle.pop(connection, None)

    async def close(self, within_s: float) -> None:
        """Closes every connection. Those that still send a response, or have a call, get `within_s` for it."""
        for connection in list(self.idle):
            connection.close()
        give_up_at = self._clock.now() + within_s
        while self._connections and self._clock.now() < give_up_at:
            await self._clock.sleep(_POLL_S)
        for connection in list(self._connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _sweep(self) -> None:
        """Ends connections that are over their deadline. One timer for all: one per connection would cost every call
        two timers."""
        swept_at, self._swept_at = self._swept_at, self._clock.now()
        self.now += min(self._swept_at - swept_at, 2 * self._sweep_s)
        self._sweeper = self._clock.call_at(self._swept_at + self._sweep_s, self._sweep)  # first: it must never end
        for connection in [connection for connection in self._connections if connection.due_at <= self.now]:
            connection.expire()
