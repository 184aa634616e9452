"""One HTTP request of a client: parsed from its bytes, its head checked, and its body read piece by piece.

Parses with llhttp in strict mode (httptools), and decides which heads are accepted at all (RFC 9112, and an allow-list
of targets). Clients send nearly the same head with each request of a connection, so one that differs only in
Content-Length is recognised by its bytes, and header fields are parsed once per connection (`RequestFields.next`).
`proxy.http_server.connection` schedules the requests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import unquote

import httptools

from llm_guard.proxy.call import Headers, SentHeaders
from llm_guard.proxy.headers import CallerDigests, digests_of
from llm_guard.proxy.kept_errors import raisable
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.resilience.memo import Memo

MAX_FIELDS = 128
MAX_LINE_BYTES = 1 << 14
"""Longest accepted target, and longest header."""
_LENGTH = "content-length"

RawFields = list[tuple[bytes, bytes]]


class RequestFields:
    """The fields of one head, and what follows from them alone. They are never changed, so requests may share them."""

    __slots__ = ("_caller", "_length_at", "_raw", "headers", "names", "sent_headers")

    def __init__(self, headers: Headers, names: Mapping[str, str], raw: RawFields | None = None) -> None:
        self.headers = headers
        """The fields in order, with their names as written."""
        self.names = names
        """The first value of each field, by its lower-case name."""
        self._raw = raw
        """The fields as received; None if those of the next request cannot be compared with them."""
        self._length_at = -1
        """Index of Content-Length; -1 if there is none, or several."""
        self._caller: CallerDigests | None = None
        self.sent_headers: dict[str, SentHeaders] | None = {} if raw is not None else None
        """See `Call.sent_headers`."""

    @classmethod
    def read(cls, raw: RawFields, *, is_head_long: bool) -> RequestFields:
        """Parses fields. Raises BadRequest. Lengths are checked only if `is_head_long`: in a short head no field can be
        too long.

        Drops fields with an underscore: to a CGI or WSGI upstream `X_Api_Key` is the same as `X-Api-Key`.
        """
        if len(raw) > MAX_FIELDS:
            raise BadRequest(431, "head_too_large", f"more than {MAX_FIELDS} headers")
        if is_head_long and any(len(name) + len(value) > MAX_LINE_BYTES for name, value in raw):
            raise BadRequest(431, "head_too_large", "a header is too long")
        headers = []
        names: dict[str, str] = {}
        for raw_name, raw_value in raw:
            written, lower = _spellings_of[raw_name]
            if not lower:
                continue
            value = raw_value.decode("latin-1").rstrip(" \t")
            headers.append((written, value))
            if lower not in names:
                names[lower] = value
            elif lower == "host":
                raise BadRequest(400, "invalid_host", "there are two Host headers")
        is_comparable = not is_head_long and len(headers) == len(names) == len(raw)
        fields = cls(tuple(headers), names, raw if is_comparable else None)
        if is_comparable and _LENGTH in names:
            fields._length_at = list(names).index(_LENGTH)
        return fields

    def next(self, raw: RawFields) -> RequestFields | None:
        """Returns the fields of the connection's next request, if they are these but for the value of
        Content-Length. Parsing costs four times as much as this comparison."""
        mine, at = self._raw, self._length_at
        if raw == mine:
            return self
        if mine is None or at < 0 or len(raw) != len(mine):
            return None
        length = raw[at]
        if length[0] != mine[at][0] or raw[:at] != mine[:at] or raw[at + 1 :] != mine[at + 1 :]:
            return None
        return self._with_length(length[1], raw)

    def with_length(self, value: bytes) -> RequestFields:
        """Returns these fields with another value of Content-Length; they must be comparable and have one."""
        mine, at = self._raw or [], self._length_at
        if mine[at][1] == value:
            return self
        return self._with_length(value, [*mine[:at], (mine[at][0], value), *mine[at + 1 :]])

    def _with_length(self, raw_value: bytes, raw: RawFields) -> RequestFields:
        at, value = self._length_at, raw_value.decode("latin-1").rstrip(" \t")
        headers = (*self.headers[:at], (self.headers[at][0], value), *self.headers[at + 1 :])
        fields = RequestFields(headers, {**self.names, _LENGTH: value}, raw)
        fields._length_at, fields._caller, fields.sent_headers = at, self._caller, self.sent_headers
        return fields

    @property
    def caller(self) -> CallerDigests:
        """Digests of the keys and of the account that the fields name."""
        if self._caller is None:
            self._caller = digests_of(self.headers, self.names)
        return self._caller


def _spellings(raw: bytes) -> tuple[str, str]:
    """Returns a header's name as written and in lower case; the latter is "" if the header is to be dropped."""
    written = raw.decode("latin-1")
    return written, "" if "_" in written else written.lower()


