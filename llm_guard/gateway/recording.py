"""An answer that no client reads: what is written to it is kept.

Owns a reply's other end where there is no connection. Does not own what is done with the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llm_guard.call import Headers, Inbox
from llm_guard.gateway.reply import Reply
from llm_guard.gateway.request import Request

MOST_BYTES = 64 * 1024**2
"""More is not kept: the answer is broken off."""


class Recording:
    """Takes the place of a client's connection. `reply()` is what is written to."""

    def __init__(self, on_news: Callable[[], None] = lambda: None, most_bytes: int = MOST_BYTES) -> None:
        """`on_news` is called when something was written, or the answer was broken off."""
        self.status = 0
        """0: it has not begun."""
        self.reason = ""
        self.headers: Headers = ()
        self.body = bytearray()
        self.is_broken = False
        """It ended in the middle: nobody may take it for a whole one."""
        self.transport: asyncio.Transport  # there is none: nothing that is recorded is upgraded
        self._on_news = on_news
        self._most_bytes = most_bytes

    def reply(self, method: str = "POST") -> Reply:
        """HTTP/1.0: its body is not framed. Use it once."""
        request = Request(method, "/", "1.0", [])
        request.complete()
        return Reply(request, self)

    # as a reply sees it

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
            raise ConnectionResetError("the answer is too large to be kept")
        return True

    async def wait_room(self) -> None:
        """There always is."""

    def take_over(self, inbox: Inbox) -> None:  # noqa: ARG002  # of the interface
        raise ConnectionResetError("a recording cannot be upgraded")

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
