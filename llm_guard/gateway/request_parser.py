"""Bytes of a client as requests, by llhttp's strict parser (httptools).

Owns framing. Does not own what a head must look like (`gateway.request`), nor when a request is answered
(`gateway.client_connection`).
"""

from __future__ import annotations

from typing import Protocol

import httptools

from llm_guard.gateway.asked import BadRequest
from llm_guard.gateway.request import MAX_FIELDS, MAX_LINE_BYTES, Request, check_head

_MAX_HEAD_BYTES = 1 << 16
_SLICE_BYTES = 1 << 12
"""What a client pipelines is parsed so much at a time: what waits for its turn is bounded."""
_FRAMING_PER_BYTE = 8
"""A chunk of a single byte takes six around it."""


class Taker(Protocol):
    """Whom requests are for."""

    def on_begun(self) -> None:
        """The first byte of a head has come."""

    def on_request(self, request: Request) -> None:
        """A head has come; the body follows."""

    def on_whole(self, request: Request) -> None:
        """All of its body has come."""

    def on_full(self, request: Request) -> None:
        """More of its body has come than has been taken."""


class RequestParser:
    """The requests of one connection, one after the other. httptools calls the `on_...`."""

    __slots__ = (
        "_bad", "_fields", "_framing_bytes", "_head_bytes", "_parser", "_taker", "_target", "_unupgraded", "is_in_head",
        "reading",
    )  # fmt: skip

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        self._parser = httptools.HttpRequestParser(self)
        self.is_in_head = False
        self.reading: Request | None = None
        """Whose body comes now."""
        self._head_bytes = self._framing_bytes = 0
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._bad: BadRequest | None = None
        self._unupgraded: Request | None = None
        """It asks for an upgrade that it does not get."""

    def feed(self, data: bytes) -> bytes:
        """Parses some of `data`; returns what is left of it, b"" behind a request for a WebSocket. Raises BadRequest:
        what comes is not a request, and nothing behind it can be told."""
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
        return rest

    def _weigh(self, reading: Request, framing_bytes: int) -> None:
        """llhttp passes over chunk extensions of any length (CVE-2024-22019), and trailers are dropped here."""
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
        """Parsing stopped behind a request for an upgrade; returns what is still to be parsed."""
        request = self._unupgraded
        if request is None:
            return rest
        # JDK's client asks for h2c with every request and sends its body regardless, but llhttp has let go of the
        # message: another parser is told how the body is framed.
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
        else:  # a trailer: no part of what was asked, nor of what is asked next
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

    def _take(self, target: bytes, fields: list[tuple[bytes, bytes]]) -> None:
        parser = self._parser
        # `_head_bytes` does not count the slice that is being parsed.
        is_head_long = self._head_bytes + _SLICE_BYTES > MAX_LINE_BYTES
        version = parser.get_http_version()
        request = Request(
            parser.get_method().decode(), target.decode("latin-1"), version, fields, is_head_long=is_head_long
        )
        check_head(request)
        request.is_keep_alive = request.version == "1.1" and parser.should_keep_alive()
        if parser.should_upgrade():
            if request.is_for_websocket:
                request.is_keep_alive = False
            else:
                self._unupgraded = request
        self.reading = request
        self._framing_bytes = 0
        self._taker.on_request(request)


# Made anew each time: an exception keeps the frames of whoever has raised it, and one for all those of everybody.


def _not_framed() -> BadRequest:
    return BadRequest(400, "invalid_body", "the body is not framed as its headers say")


def _not_http() -> BadRequest:
    return BadRequest(400, "invalid_request", "the request is not valid HTTP")


def _too_large() -> BadRequest:
    return BadRequest(431, "head_too_large", "the headers or the request line are too long")