_spellings_of = Memo(_spellings)


METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")

_UNREAD_BYTES = 1 << 18
"""The most of a body that is read ahead of its reader."""
_TINY_PIECES = 4096
_TINY_BYTES = 16
"""Average piece size below which a body of more than `_TINY_PIECES` pieces is rejected: parsing it would cost more than
serving it (CVE-2025-69229)."""
_HOST = re.compile(r"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_PATH = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)+/?")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]|//|/\.{1,2}(?:/|$)")


class Request:
    """The head of a request, and its body as it arrives."""

    __slots__ = (
        "_error", "_pieces", "_pieces_count", "_resume", "_unread", "_waiter", "content_length", "fields",
        "has_arrived", "headers", "is_keep_alive", "method", "names", "path", "query", "received_bytes", "version",
    )  # fmt: skip

    def __init__(self, method: str, target: str, version: str, fields: RequestFields) -> None:
        self.method = method
        self.path, _, self.query = target.partition("?")
        self.version = version
        self.fields = fields
        self.headers, self.names = fields.headers, fields.names
        self.content_length = int(self.names.get("content-length", "0"))
        """Value of Content-Length; also 0 if the body is chunked."""
        self.is_keep_alive = True
        """True if another request may follow on this connection."""
        self._pieces: list[bytes] = []
        self._pieces_count = self._unread = 0
        self.received_bytes = 0
        """Bytes of the body received so far."""
        self.has_arrived = False
        """True once the whole request has arrived, its body included."""
        self._error: BadRequest | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._resume: Callable[[], None] | None = None

    @property
    def is_for_websocket(self) -> bool:
        """True if it is a WebSocket handshake (RFC 6455, section 4.1)."""
        if self.method != "GET" or self.content_length > 0 or "transfer-encoding" in self.names:
            return False
        return self.names.get("upgrade", "").lower() == "websocket"

    async def read(self) -> bytes:
        """Returns what has arrived of the body; b"" at its end. Raises BadRequest if its framing contradicts the head,
        or if it is too slow."""
        while not self._pieces:
            if self._error is not None:
                raise raisable(self._error)
            if self.has_arrived:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.take()

    def take(self) -> bytes:
        """Returns what has arrived of the body and was not yet taken."""
        pieces, self._pieces, self._unread = self._pieces, [], 0
        if self._resume is not None:
            self._resume()
            self._resume = None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # the connection's side

    def feed(self, piece: bytes) -> bool:
        """Adds a piece of the body. Returns True if the connection should pause reading."""
        self._pieces.append(piece)
        self._pieces_count += 1
        self.received_bytes += len(piece)
        self._unread += len(piece)
        if self._pieces_count > _TINY_PIECES and self.received_bytes < _TINY_BYTES * self._pieces_count:
            self.fail(BadRequest(413, "too_many_chunks", "the body comes in too many tiny chunks"))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return self._unread > _UNREAD_BYTES

    def resume_with(self, resume: Callable[[], None]) -> None:
        """Registers `resume` to be called once the pieces have been taken."""
        self._resume = resume

    def complete(self) -> None:
        """Marks the request as complete."""
        self.has_arrived = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: BadRequest) -> None:
        """Marks the body as failed: its reader gets `error`."""
        if self._error is None and not self.has_arrived:
            self._error = error
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)


