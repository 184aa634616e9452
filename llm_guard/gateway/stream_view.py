"""A stream as it passes: what arrived, what of it may be passed on, and the watch that looks at it.

Owns the difference between plain, compressed and unreadable streams. Nothing is ever re-encoded: a compressed stream
passes as it came while a copy is inflated for the watch.
"""

from __future__ import annotations

import zlib

from llm_guard.dialect.sse import Reader, StreamWatch

_PIECE_BYTES = 1 << 16
"""However much a chunk inflates to, no more of it is in memory at a time."""


class StreamView:
    """A plain stream: passed on event by event."""

    def __init__(self, reader: Reader) -> None:
        self.watch: StreamWatch | None = StreamWatch(reader)

    @property
    def takes_events(self) -> bool:
        """Whether an event of ours can be added behind what was passed on."""
        return True

    def feed(self, chunk: bytes) -> bytes:
        """Takes what arrived; returns what may be passed on now."""
        assert self.watch is not None  # noqa: S101  # set above
        return self.watch.feed(chunk)

    def rest(self) -> bytes:
        """What was held back at the end of the stream."""
        assert self.watch is not None  # noqa: S101
        return self.watch.held


class InflatedView(StreamView):
    """A gzip or deflate stream: passed on as it comes."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self._inflater = zlib.decompressobj(wbits=47)  # gzip or zlib, by its header

    @property
    def takes_events(self) -> bool:
        return False

    def feed(self, chunk: bytes) -> bytes:
        unread = chunk
        while unread and self.watch is not None:
            try:
                self.watch.feed(self._inflater.decompress(unread, _PIECE_BYTES))
            except zlib.error:
                self.watch = None  # not in the encoding it claims: for the client to read, if it can
            unread = self._inflater.unconsumed_tail
            if self._inflater.eof and (unread := self._inflater.unused_data):
                self._inflater = zlib.decompressobj(wbits=47)  # some servers begin anew at each flush
        return chunk

    def rest(self) -> bytes:
        return b""


class OpaqueView(StreamView):
    """A stream in an encoding that the standard library does not know: passed on unseen."""

    def __init__(self) -> None:
        self.watch = None

    @property
    def takes_events(self) -> bool:
        return False

    def feed(self, chunk: bytes) -> bytes:
        return chunk

    def rest(self) -> bytes:
        return b""


def view_of(reader: Reader, encoding: str) -> StreamView:
    """The view of a stream with this content-encoding ("" without one)."""
    if encoding in ("", "identity"):
        return StreamView(reader)
    return InflatedView(reader) if encoding in ("gzip", "x-gzip", "deflate") else OpaqueView()
