"""Collects a response in memory, in place of a client's connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llm_guard.proxy.call import Headers
from llm_guard.proxy.http_client.interfaces import Inbox
from llm_guard.proxy.http_server.request import Request, RequestFields
from llm_guard.proxy.http_server.response_writer import ResponseWriter

MOST_BYTES = 64 * 1024**2
"""Default limit of a collected body; a larger response is broken off."""


class ResponseBuffer:
    """Implements `response_writer.ResponseConnection` by collecting what is written to its `reply()`."""

    def __init__(self, on_news: Callable[[], None] = lambda: None, most_bytes: int = MOST_BYTES) -> None:
        """`on_news` is called when something was written, or the response was broken off."""
        self.status = 0
        """Status of the response; 0 before it begins."""
        self.reason = ""
        self.headers: Headers = ()
        self.body = bytearray()
        self.is_broken = False
        """True if the response ended in the middle and must not be used as a complete one."""
        self.transport: asyncio.Transport  # never set: recorded calls are not upgraded
        self._on_news = on_news
        self._most_bytes = most_bytes

    def reply(self, method: str = "POST") -> ResponseWriter:
        """Returns the reply to write to, once. It speaks HTTP/1.0, so that the body has no chunk framing."""
        request = Request(method, "/", "1.0", RequestFields((), {}))
        request.complete()
        return ResponseWriter(request, self)

    # the interface of `response_writer.ResponseConnection`

    @property
    def is_stuck(self) -> bool:
        return False

    def push(self, data: bytes) -> bool:
        if not self.status:
            head, _, data = data.partition(b"\r\n\r\n")
            self._begin(head)
        self.body += data
        self._on_news()
        if len(self.body) > self._most_bytes:
            raise ConnectionResetError("the response is too large to be stored")
        return True

    async def wait_room(self) -> None:
        """Returns at once: there is always room."""

    def take_over(self, inbox: Inbox) -> None:  # noqa: ARG002  # part of the interface
        raise ConnectionResetError("a buffered response cannot be upgraded")

    def close(self) -> None:
        self.is_broken = True
        self._on_news()

    abort = close

    def _begin(self, head: bytes) -> None:
        line, *fields = head.decode("latin-1").split("\r\n")
        _, status, self.reason = line.split(" ", 2)
        self.status = int(status)
        pairs = (field.partition(": ") for field in fields)
        self.headers = tuple((name, value) for name, _, value in pairs)
