"""Parses the responses on a connection, one after the other, with llhttp's strict parser (httptools).

Accepts only strict HTTP/1.1 (and 1.0): a response that two parsers could understand differently is refused. The
connection is in `proxy.http_client.connection`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import httptools

from llm_guard.proxy.call import Headers

_MAX_HEAD_BYTES = 1 << 16
_MAX_FIELD_BYTES = 1 << 15
_MAX_FIELDS = 200
_MAX_INTERIM = 1000
_VERSIONS = ("1.1", "1.0")
_USUAL = b"HTTP/1.1 "
_SPACE = 32
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_KEEP_ALIVE = re.compile(rb"timeout=([0-9]{1,6})", re.IGNORECASE)
_NAMES_KEPT = 1024

_names: dict[bytes, str] = {}
"""Header names as they were written, except those that `_note` must handle. Bounded, because upstreams choose them."""


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
        "_reason",
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
        self.headers: Headers = ()
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
        self.parser = httptools.HttpResponseParser(self)

    def expect(self, *, is_head: bool, is_upgrade: bool) -> None:
        """Prepares for the next response: to a HEAD, to a request for an upgrade, or to another request."""
        self._is_head, self._is_upgrade = is_head, is_upgrade
        self.status = self._head_bytes = self._interims = 0
        self.is_complete = False

    def note_head(self, data: bytes) -> None:
        """Notes bytes with which the head begins or continues, before the parser is fed."""
        if not self._head_bytes:
            self._is_usual = data.startswith(_USUAL)
        self._head_bytes += len(data)

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
