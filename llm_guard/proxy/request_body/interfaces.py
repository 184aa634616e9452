"""Interfaces of a request body that is in a file, or still arriving.

`proxy.request_body.reader` receives bodies, `proxy.request_body.spooled_body` stores them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

Block = bytes | asyncio.Future[None]
"""A piece of a body; or, if the next piece has not arrived yet, a future that is done when it has."""


class FileBody(Protocol):
    """A request body that is not completely in memory."""

    @property
    def size(self) -> int | None:
        """Total size of all blocks in bytes; None while it arrives without an announced length."""

    def blocks(self) -> Iterator[Block]:
        """Yields the body from its beginning, at each call. Raises OSError."""


class BufferedBody(FileBody, Protocol):
    """A body that the gateway has received: see `proxy.request_body.spooled_body`."""

    async def renamed(self, model: str) -> FileBody:
        """Returns the body with another model."""

    def close(self) -> None:
        """Releases the body, at the end of the call."""
