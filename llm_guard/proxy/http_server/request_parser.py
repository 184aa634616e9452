"""Parses a client's bytes into requests, with llhttp in strict mode (httptools).

`proxy.http_server.request` validates the heads, `proxy.http_server.connection` schedules the requests.
"""

from __future__ import annotations

from typing import Protocol

import httptools

from llm_guard.proxy.http_server.repeated_head import RepeatedHead
from llm_guard.proxy.http_server.request import Request, check_head
from llm_guard.proxy.http_server.request_fields import MAX_FIELDS, MAX_LINE_BYTES, RawFields, RequestFields
from llm_guard.proxy.request_body.fields import BadRequest

_MAX_HEAD_BYTES = 1 << 16
_SLICE_BYTES = 1 << 12
"""Pipelined data is parsed in slices of this size, so that the number of parsed requests that wait is bounded."""
_FRAMING_PER_BYTE = 8
"""Bytes of chunk framing allowed per byte of body: a chunk of a single byte needs six."""


class ParserCallbacks(Protocol):
    """Callbacks of the parser."""

    def on_begun(self) -> None:
        """Called for the first byte of a head."""

    def on_request(self, request: Request) -> None:
        """Called for a complete head; the body follows."""

    def on_whole(self, request: Request) -> None:
        """Called when all of the body has arrived."""

    def on_full(self, request: Request) -> None:
        """Called when so much of the body is unread that the connection should pause reading."""