def check_head(request: Request) -> None:
    """Raises BadRequest for an ambiguous head: where two parsers may differ, one can be made to see a request that the
    other does not (request smuggling)."""
    names = request.names
    if request.version not in ("1.1", "1.0"):
        raise BadRequest(505, "unsupported_http_version", "the gateway speaks HTTP/1.1 and HTTP/1.0")
    host = names.get("host")
    if host is None:
        if request.version == "1.1":
            raise BadRequest(400, "invalid_host", "the Host header is missing")
    elif not _is_known_host[host]:
        raise BadRequest(400, "invalid_host", "the Host header is not a host name with an optional port")
    coding = names.get("transfer-encoding")
    if coding is not None and (coding.lower() != "chunked" or request.version == "1.0"):
        raise BadRequest(400, "invalid_transfer_encoding", "the only transfer coding is chunked, in HTTP/1.1")


def objection(request: Request) -> BadRequest | None:
    """Returns the error of a well-framed request with a method or target that no provider should see; else None."""
    path, query = request.path, request.query
    if request.method not in METHODS:
        return BadRequest(405, "method_not_allowed", f"use one of {', '.join(METHODS)}")
    if len(path) + len(query) > MAX_LINE_BYTES:
        return BadRequest(431, "head_too_large", "the request line is too long")
    if "#" in query or not _is_plain[path]:
        return BadRequest(400, "invalid_path", "the request target is not a plain path with an optional query")
    if ("%" in path or "/." in path) and _is_crooked(path):
        return BadRequest(400, "invalid_path", "the path has an empty or a dot segment, or a control character")
    return None


def without_upstream(path: str) -> tuple[str | None, str]:
    """Splits `/upstreams/NAME/v1/…` into (NAME, /v1/…); returns (None, path) for any other path."""
    if not path.startswith("/upstreams/"):
        return None, path
    name, slash, rest = path.removeprefix("/upstreams/").partition("/")
    return name, slash + rest


def _is_crooked(path: str) -> bool:
    """Returns True if the path is unsafe as it is, decoded once, or decoded twice: servers differ in that."""
    for _ in range(3):
        if _FORBIDDEN.search(path):
            return True
        path = unquote(path, "latin-1")
    return False


def _is_plain_path(path: str) -> bool:
    return path == "/" or _PATH.fullmatch(path) is not None


def _is_host(host: str) -> bool:
    return _HOST.fullmatch(host) is not None


_is_plain = Memo(_is_plain_path)
_is_known_host = Memo(_is_host)


_END = b"\r\n\r\n"
_LENGTH_FIELD = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)(?=\r\n)", re.IGNORECASE)
_MOST_DIGITS = 12


class RepeatedHead:
    """The bytes of a head, before and after the value of Content-Length."""

    __slots__ = ("_after", "_before", "_value_at", "method", "target", "version")

    def __init__(self, before: bytes, after: bytes, request: Request) -> None:
        self._before = before
        self._after = after
        self._value_at = len(before)
        self.method, self.version = request.method, request.version
        self.target = f"{request.path}?{request.query}" if request.query else request.path

    @classmethod
    def of(cls, data: bytes, request: Request) -> RepeatedHead | None:
        """Returns the head of `request`, which was parsed from `data`. None if `data` is more or less than this one
        request, or if the head means something for the connection beside the request."""
        head = data[: data.find(_END) + len(_END)]
        found = _LENGTH_FIELD.search(head)
        if found is None or not request.is_keep_alive or "upgrade" in request.names:
            return None
        if not request.has_arrived or len(data) != len(head) + request.content_length:
            return None
        return cls(head[: found.start(1)], head[found.end(1) :], request)

    def split(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Returns the value of Content-Length and the body, if `data` is exactly one request with this head."""
        if not data.startswith(self._before):
            return None
        end = data.find(b"\r", self._value_at, self._value_at + _MOST_DIGITS)
        value = data[self._value_at : end]
        if end < 0 or not value.isdigit() or not data.startswith(self._after, end):
            return None
        body = data[end + len(self._after) :]
        return (value, body) if len(body) == int(value) else None


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
