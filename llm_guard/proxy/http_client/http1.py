"""HTTP/1.1 as an upstream speaks it: writes the heads of requests, and parses responses (RFC 9112).

Guarantees that a head is exactly one request, with any header values from a client or the config; its framing is the
gateway's own. Parses with llhttp's strict parser (httptools), and refuses a response that two parsers could understand
differently. `proxy.headers` decides which headers are forwarded, `proxy.http_client.connection` has the connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import httptools

from llm_guard.proxy.http_client.errors import unsendable

_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING = frozenset({"host", "content-length", "transfer-encoding"})
_NAMES_KEPT = 1024
_NOTHING = ("", "", "")

_sound_names: set[str] = set()
"""Header names that passed the check; bounded, because clients choose them. Never contains `Upgrade`, so that each use
of it is noticed."""


class RequestHeaders:
    """Headers of requests to an upstream, without those that frame them. They are never changed, so requests may share
    them: those of one client's connection usually have the same headers, and the same target."""

    __slots__ = ("_beginning", "_begins", "is_upgrade", "pairs")

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self.pairs = pairs
        self.is_upgrade = False
        """True if they ask for an upgrade; known after `beginning`."""
        self._begins = _NOTHING
        """Method, target and host of the latest head."""
        self._beginning = b""

    def beginning(self, method: str, target: str, host: str) -> bytes:
        """Returns a head without the body's framing and its end. Raises UpstreamError."""
        begins = (method, target, host)
        if begins != self._begins:
            self._beginning = self._written(method, target, host)
            self._begins = begins
        return self._beginning

    def _written(self, method: str, target: str, host: str) -> bytes:
        if method not in _METHODS or target[:1] != "/" or " " in target:
            raise unsendable("its method or its target is not valid")
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
        for name, value in self.pairs:
            if name not in _sound_names:
                self.is_upgrade |= _check_name(name)
            lines.append(f"{name}: {value}")
        # One check over all lines, so that none can be missed.
        text = "".join(lines)
        if "\r" in text or "\n" in text or "\0" in text:
            raise unsendable("a header or its target has a control character")
        lines.append("")
        try:
            return "\r\n".join(lines).encode("latin-1")
        except UnicodeEncodeError:
            raise unsendable("a header or its target has a character beyond latin-1") from None


def request_head(method: str, target: str, host: str, headers: RequestHeaders, body_size: int | None) -> bytes:
    """Returns the head. Only Host and the body's framing are added: its length, or chunked if `body_size` is None.

    Raises UpstreamError (INTERNAL) if the result would not be exactly one request; nothing is sent then.
    """
    beginning = headers.beginning(method, target, host)
    if body_size is None:
        return beginning + b"Transfer-Encoding: chunked\r\n\r\n"
    if body_size or method in _METHODS_WITH_BODY:
        return b"%bContent-Length: %d\r\n\r\n" % (beginning, body_size)
    return beginning + b"\r\n"


def _check_name(name: str) -> bool:
    """Returns True for `Upgrade`; raises UpstreamError for an invalid name, or one that would frame the request."""
    lower = name.lower()
    if not _TOKEN.fullmatch(name) or lower in _FRAMING:
        raise unsendable("a header's name is not valid")
    if lower == "upgrade":
        return True
    if len(_sound_names) < _NAMES_KEPT and len(name) <= 64:
        _sound_names.add(name)
    return False


_MAX_HEAD_BYTES = 1 << 16
_MAX_FIELD_BYTES = 1 << 15
_MAX_FIELDS = 200
_MAX_INTERIM = 1000
_VERSIONS = ("1.1", "1.0")
_USUAL = b"HTTP/1.1 "
_SPACE = 32
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_KEEP_ALIVE = re.compile(rb"timeout=([0-9]{1,6})", re.IGNORECASE)
_END = b"\r\n\r\n"
_PLAIN = re.compile(rb"[!-~](?:[ -~]*[!-~])?")
_STEADY = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
"""Headers that mean something for the connection: a head in which one has changed is parsed."""
_BODILESS = frozenset({204, 304})
_MOST_DIGITS = 12
_MOST_KEPT = 4
"""So many heads of a connection are kept to recognize the next one: where they differ more, it would cost too much."""

