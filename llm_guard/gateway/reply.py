"""What a client gets for one call: an answer, whole or bit by bit, or one that is broken off.

Owns the client's side of the connection. Does not own what is written (`gateway.server`, `gateway.relay`).
"""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import web

from llm_guard.call import Call

_WRITE_BUFFER_BYTES = 1 << 16
_EARLY_HEADERS = {
    True: [
        ("Content-Type", "text/event-stream; charset=utf-8"),
        ("Cache-Control", "no-cache"),
        ("X-Accel-Buffering", "no"),  # nginx would keep back what is meant to reach the client now
    ],
    False: [("Content-Type", "application/json")],
}
_WAIT = {True: b": waiting\n\n", False: b"\n"}
"""A comment; before a JSON body a blank line, as DeepSeek sends them."""


class Reply:
    """The answer to one request."""

    def __init__(self, request: web.BaseRequest) -> None:
        self.request = request
        self.response: web.StreamResponse | None = None
        """Once its head is sent."""
        self.is_early = False
        """Nothing was sent but a head of our own, before anybody had answered, and words that say nothing."""

    @property
    def has_begun(self) -> bool:
        """Something of an answer was sent: it can only go on or be broken off."""
        return self.request.writer.output_size > 0

    async def send(self, status: int, reason: str, headers: list[tuple[str, str]], body: bytes) -> web.StreamResponse:
        """Sends a whole answer; behind an early head, its body."""
        if self.response is None:
            await self.begin(status, reason, headers, None if self.request.method == "HEAD" else len(body))
        assert self.response is not None  # noqa: S101  # begin has set it
        await self.response.write_eof(b"" if self.request.method == "HEAD" else body)
        return self.response

    async def begin(
        self, status: int, reason: str, headers: list[tuple[str, str]], length: int | None = None
    ) -> web.StreamResponse:
        """Sends the head, unless one was sent early."""
        self.is_early = False
        if self.response is None:
            response = web.StreamResponse(status=status, reason=reason or None, headers=headers)
            if ("Connection", "close") in headers:
                response.force_close()  # a header alone does not: the client would be told, and the connection stay
            if length is not None:
                response.content_length = length
            self.response = response
            await response.prepare(self.request)
        return self.response

    async def keep_waiting(self, call: Call, headers: list[tuple[str, str]]) -> None:
        """Tells a client that waits that it is not forgotten, behind a head of our own if there is none yet."""
        if self.response is None:
            call.sent_status = 200
            call.lift_patience()
            await self.begin(200, "OK", [*_EARLY_HEADERS[call.is_stream], *headers])
            self.is_early = True
        assert self.response is not None  # noqa: S101  # begin has set it
        await self.response.write(_WAIT[call.is_stream])

    async def break_off(self, last_words: bytes = b"") -> web.StreamResponse:
        """Ends an answer that has begun so that nobody takes it for a whole one: the connection is closed in the middle
        of the body. `last_words` are for a client that still reads."""
        transport = self.request.transport
        if transport is not None and transport.get_write_buffer_size() > _WRITE_BUFFER_BYTES:
            transport.abort()
        elif transport is not None:
            if last_words and self.response is not None:
                with contextlib.suppress(ConnectionError):
                    await self.response.write(last_words)
            self.request.protocol.force_close()
        return self.response or web.StreamResponse()

    def abort(self) -> None:
        """Ends the connection at once: there is nobody to be told anything."""
        if self.request.transport is not None:
            self.request.transport.abort()


def uncancel() -> None:
    """Takes back the cancellation by which a drain has ended the current call, so that it can say its last words."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  # a coroutine runs in one
    task.uncancel()
