"""Recognizes a request whose head differs from the one before only in Content-Length.

SDKs repeat the bytes of a head with each request of a connection. Comparing them costs a tenth of parsing them.
"""

from __future__ import annotations

import re

from llm_guard.proxy.http_server.request import Request

_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)(?=\r\n)", re.IGNORECASE)
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
        found = _LENGTH.search(head)
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