_names: dict[bytes, str] = {}
"""Header names as they were written, except those that `_note` must handle. Bounded, because upstreams choose them."""


class RepeatedResponseHead:
    """The lines of a head, by which the next one on the connection is recognized.

    A provider's heads differ in the values of a few headers, and comparing lines costs a third of parsing them. Only a
    whole response is recognized, with the same status line and names, a length, and plain values where they differ.
    """

    __slots__ = ("_beginnings", "_headers", "_length_at", "_lines", "keep_alive_s", "reason", "status")

    def __init__(self, lines: list[bytes], response: ResponseParser, length_at: int) -> None:
        self.status, self.reason = response.status, response.reason
        self._lines = lines
        self._headers = response.headers
        self._length_at = length_at
        """Index of Content-Length among the headers."""
        names = [name.lower() for name, _ in response.headers]
        self.keep_alive_s = response.keep_alive_s if "keep-alive" in names else None
        self._beginnings = [b""]
        """The part of each line before its value; empty if the line must not change."""
        for lower, (name, _) in zip(names, response.headers, strict=True):
            self._beginnings.append(b"" if lower in _STEADY else name.encode("latin-1") + b": ")

    @classmethod
    def of(cls, data: bytes, response: ResponseParser) -> RepeatedResponseHead | None:
        """Returns the head of a response that was parsed from `data`. None if `data` is more or less than this one
        response, or has no length."""
        lines = data.partition(_END)[0].split(b"\r\n")
        lengths = [at for at, (name, _) in enumerate(response.headers) if name.lower() == "content-length"]
        if len(lengths) != 1 or len(lines) != len(response.headers) + 1 or response.status in _BODILESS:
            return None
        found = cls(lines, response, lengths[0])
        return found if found.split(data) is not None else None

    def split(self, data: bytes) -> tuple[tuple[tuple[str, str], ...], bytes] | None:
        """Returns the headers and the body of a response, if `data` is exactly one with this head."""
        head, end, body = data.partition(_END)
        lines, mine = head.split(b"\r\n"), self._lines
        if not end or len(head) > _MAX_FIELD_BYTES or len(lines) != len(mine):
            return None
        headers = list(self._headers)
        for at, line in enumerate(lines):
            if line != mine[at]:
                begins = self._beginnings[at]
                value = line[len(begins) :]
                if not begins or not line.startswith(begins) or _PLAIN.fullmatch(value) is None:
                    return None
                headers[at - 1] = (headers[at - 1][0], value.decode("latin-1"))
        length = headers[self._length_at][1]
        is_whole = len(length) <= _MOST_DIGITS and length.isdecimal() and int(length) == len(body)
        return (tuple(headers), body) if is_whole else None


