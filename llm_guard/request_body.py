"""The body of a request as its call and its exchanges see it: whole, in a file, or still arriving.

Owns these interfaces alone. Does not own how a body is received (`gateway.body`) or kept (`gateway.stored_body`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

Block = bytes | asyncio.Future[None]
"""A piece of a body; or, where the rest of the body has not arrived yet, a future that is done when more of it has."""


class FileBody(Protocol):
    """A request's body that is not in memory, or not as a whole."""

    @property
    def size(self) -> int | None:
        """In bytes: of all blocks together. None while it arrives without an announced length."""

    def blocks(self) -> Iterator[Block]:
        """From the beginning, each time. Raises OSError."""


class StoredBody(FileBody, Protocol):
    """One that the gateway has received: see `gateway.stored_body`."""

    async def renamed(self, model: str) -> FileBody:
        """With another model."""

    def close(self) -> None:
        """Once the call is over."""
