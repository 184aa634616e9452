"""A scripted provider in place of the HTTP client.

`ScriptedConnections` replaces `proxy.http_client.connection_pool.ConnectionPool`, below
`proxy.attempts.upstream_attempt`: the gateway's own time limits, classification and stream reading work on its results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from llm_guard.outcome import FailureKind
from llm_guard.proxy.call import Headers
from llm_guard.proxy.http_client.connection_pool import ConnectionPool
from llm_guard.proxy.http_client.errors import UpstreamError
from llm_guard.proxy.http_client.http1 import RequestHeaders
from llm_guard.proxy.http_client.interfaces import Dialing, Inbox, Wire
from llm_guard.proxy.request_body.interfaces import FileBody

CALL_HEADER = "x-benchmark-call"
"""Carries a call's number through the gateway."""


@dataclass(slots=True)
class Request:
    """One request as the provider sees it. Times are in seconds from the beginning of the run."""

    at: float
    origin: str
    model: str
    call: int
    """Number of the client's call; -1 if the header was lost."""
    is_stream: bool = False
    user: str = ""
    """User named in the body."""
    status: int | None = None
    """Status of the response; None: the connection was closed before that."""
    ended_at: float | None = None
    is_cut: bool = False
    """True if the gateway closed the connection before the response was complete."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Response to one request."""

    status: int
    headers: Headers
    body: bytes = b""
    delay_s: float = 0.0
    """Seconds from the request to the head of the response."""
    pieces: tuple[tuple[float, bytes], ...] = ()
    """Pieces of a stream: (seconds since the one before, bytes)."""


class Provider(Protocol):
    """A provider: a function of time, of the request, and of its own random draws."""

    def answer(self, request: Request) -> Answer: ...


class _Sent(msgspec.Struct):
    model: str = ""
    stream: bool = False
    user: str = ""


_read = msgspec.json.Decoder(_Sent).decode


@dataclass
class Log:
    """Every request that reached the provider, oldest first."""

    requests: list[Request] = field(default_factory=list)


class ScriptedConnections(ConnectionPool):
    """Connections to a provider that is a Python object. Connecting takes no time."""

    def __init__(self, provider: Provider, log: Log, since: Callable[[], float]) -> None:  # no TLS, no proxies
        """`since` gives the time in seconds from the beginning of the run."""
        self._provider = provider
        self._log = log
        self._since = since

    def origin(self, link: str) -> ScriptedOrigin:
        return ScriptedOrigin(self, link)

    async def send(
        self,
        origin: str,
        headers: RequestHeaders,
        body: bytes | FileBody,
        dialing: Dialing | None,
    ) -> ScriptedExchange:
        if dialing is not None:
            dialing.on_connected()
        assert isinstance(body, bytes)
        sent = _read(body)
        number = next((int(value) for name, value in headers.pairs if name == CALL_HEADER), -1)
        request = Request(self._since(), origin, sent.model, number, sent.stream, sent.user)
        self._log.requests.append(request)
        answer = self._provider.answer(request)
        try:
            if answer.delay_s:
                await asyncio.sleep(answer.delay_s)
        except asyncio.CancelledError:
            request.is_cut, request.ended_at = True, self._since()
            raise
        request.status = answer.status
        return ScriptedExchange(answer, request, self._since)


@dataclass(frozen=True, slots=True)
class ScriptedOrigin:
    """Implements `proxy.http_client.connection_pool.UpstreamOrigin`; every request has a separate connection."""

    connections: ScriptedConnections
    link: str

    def send(
        self,
        _method: str,
        _target: str,
        headers: RequestHeaders,
        body: bytes | FileBody,
        dialing: Dialing | None,
        *,
        is_repeatable: bool,  # noqa: ARG002  # part of the interface; no connection is used twice
    ) -> Awaitable[ScriptedExchange]:
        return self.connections.send(self.link, headers, body, dialing)


class ScriptedExchange:
    """A response as it arrives. Implements `proxy.call.Exchange`."""

    __slots__ = ("_blocks", "_request", "_since", "headers", "reason", "status")

    def __init__(self, answer: Answer, request: Request, since: Callable[[], float]) -> None:
        self.status = answer.status
        self.reason = ""
        self.headers = answer.headers
        blocks = answer.pieces or ((0.0, answer.body),)
        self._blocks = list(reversed(blocks))
        self._request = request
        self._since = since

    async def read(self) -> bytes:
        if not self._blocks:
            self._request.ended_at = self._since()
            return b""
        delay_s, block = self._blocks[-1]
        if delay_s:
            await asyncio.sleep(delay_s)
        self._blocks.pop()
        return block

    def abort(self) -> None:
        if self._request.ended_at is None:
            self._request.ended_at = self._since()
            self._request.is_cut = bool(self._blocks)

    def take_over(self, _inbox: Inbox) -> Wire:
        raise UpstreamError(FailureKind.MALFORMED, "a scripted provider knows no upgrades")
