"""An answer that several read while it is written, each at its own pace.

Owns how much of it is held in memory, and who is left behind. Does not own where it comes from (`gateway.flight`), nor
what its readers do with it (`gateway.following`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llm_guard.gateway.recording import Recording

WINDOW_BYTES = 1 << 20
"""Between who reads slowest and what has come, once an answer is too large to be held as a whole."""
_PIECE_BYTES = 1 << 16


class Reader:
    """One place in it."""

    __slots__ = ("_tape", "_waiter", "is_left_behind", "place")

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._waiter: asyncio.Future[None] | None = None
        self.place = 0
        """What was read, in bytes."""
        self.is_left_behind = False
        """What it has not read is gone."""

    async def wait_begun(self) -> None:
        """Returns when there is something to read, or will not be."""
        while not self._tape.status and not self._tape.is_over:
            await self._news()

    async def wait_over(self) -> None:
        """Returns when nothing more will be written."""
        while not self._tape.is_over:
            await self._news()

    async def next(self) -> bytes:
        """What follows, 64 KiB at most; b"" where nothing does."""
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


class Tape(Recording):
    """Up to `whole_bytes` it is held as a whole, and nobody waits for anybody. Of a larger one a window is held: who
    has fallen out of it is left behind, as long as somebody else keeps up; where nobody does, the writer waits."""

    def __init__(self, whole_bytes: int, has_failed: Callable[[], bool]) -> None:
        """`has_failed`: from then on what is written are the words with which an answer is broken off."""
        super().__init__()
        self.readers: list[Reader] = []
        self.last_words = bytearray()
        self.is_over = False
        """Nothing more is written."""
        self._whole_bytes = whole_bytes
        self._has_failed = has_failed
        self._begins_at = 0
        """What came before is gone."""
        self._room: asyncio.Future[None] | None = None

    @property
    def is_whole(self) -> bool:
        """From its beginning."""
        return self._begins_at == 0

    @property
    def ends_at(self) -> int:
        return self._begins_at + len(self.body)

    def cut(self, place: int, most: int) -> bytes:
        start = place - self._begins_at
        return bytes(self.body[start : start + most])

    def end(self) -> None:
        """Nothing more will be written."""
        self.is_over = True
        self._wake()

    def join(self) -> Reader:
        """To be read from the beginning: only while it is whole."""
        reader = Reader(self)
        self.readers.append(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        self.readers.remove(reader)
        self.note_read()

    def note_read(self) -> None:
        """Somebody has come further, or has left."""
        if self._room is not None and not self._room.done() and not self._is_full():
            self._room.set_result(None)

    # as a reply sees it

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
        """Lets go of what nobody needs, and of who is too slow where others are not."""
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