class RequestParser:
    """Parses the requests of one connection. httptools calls the `on_...` methods."""

    __slots__ = (
        "_bad", "_fields", "_framing_bytes", "_head", "_head_bytes", "_last", "_parser", "_repeated", "_taker",
        "_target", "_unupgraded", "is_in_head", "reading",
    )  # fmt: skip

    def __init__(self, taker: ParserCallbacks) -> None:
        self._taker = taker
        self._parser = httptools.HttpRequestParser(self)
        self.is_in_head = False
        self.reading: Request | None = None
        """The request with the body that is being parsed."""
        self._head_bytes = self._framing_bytes = 0
        self._target = b""
        self._fields: RawFields = []
        self._last: RequestFields | None = None
        """The fields of the latest request."""
        self._repeated: Request | None = None
        """The request that is being parsed, if its fields repeat those of the one before."""
        self._head: RepeatedHead | None = None
        """The latest head, once it has been repeated."""
        self._bad: BadRequest | None = None
        self._unupgraded: Request | None = None
        """A request for an upgrade that is not granted; its body is still to be parsed."""

    def feed(self, data: bytes) -> bytes:
        """Parses some of `data`; returns the unparsed rest. Raises BadRequest if it is not a valid request: nothing
        that follows on the connection can be trusted then."""
        is_new = self.reading is None and not self.is_in_head
        if is_new and self._head is not None and (parts := self._head.split(data)) is not None:
            self._take_repeated(self._head, *parts)
            return b""
        at = min(self._slice(data), len(data))
        reading = self.reading
        received_bytes = reading.received_bytes if reading is not None else 0
        try:
            self._parser.feed_data(data[:at])
            rest = data[at:]
        except httptools.HttpParserUpgrade as upgrade:
            rest = self._go_on_after(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._bad = self._bad or _not_http()
            rest = b""
        if self.is_in_head:
            self._head_bytes += at
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._bad = self._bad or _too_large()
        elif reading is not None:
            self._weigh(reading, at - (reading.received_bytes - received_bytes))
        if self._bad is not None:
            self._fail(self._bad)
        if self._repeated is not None:
            self._head = RepeatedHead.of(data, self._repeated) if is_new else None
            self._repeated = None
        return rest

    def _take_repeated(self, head: RepeatedHead, length: bytes, body: bytes) -> None:
        """Takes a request that has arrived as a whole. llhttp is not involved: it waits for the next one already."""
        assert self._last is not None  # noqa: S101  # it is that of the head
        self._last = self._last.with_length(length)
        request = Request(head.method, head.target, head.version, self._last)
        self._taker.on_begun()
        self._taker.on_request(request)
        if body and request.feed(body):
            self._taker.on_full(request)
        request.complete()
        self._taker.on_whole(request)

    def _weigh(self, reading: Request, framing_bytes: int) -> None:
        """Limits framing overhead: llhttp skips chunk extensions of any length (CVE-2024-22019), and trailers are
        dropped here."""
        self._framing_bytes += framing_bytes
        if self._framing_bytes > _MAX_HEAD_BYTES + _FRAMING_PER_BYTE * reading.received_bytes:
            self._bad = self._bad or _too_large()

    def _slice(self, data: bytes) -> int:
        if len(data) <= _SLICE_BYTES:
            return len(data)
        reading = self.reading
        left_bytes = reading.content_length - reading.received_bytes if reading is not None else 0
        return max(_SLICE_BYTES, left_bytes)

    def _fail(self, bad: BadRequest) -> None:
        if self.reading is not None:
            self.reading.fail(_not_framed())
            self.reading = None
        raise bad

    def _go_on_after(self, rest: bytes) -> bytes:
        """Continues after a request for an upgrade, where llhttp stops; returns the bytes still to be parsed."""
        request = self._unupgraded
        if request is None:
            return rest
        # The JDK's HTTP client asks for h2c with every request and sends its body regardless, but llhttp considers the
        # message finished: a new parser gets the framing headers of the body.
        names = ("content-length", "transfer-encoding")
        framing = "".join(f"{name}: {request.names[name]}\r\n" for name in names if name in request.names)
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(f"POST / HTTP/1.1\r\n{framing}\r\n".encode("latin-1"))
        return rest

    # called by httptools

    def on_message_begin(self) -> None:
        if self._unupgraded is None:
            self.is_in_head = True
            self._head_bytes = 0
            self._taker.on_begun()

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.reading is None:
            self._fields.append((name, value))
        else:  # a trailer, which is dropped
            self._framing_bytes += _MAX_HEAD_BYTES // MAX_FIELDS

    def on_headers_complete(self) -> None:
        self.is_in_head = False
        fields, self._fields, target, self._target = self._fields, [], self._target, b""
        if self._unupgraded is not None:
            self.reading, self._unupgraded = self._unupgraded, None
        elif self._bad is None:
            try:
                self._take(target, fields)
            except BadRequest as bad:
                self._bad = bad

    def on_body(self, piece: bytes) -> None:
        reading = self.reading
        if reading is not None and reading.feed(piece):
            self._taker.on_full(reading)

    def on_message_complete(self) -> None:
        reading = self.reading
        if reading is not None and self._unupgraded is None:
            self.reading = None
            reading.complete()
            self._taker.on_whole(reading)

    def _take(self, target: bytes, fields: RawFields) -> None:
        parser = self._parser
        # `_head_bytes` does not count the slice that is being parsed.
        is_head_long = self._head_bytes + _SLICE_BYTES > MAX_LINE_BYTES
        version = parser.get_http_version()
        known = self._last.next(fields) if self._last is not None else None
        self._last = known or RequestFields.read(fields, is_head_long=is_head_long)
        self._head = None
        request = Request(parser.get_method().decode(), target.decode("latin-1"), version, self._last)
        check_head(request)
        request.is_keep_alive = request.version == "1.1" and parser.should_keep_alive()
        if parser.should_upgrade():
            if request.is_for_websocket:
                request.is_keep_alive = False
            else:
                self._unupgraded = request
        self.reading = request
        self._repeated = request if known is not None else None
        self._framing_bytes = 0
        self._taker.on_request(request)


# Errors are created for each use: an exception keeps the stack frames in which it was raised, so a shared one would
# keep those of all connections.


def _not_framed() -> BadRequest:
    return BadRequest(400, "invalid_body", "the body's framing does not match its headers")


def _not_http() -> BadRequest:
    return BadRequest(400, "invalid_request", "the request is not valid HTTP")


def _too_large() -> BadRequest:
    return BadRequest(431, "head_too_large", "the headers or the request line are too long")
