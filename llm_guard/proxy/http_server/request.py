"""One HTTP request: its validated head, and its body, which is read piece by piece.

Decides which heads are accepted at all (RFC 9112, and an allow-list of targets).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from urllib.parse import unquote

from llm_guard.proxy.http_server.request_fields import MAX_LINE_BYTES, RequestFields
from llm_guard.proxy.kept_errors import raisable
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.resilience.memo import Memo

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
