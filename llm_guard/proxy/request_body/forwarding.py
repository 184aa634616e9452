"""Forwards a body to one upstream while it still arrives from the client.

Tracks an attempt's progress with the body, and the time spent waiting for the client. `proxy.request_body.reader` has
the body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

from llm_guard.proxy.request_body.interfaces import Block, FileBody


class SendTimeLimits(Protocol):
    """The time limits of the attempt."""

    def on_block(self) -> None:
        """Called before each block is sent and at the body's end: the provider's time starts again."""

    def on_client_awaited(self) -> None:
        """Called when the provider has all that has arrived: from then on the client is waited for."""


class ForwardedBody:
    """A body on its way in one attempt; implements `proxy.request_body.interfaces.FileBody`."""

    def __init__(self, body: FileBody, limits: SendTimeLimits) -> None:
        self.size = body.size
        """Size that frames the request: fixed when the attempt begins, even if the body is complete soon after."""
        self.is_complete = False
        """True once the whole request is on its way, so that it may be executed."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when nothing more is sent: the body is complete, or the connection does not need the rest."""
        self._body = body
        self._limits = limits

    def blocks(self) -> Iterator[Block]:
        """Yields the body's blocks; may be called once. Raises OSError."""
        sent_bytes = 0
        try:
            for block in self._body.blocks():
                if isinstance(block, bytes):
                    self._limits.on_block()
                    sent_bytes += len(block)
                    self.is_complete = sent_bytes == self.size  # set before the last block is sent, never after
                else:
                    self._limits.on_client_awaited()
                yield block
            self.is_complete = True
            self._limits.on_block()
        finally:
            if not self.ended.done():
                self.ended.set_result(None)
