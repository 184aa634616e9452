"""An origin whose streams come in Amazon's frames: attempts read them as server-sent events."""

from __future__ import annotations

from llm_guard.dialects.forms.event_stream import EventStreamDecoder
from llm_guard.outcome import FailureKind
from llm_guard.proxy.call import Exchange
from llm_guard.proxy.headers import value_of
from llm_guard.proxy.http_client.connection_pool import UpstreamError, UpstreamOrigin
from llm_guard.proxy.http_client.http1 import RequestHeaders
from llm_guard.proxy.http_client.interfaces import Dialing, Inbox, Wire
from llm_guard.proxy.request_body.content_encoding import is_coded
from llm_guard.proxy.request_body.interfaces import FileBody

_FRAMES = "application/vnd.amazon.eventstream"


class FramedOrigin:
    """Implements `proxy.http_client.connection_pool.UpstreamOrigin`."""

    def __init__(self, origin: UpstreamOrigin) -> None:
        self._origin = origin

    async def send(
        self,
        method: str,
        target: str,
        headers: RequestHeaders,
        body: bytes | FileBody,
        dialing: Dialing | None,
        *,
        is_repeatable: bool,
    ) -> Exchange:
        exchange = await self._origin.send(method, target, headers, body, dialing, is_repeatable=is_repeatable)
        if not value_of(exchange.headers, "content-type").lower().startswith(_FRAMES):
            return exchange  # an error, or an answer that is not a stream
        if is_coded(value_of(exchange.headers, "content-encoding")):
            exchange.abort()
            raise UpstreamError(FailureKind.MALFORMED, "sent compressed frames although the request accepts none")
        return FramedExchange(exchange)


class FramedExchange:
    """Implements `proxy.call.Exchange`: reads the events of a stream of frames."""

    def __init__(self, exchange: Exchange) -> None:
        self.status, self.reason = exchange.status, exchange.reason
        kept = tuple(pair for pair in exchange.headers if not pair[0].lower().startswith("content-"))
        self.headers = (*kept, ("Content-Type", "text/event-stream; charset=utf-8"))
        self._exchange = exchange
        self._decoder = EventStreamDecoder()

    async def read(self) -> bytes:
        decoder = self._decoder
        while not decoder.fault and (chunk := await self._exchange.read()):
            if events := decoder.feed(chunk):
                return events
        if decoder.fault:
            raise UpstreamError(FailureKind.MALFORMED, f"sent an invalid stream: {decoder.fault}")
        if decoder.is_inside:
            raise UpstreamError(FailureKind.TRUNCATED, "the stream ended inside a frame")
        return b""

    def abort(self) -> None:
        self._exchange.abort()

    def take_over(self, inbox: Inbox) -> Wire:
        return self._exchange.take_over(inbox)