class ResponseParser:
    """The state of the response to one request, and whether another may follow. The parser calls the `on_...` methods,
    and raises their exceptions as an HttpParserError."""

    __slots__ = (
        "_codings",
        "_fields",
        "_head_bytes",
        "_interims",
        "_is_head",
        "_is_upgrade",
        "_is_usual",
        "_kept",
        "_reason",
        "_repeated",
        "has_interim",
        "headers",
        "is_complete",
        "is_kept",
        "keep_alive_s",
        "on_body",
        "parser",
        "pieces",
        "reason",
        "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status = 0
        """0 until the head is complete."""
        self.reason = ""
        self.headers: tuple[tuple[str, str], ...] = ()
        """Header values decoded as latin-1, so that their bytes can be written again; without control characters except
        tabs."""
        self.pieces: list[bytes] = []
        """Pieces of the body. The reader clears the list."""
        self.on_body: Callable[[bytes], None] = self.pieces.append  # avoids a Python call per chunk
        self._head_bytes = 0
        self._is_usual = False
        """True if the next head is known to be of HTTP/1.1: httptools writes a version as text, which takes longer than
        reading the head."""
        self.is_complete = False
        self.is_kept = False
        """True if the upstream keeps the connection open after the response."""
        self.keep_alive_s: int | None = None
        """Seconds for which it is kept open, if the upstream has said so."""
        self.has_interim = False
        """True after an informational response. The connection handles it and resets this."""
        self._is_head = self._is_upgrade = False
        self._fields: list[tuple[str, str]] = []
        self._reason = b""
        self._codings = self._interims = 0
        self._repeated: RepeatedResponseHead | None = None
        """The latest head that was kept."""
        self._kept = 0
        """Number of heads that were kept."""
        self.parser = httptools.HttpResponseParser(self)

    def expect(self, *, is_head: bool, is_upgrade: bool) -> None:
        """Prepares for the next response: to a HEAD, to a request for an upgrade, or to another request."""
        self._is_head, self._is_upgrade = is_head, is_upgrade
        self.status = self._head_bytes = self._interims = 0
        self.is_complete = False

    def feed(self, data: bytes) -> None:
        """Parses bytes. Raises HttpParserUpgrade after a switch of protocols, HttpParserError if they are invalid."""
        is_first = not self._head_bytes
        if not self.status:
            self._head_bytes += len(data)
        if is_first:
            if self._repeated is not None and self._take_repeated(self._repeated, data):
                return
            self._is_usual = data.startswith(_USUAL)
        self.parser.feed_data(data)
        if is_first and self.is_complete and self.is_kept and self._kept < _MOST_KEPT and not self._interims:
            self._kept += 1
            self._repeated = RepeatedResponseHead.of(data, self)

    def _take_repeated(self, head: RepeatedResponseHead, data: bytes) -> bool:
        """Takes a response that is recognized, and returns True. llhttp is not involved: it waits for the next one
        already."""
        if self._is_head or self._is_upgrade or (parts := head.split(data)) is None:
            return False
        self.headers, body = parts
        self.status, self.reason = head.status, head.reason
        if head.keep_alive_s is not None:
            self.keep_alive_s = head.keep_alive_s
        if body:
            self.on_body(body)
        self.is_complete = True
        return True

    @property
    def is_framed(self) -> bool:
        """True if the body has a length or is chunked, rather than ended by the connection's close."""
        return any(name.lower() in ("content-length", "transfer-encoding") for name, _ in self.headers)

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise ValueError("bytes after the response")
        self._fields = []
        self._reason = b""
        self._codings = 0

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if value and value[-1] <= _SPACE:
            value = value.rstrip()
        self._fields.append((_names.get(name) or self._note(name, value), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        status, version = self.parser.get_status_code(), "1.1" if self._is_usual else self.parser.get_http_version()
        if not 100 <= status <= 599 or version not in _VERSIONS or (self._codings and version != "1.1"):
            raise ValueError("an invalid status or HTTP version")
        if self._head_bytes > _MAX_FIELD_BYTES or len(self._fields) > _MAX_FIELDS:
            self._check_size()
        if status == 101 and not (self._is_upgrade and self.parser.should_upgrade()):
            raise ValueError("switched protocols without a request for it")
        if status < 200 and status != 101:
            self._is_usual = False  # another head follows
            return
        self.is_kept = version == "1.1" and self.parser.should_keep_alive()
        reason = self._reason.decode("latin-1")
        self.reason = reason if reason.isprintable() else _CONTROL.sub(" ", reason)
        self.headers = tuple(self._fields)
        self.status = status
        if self._is_head:
            self.is_complete = True
            raise ValueError("the end of the response, which the parser cannot detect: it has no body")

    def on_message_complete(self) -> None:
        if self.status >= 200:
            self.is_complete = True
        elif not self.status:
            self._interims += 1
            self.has_interim = True
            if self._interims > _MAX_INTERIM:
                raise ValueError("too many interim responses")

    def _note(self, raw: bytes, value: bytes) -> str:
        """Returns a header name as it is written, and handles the headers that affect the connection."""
        name = raw.decode("latin-1")
        match name.lower():
            case "transfer-encoding":
                self._codings += 1
                if self._codings > 1 or value.rstrip().lower() != b"chunked":
                    raise ValueError("a transfer coding other than chunked")
            case "keep-alive":
                if (said := _KEEP_ALIVE.search(value)) is not None:
                    self.keep_alive_s = int(said[1])
            case _ if len(_names) < _NAMES_KEPT and len(raw) <= 64:
                _names[raw] = name
        return name

    def _check_size(self) -> None:
        sizes = [len(name) + len(value) + 4 for name, value in self._fields]
        if len(sizes) > _MAX_FIELDS or sum(sizes) > _MAX_HEAD_BYTES or max(sizes, default=0) > _MAX_FIELD_BYTES:
            raise ValueError("too many headers, or too long")
