"""A body on its way to one upstream while it still arrives from the client.

Owns how far one attempt has got with it, and which part of the time is the client's. Does not own the body
(`gateway.body`), nor the connection (`gateway.upstream_connection`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

from llm_guard.request_body import Block, FileBody


class Limits(Protocol):
    """The time limits of the attempt."""

    def on_block(self) -> None:
        """The provider has taken what had arrived so far: its time begins again."""

    def on_client_awaited(self) -> None:
        """The provider has all that has arrived: until there is more, it is not the provider that takes the time."""


class Sending:
    """Fits `call.FileBody`, for one attempt."""

    def __init__(self, body: FileBody, limits: Limits) -> None:
        self.size = body.size
        """Fixed when the attempt begins: the request is framed by it, even if the body is complete soon after."""
        self.is_complete = False
        """The whole request is on its way: it may be executed."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when nothing more is sent: all of it was, or the connection has no use for the rest."""
        self._body = body
        self._limits = limits

    def blocks(self) -> Iterator[Block]:
        """To be called once. Raises OSError."""
        sent_bytes = 0
        try:
            for block in self._body.blocks():
                if isinstance(block, bytes):
                    self._limits.on_block()
                    sent_bytes += len(block)
                    self.is_complete = sent_bytes == self.size  # before the last block is out, never after
                else:
                    self._limits.on_client_awaited()
                yield block
            self.is_complete = True
            self._limits.on_block()
        finally:
            if not self.ended.done():
                self.ended.set_result(None)
