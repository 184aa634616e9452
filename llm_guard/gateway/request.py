"""One request as it came over the wire: its head, checked, and its body, read piece by piece.

Owns what a head must look like to be served at all (RFC 9112, and an allow-list of targets). Does not own the
connection that it came on (`gateway.client_connection`), nor what the request asks for (`gateway.server`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from urllib.parse import unquote

from llm_guard.call import Headers
from llm_guard.gateway.asked import BadRequest
from llm_guard.policy.memo import Memo

MAX_FIELDS = 128
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")

MAX_LINE_BYTES = 1 << 14
"""Longest target, and longest header."""
_UNREAD_BYTES = 1 << 18
"""More of a body than this is not read ahead of whoever takes it."""
_TINY_PIECES = 4096
_TINY_BYTES = 16
"""A body of so many pieces that are so small on average costs more to take apart than to serve (CVE-2025-69229)."""
_HOST = re.compile(r"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_PATH = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)+/?")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]|//|/\.{1,2}(?:/|$)")


class Request:
    """The head of a request, and its body as it comes."""

    __slots__ = (
        "_error", "_is_complete", "_pieces", "_pieces_count", "_resume", "_size", "_unread", "_waiter",
        "content_length", "headers", "is_keep_alive", "method", "names", "path", "query", "version",
    )  # fmt: skip

    def __init__(
        self, method: str, target: str, version: str, fields: list[tuple[bytes, bytes]], *, is_head_long: bool = True
    ) -> None:
        """Raises BadRequest. `is_head_long`: a header may be longer than the longest that is taken."""
        self.method = method
        self.path, _, self.query = target.partition("?")
        self.version = version
        self.headers, self.names = _read_fields(fields, is_head_long)
        self.content_length = int(self.names.get("content-length", "0"))
        """0 as well when the body is chunked."""
        self.is_keep_alive = True
        """Whether another request may follow on this connection."""
        self._pieces: list[bytes] = []
        self._pieces_count = self._size = self._unread = 0
        self._is_complete = False
        self._error: BadRequest | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._resume: Callable[[], None] | None = None

    @property
    def is_for_websocket(self) -> bool:
        """Whether it asks to be answered by one (RFC 6455, section 4.1)."""
        names = self.names
        has_body = self.content_length > 0 or "transfer-encoding" in names
        return self.method == "GET" and not has_body and names.get("upgrade", "").lower() == "websocket"

    @property
    def has_arrived(self) -> bool:
        """Whether all of it is here, its body included."""
        return self._is_complete

    @property
    def received_bytes(self) -> int:
        """Of the body, so far."""
        return self._size

    async def read(self) -> bytes:
        """What has come of the body; b"" at its end. Raises BadRequest when it is not framed as its head says, or too
        slow."""
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._is_complete:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.take()

    def take(self) -> bytes:
        """What has come of the body and was not taken."""
        pieces, self._pieces, self._unread = self._pieces, [], 0
        if self._resume is not None:
            self._resume()
            self._resume = None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # the connection's side

    def feed(self, piece: bytes) -> bool:
        """Takes a piece of the body; returns whether no more should be read for now."""
        self._pieces.append(piece)
        self._pieces_count += 1
        self._size += len(piece)
        self._unread += len(piece)
        if self._pieces_count > _TINY_PIECES and self._size < _TINY_BYTES * self._pieces_count:
            self.fail(BadRequest(413, "too_many_chunks", "the body comes in too many tiny chunks"))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return self._unread > _UNREAD_BYTES

    def resume_with(self, resume: Callable[[], None]) -> None:
        """`resume` is called when what was fed has been taken."""
        self._resume = resume

    def complete(self) -> None:
        """All of it has come."""
        self._is_complete = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: BadRequest) -> None:
        """The rest of the body will not come."""
        if self._error is None and not self._is_complete:
            self._error = error
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)


def check_head(request: Request) -> None:
    """Raises BadRequest for what a gateway must not guess about: where two readers of a head may differ, one of them
    can be made to see a request that the other did not (request smuggling)."""
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
    """What is wrong with a request that is framed well: a method or a target that no provider should see."""
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
    """`/upstreams/NAME/v1/…` as (NAME, /v1/…); any other path as (None, path)."""
    if not path.startswith("/upstreams/"):
        return None, path
    name, slash, rest = path.removeprefix("/upstreams/").partition("/")
    return name, slash + rest


def _is_crooked(path: str) -> bool:
    """To a server that decodes the path once, or to one that does so twice."""
    for _ in range(3):
        if _FORBIDDEN.search(path):
            return True
        path = unquote(path, "latin-1")
    return False


def _read_fields(fields: list[tuple[bytes, bytes]], is_head_long: bool) -> tuple[Headers, dict[str, str]]:
    """The fields as they came, and the first value of each by its lower-case name.

    Fields with an underscore are dropped: to a CGI or WSGI server behind us `X_Api_Key` is `X-Api-Key`.
    """
    if len(fields) > MAX_FIELDS:
        raise BadRequest(431, "head_too_large", f"more than {MAX_FIELDS} headers")
    if is_head_long and any(len(raw) + len(raw_value) > MAX_LINE_BYTES for raw, raw_value in fields):
        raise BadRequest(431, "head_too_large", "a header is too long")
    headers = []
    names: dict[str, str] = {}
    for raw, raw_value in fields:
        written, lower = _spellings_of[raw]
        if not lower:
            continue
        value = raw_value.decode("latin-1").rstrip(" \t")
        headers.append((written, value))
        if lower not in names:
            names[lower] = value
        elif lower == "host":
            raise BadRequest(400, "invalid_host", "there are two Host headers")
    return tuple(headers), names


def _spellings(raw: bytes) -> tuple[str, str]:
    """A header's name as it was written, and in lower case; "" where the header is dropped."""
    written = raw.decode("latin-1")
    return written, "" if "_" in written else written.lower()


def _is_plain_path(path: str) -> bool:
    return path == "/" or _PATH.fullmatch(path) is not None


def _is_host(host: str) -> bool:
    return _HOST.fullmatch(host) is not None


_spellings_of = Memo(_spellings)
_is_plain = Memo(_is_plain_path)
_is_known_host = Memo(_is_host)
