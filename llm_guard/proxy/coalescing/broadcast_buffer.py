"""A broadcast buffer: a response that several clients read while it is written, each at its own pace.

Limits the memory held, by dropping readers that are too slow. `proxy.coalescing.single_flight` writes it,
`proxy.coalescing.waiter` reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llm_guard.proxy.cache.response_buffer import ResponseBuffer

WINDOW_BYTES = 1 << 20
"""The most between the slowest reader and the end, once a response is too large to be held as a whole."""
_PIECE_BYTES = 1 << 16


class BroadcastReader:
    """A reader's position in a tape."""

    __slots__ = ("_tape", "_waiter", "is_left_behind", "place")

    def __init__(self, tape: BroadcastBuffer) -> None:
        self._tape = tape
        self._waiter: asyncio.Future[None] | None = None
        self.place = 0
        """Number of bytes read."""
        self.is_left_behind = False
        """True if the reader was too slow, and what it has not read is dropped."""

    async def wait_begun(self) -> None:
        """Waits until the response has begun, or will not begin."""
        while not self._tape.status and not self._tape.is_over:
            await self._news()

    async def wait_over(self) -> None:
        """Waits until nothing more will be written."""
        while not self._tape.is_over:
            await self._news()

    async def next(self) -> bytes:
        """Returns the next bytes, 64 KiB at most; b"" at the end, or if the reader was left behind."""
        tape = self._tape
        while self.place >= tape.ends_at and not tape.is_over and not self.is_left_behind:
            await self._news()
        if self.is_left_behind:
            return b""
        piece = tape.cut(self.place, _PIECE_BYTES)
        self.place += len(piece)
        tape.note_read()
        return piece

    @property
    def is_at_end(self) -> bool:
        return self.place >= self._tape.ends_at

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _news(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class BroadcastBuffer(ResponseBuffer):
    """Buffers a response for several readers.

    Up to `whole_bytes` all of it is held, and neither writer nor readers wait for each other. Of a larger one a window
    is held: a reader that falls out of it is left behind if another one keeps up; if none does, the writer waits.
    """

    def __init__(self, whole_bytes: int, has_failed: Callable[[], bool]) -> None:
        """Once `has_failed` returns True, what is written goes to `last_words`: it is the error that ends a
        response."""
        super().__init__()
        self.readers: list[BroadcastReader] = []
        self.last_words = bytearray()
        self.is_over = False
        """True once nothing more will be written."""
        self._whole_bytes = whole_bytes
        self._has_failed = has_failed
        self._begins_at = 0
        """Position of the first byte still held."""
        self._room: asyncio.Future[None] | None = None

    @property
    def is_whole(self) -> bool:
        """True if the response is held from its beginning."""
        return self._begins_at == 0

    @property
    def ends_at(self) -> int:
        return self._begins_at + len(self.body)

    def cut(self, place: int, most: int) -> bytes:
        start = place - self._begins_at
        return bytes(self.body[start : start + most])

    def end(self) -> None:
        """Marks the response as finished, and wakes all readers."""
        self.is_over = True
        self._wake()

    def join(self) -> BroadcastReader:
        """Adds a reader at the beginning; allowed only while `is_whole`."""
        reader = BroadcastReader(self)
        self.readers.append(reader)
        return reader

    def leave(self, reader: BroadcastReader) -> None:
        self.readers.remove(reader)
        self.note_read()

    def note_read(self) -> None:
        """Wakes the writer if there is room again, after a reader has advanced or left."""
        if self._room is not None and not self._room.done() and not self._is_full():
            self._room.set_result(None)

    # the interface of `response_writer.ResponseConnection`

    def push(self, data: bytes) -> bool:
        if not self.status:
            head, _, data = data.partition(b"\r\n\r\n")
            self._begin(head)
        if self._has_failed():
            self.last_words += data
        else:
            self.body += data
        is_full = len(self.body) > self._whole_bytes and self._is_full()
        self._wake()
        return not is_full

    async def wait_room(self) -> None:
        while self._is_full():
            self._room = asyncio.get_running_loop().create_future()
            try:
                await self._room
            finally:
                self._room = None

    def close(self) -> None:
        self.is_broken = True

    abort = close

    def _wake(self) -> None:
        for reader in self.readers:
            reader.wake()

    def _is_full(self) -> bool:
        """Drops bytes that no reader needs, and readers that are too slow while another keeps up. Returns True if the
        buffer is full all the same."""
        if len(self.body) <= self._whole_bytes and self.is_whole:
            return False
        if any(reader.is_at_end for reader in self.readers):
            for reader in self.readers:
                reader.is_left_behind |= reader.place < self.ends_at - WINDOW_BYTES
        places = [reader.place for reader in self.readers if not reader.is_left_behind]
        slowest = min(places, default=self.ends_at)
        del self.body[: slowest - self._begins_at]
        self._begins_at = max(self._begins_at, slowest)
        return len(self.body) > max(WINDOW_BYTES, self._whole_bytes)
