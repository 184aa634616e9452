"""The bytes of one request body as they arrive: in memory, and above 1 MiB in a file.

Owns the bytes, and the wait for more of them. `proxy.request_body.reader` receives them; `proxy.request_body.spool`
limits the disk space of all bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from io import BytesIO

from llm_guard.proxy.request_body.interfaces import Block
from llm_guard.proxy.request_body.spool import Spool, SpoolFile
from llm_guard.proxy.request_body.spooled_body import BodyFile

MEMORY_BYTES = 1 << 20
"""A larger body is kept in a file."""

_BLOCK_BYTES = 1 << 18


class BodyStore:
    """A body that one receiver appends to, and several attempts read from any offset."""

    def __init__(self, spool: Spool) -> None:
        self.size = 0
        """Bytes that have arrived."""
        self.is_complete = False
        self._spool = spool
        self._memory = bytearray()
        self._file: SpoolFile | None = None
        self._is_closed = False
        self._waiters: list[asyncio.Future[None]] = []

    def add(self, piece: bytes) -> None:
        """Appends a piece. Raises BadRequest if the spool or the disk has no room."""
        self.size += len(piece)
        if self._file is not None:
            self._file.append(piece)
        else:
            self._memory += piece
            if self.size > MEMORY_BYTES:
                self._file = self._spool.new_file()
                memory, self._memory = bytes(self._memory), bytearray()
                self._file.append(memory)
        self._wake()

    def complete(self) -> None:
        """Marks the body as complete."""
        self.is_complete = True
        self._wake()

    def blocks(self) -> Iterator[Block]:
        """Yields the body from its beginning, at most 256 KiB at a time. Where the rest has not arrived yet, it yields
        a future in place of a block, which is done when more has. Raises OSError when the body is closed."""
        at = 0
        while not self._is_closed:
            if block := self._read(at):
                at += len(block)
                yield block
            elif self.is_complete:
                return
            else:
                yield self._more()
        raise OSError("the body is closed")

    async def wait_complete(self) -> None:
        """Returns once the body is complete or closed."""
        while not self.is_complete and not self._is_closed:
            await self._more()

    def content(self) -> bytes | SpoolFile:
        """Returns a complete body: bytes up to `MEMORY_BYTES`, else its file, which the caller closes."""
        return bytes(self._memory) if self._file is None else self._file

    def close(self) -> None:
        """Deletes the bytes. Idempotent."""
        self._is_closed = True
        self._memory = bytearray()
        if self._file is not None:
            self._file.close()
        self._wake()

    def _read(self, at: int) -> bytes:
        if self._file is None:
            return bytes(self._memory[at : at + _BLOCK_BYTES])
        return self._file.read_at(at, _BLOCK_BYTES)

    def _more(self) -> asyncio.Future[None]:
        """Returns a future that is done when more has arrived."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def file_of(content: bytes | SpoolFile) -> BodyFile:
    """Returns the content of a store as a file."""
    return BytesIO(content) if isinstance(content, bytes) else content
