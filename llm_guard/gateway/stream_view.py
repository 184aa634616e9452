"""A stream as it passes: what arrived, what of it may be passed on, and the watch that looks at it.

Owns the difference between plain and compressed streams. Does not own the encodings (`gateway.answer_coding`). Nothing
is ever re-encoded: a compressed stream passes as it came while a copy is inflated for the watch, or, where the gateway
may have to write into it, inflated.
"""

from __future__ import annotations

import zlib

from llm_guard.dialect.sse import Reader, StreamWatch
from llm_guard.gateway.answer_coding import PieceInflater, is_packed
from llm_guard.outcome import Failure, FailureKind

MAX_INFLATED_BYTES = 16 << 20
"""What one chunk may inflate to: far more than events come to, far less than a decompression bomb, which is a thousand
times its size."""

_BROKEN = Failure(FailureKind.MALFORMED, "its compressed data is broken")
_BOMB = Failure(FailureKind.MALFORMED, "its compressed data inflates beyond all measure")


class StreamView:
    """A plain stream: passed on event by event."""

    withheld = b""
    """Nothing is kept back for another stream to take its place."""
    failure: Failure | None = None
    """What is wrong with it: then nothing more comes of it."""
    is_compressed = False
    """It is passed on as it comes: nothing can be left out of it."""
    _is_broken = False

    def __init__(self, reader: Reader, enough: int = 1) -> None:
        self.watch = StreamWatch(reader, enough)

    @property
    def takes_events(self) -> bool:
        """Whether an event of ours can be added behind what was passed on."""
        return not self.watch.is_inside

    @property
    def is_cut(self) -> bool:
        """No more of it may be passed on."""
        return self._is_broken or self.watch.is_cut

    @property
    def has_said_all(self) -> bool:
        """Whatever is wrong with what follows does not matter."""
        return self.watch.has_ended or self.watch.error is not None

    def feed(self, chunk: bytes) -> bytes:
        """Takes what arrived; returns what may be passed on now."""
        return self.watch.feed(chunk)

    def rest(self) -> bytes:
        """What a stream that has ended well still owes: what its dialect ends with, else the last bytes that came."""
        return self.watch.missing_end or self.watch.held


class InflatedView(StreamView):
    """A gzip or deflate stream: passed on as it comes."""

    is_compressed = True

    def __init__(self, reader: Reader, enough: int = 1) -> None:
        super().__init__(reader, enough)
        self._inflater = PieceInflater()

    @property
    def takes_events(self) -> bool:
        return False

    def feed(self, chunk: bytes) -> bytes:
        if not self.is_cut:
            self._look(chunk)
        return b"" if self.is_cut else chunk

    def rest(self) -> bytes:
        return b""

    def _look(self, chunk: bytes) -> None:
        """Shows a chunk to the watch."""
        inflated = 0
        try:
            for piece in self._inflater.pieces(chunk):
                inflated += len(piece)
                if inflated > MAX_INFLATED_BYTES:
                    self._fail(_BOMB)  # to look at all of it would hold up every other call
                    break
                self.watch.feed(piece)
        except zlib.error:
            self._fail(_BROKEN)

    def _fail(self, failure: Failure) -> None:
        if not self.has_said_all:
            self.failure, self._is_broken = failure, True


class InflatingView(StreamView):
    """A gzip or deflate stream that is passed on inflated, event by event."""

    def __init__(self, reader: Reader, enough: int = 1) -> None:
        super().__init__(reader, enough)
        self._inflater = PieceInflater()

    def feed(self, chunk: bytes) -> bytes:
        if self.is_cut:
            return b""
        passed = bytearray()
        inflated = 0
        try:
            for piece in self._inflater.pieces(chunk):
                inflated += len(piece)
                if inflated > MAX_INFLATED_BYTES:
                    self._break(_BOMB)
                    break
                passed += super().feed(piece)
        except zlib.error:
            self._break(_BROKEN)
        return bytes(passed)

    def _break(self, failure: Failure) -> None:
        self._is_broken = True
        if not self.has_said_all:
            self.failure = failure


def view_of(reader: Reader, encoding: str, enough: int = 1, *, is_plain_wanted: bool = False) -> StreamView:
    """The view of a stream with this content-encoding ("" without one), which must not be `unreadable`.

    `enough`: how many tokens its watch looks out for (`StreamWatch.has_enough`). `is_plain_wanted`: the gateway may
    have to write into the stream; what can be inflated is passed on inflated, and has no content-encoding any more.
    """
    if not is_packed(encoding):
        return StreamView(reader, enough)
    return InflatingView(reader, enough) if is_plain_wanted else InflatedView(reader, enough)
