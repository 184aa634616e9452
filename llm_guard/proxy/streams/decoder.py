"""Decodes a stream as it is relayed: shows its events to a watch, and returns the bytes that may be passed on.

Never recompresses. A compressed stream passes unchanged while a copy is inflated for the watch; if the gateway may have
to write into the stream, it is passed on inflated. `proxy.response.content_decoding` has the encodings.
"""

from __future__ import annotations

import zlib

from llm_guard.dialects.sse import StreamObserver, StreamReader
from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy.response.content_decoding import PieceInflater, is_packed

MAX_INFLATED_BYTES = 16 << 20
"""The most that one chunk may inflate to: far more than events need, far less than a decompression bomb, which inflates
to a thousand times its size."""

_BROKEN = Failure(FailureKind.MALFORMED, "its compressed data is invalid")
_BOMB = Failure(FailureKind.MALFORMED, "its compressed data inflates too much")


class PlainStreamDecoder:
    """The view of a plain stream, which is passed on event by event."""

    suppressed = b""
    """Always empty: nothing is withheld for a stream that may continue this one."""
    failure: Failure | None = None
    """A failure found in the stream, which ends it; None if there is none."""
    is_compressed = False
    """True if the stream is passed on compressed, so that nothing can be left out of it."""
    _is_broken = False

    def __init__(self, reader: StreamReader, enough: int = 1) -> None:
        self.watch = StreamObserver(reader, enough)

    @property
    def takes_events(self) -> bool:
        """True if an event of the gateway's own can be added after what was passed on."""
        return not self.watch.is_inside

    @property
    def is_closed(self) -> bool:
        """True if no more of the stream may be passed on."""
        return self._is_broken or self.watch.is_cut

    @property
    def has_said_all(self) -> bool:
        """True after the final event or an error event: later errors do not matter."""
        return self.watch.has_ended or self.watch.error is not None

    @property
    def has_ended(self) -> bool:
        """True if the client's terminal event has been passed on."""
        return self.watch.has_ended

    @property
    def missing_end(self) -> bytes:
        """Events that the dialect still requires of a stream that has shown its end."""
        return self.watch.missing_end

    def feed(self, chunk: bytes) -> bytes:
        """Takes a chunk; returns the bytes that may be passed on now."""
        return self.watch.feed(chunk)

    def trailing_bytes(self) -> bytes:
        """Returns the last bytes of a stream that has ended well: its dialect's missing end marker, else those held."""
        return self.watch.missing_end or self.watch.held


class CompressedStreamDecoder(PlainStreamDecoder):
    """The view of a gzip or deflate stream that is passed on unchanged."""

    is_compressed = True

    def __init__(self, reader: StreamReader, enough: int = 1) -> None:
        super().__init__(reader, enough)
        self._inflater = PieceInflater()

    @property
    def takes_events(self) -> bool:
        return False

    def feed(self, chunk: bytes) -> bytes:
        if not self.is_closed:
            self._look(chunk)
        return b"" if self.is_closed else chunk

    def trailing_bytes(self) -> bytes:
        return b""

    def _look(self, chunk: bytes) -> None:
        """Shows an inflated chunk to the watch."""
        inflated = 0
        try:
            for piece in self._inflater.pieces(chunk):
                inflated += len(piece)
                if inflated > MAX_INFLATED_BYTES:
                    self._fail(_BOMB)  # inflating all of it would hold up all other calls
                    break
                self.watch.feed(piece)
        except zlib.error:
            self._fail(_BROKEN)

    def _fail(self, failure: Failure) -> None:
        if not self.has_said_all:
            self.failure, self._is_broken = failure, True


class InflatingStreamDecoder(PlainStreamDecoder):
    """The view of a gzip or deflate stream that is passed on inflated, event by event."""

    def __init__(self, reader: StreamReader, enough: int = 1) -> None:
        super().__init__(reader, enough)
        self._inflater = PieceInflater()

    def feed(self, chunk: bytes) -> bytes:
        if self.is_closed:
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


def view_of(
    reader: StreamReader, encoding: str, enough: int = 1, *, is_plain_wanted: bool = False
) -> PlainStreamDecoder:
    """Returns the view of a stream with this content-encoding ("" for none), which must not be `unreadable`.

    `enough` is the number of tokens for `StreamObserver.has_enough`. With `is_plain_wanted` a compressed stream is
    passed on inflated, without its content-encoding, because the gateway may have to write into it.
    """
    if not is_packed(encoding):
        return PlainStreamDecoder(reader, enough)
    return InflatingStreamDecoder(reader, enough) if is_plain_wanted else CompressedStreamDecoder(reader, enough)
