"""Content codings of responses: which ones can be inspected, and decoding within bounds.

`proxy.request_body.content_encoding` handles the codings of requests.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Literal

_PIECE_BYTES = 1 << 16
"""Size of the pieces in which a chunk is inflated to be inspected, so that no more of it is in memory at a time."""
_READABLE = frozenset({"gzip", "x-gzip", "deflate"})
_UNREADABLE = frozenset({"br", "zstd", "compress", "x-compress", "dcb", "dcz"})
"""Compressions that the standard library cannot decode (IANA's HTTP content coding registry)."""
_GZIP = b"\x1f\x8b"
_HEAD_BYTES = 4096
_MOST_INFLATED_BYTES = 4 << 20
_MOST_RATIO = 20
"""A body that inflates beyond both bounds is a decompression bomb: JSON shrinks to a twentieth at most."""


def unreadable(encoding: str) -> str:
    """Returns the part of a content-encoding that cannot be decoded; "" if all can. A name that is no compression, such
    as `none`, stands for plain text."""
    packed = _packed_in(encoding)
    return ", ".join(packed) if len(packed) > 1 or not _READABLE.issuperset(packed) else ""


def is_packed(encoding: str) -> bool:
    """Returns whether a content-encoding names a compression."""
    return bool(_packed_in(encoding))


def decoded(body: bytes, encoding: str, most_bytes: int) -> bytes | Literal["cut", "encoding"] | None:
    """Returns the decoded bytes of a complete body, or what is wrong with it; None: they are more than `most_bytes`."""
    packed = _packed_in(encoding)
    if not packed or not body:
        return body
    if unreadable(encoding):
        return "encoding"
    most_bytes = min(most_bytes, max(_MOST_INFLATED_BYTES, _MOST_RATIO * len(body)))
    try:
        return _inflated(body, most_bytes, 47)
    except zlib.error:
        pass
    try:
        return _inflated(body, most_bytes, -15) if packed == ["deflate"] else "encoding"  # some send it without a frame
    except zlib.error:
        return "encoding"


def head_of(body: bytes, encoding: str) -> bytes:
    """Returns the first decoded bytes that have arrived; b"" if they cannot be decoded."""
    if not is_packed(encoding):
        return body[:_HEAD_BYTES]
    try:
        return zlib.decompressobj(47).decompress(body[:_HEAD_BYTES], _HEAD_BYTES) if not unreadable(encoding) else b""
    except zlib.error:
        return b""


class PieceInflater:
    """Inflates gzip or zlib, detected by the header; some servers begin a new stream at each flush."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=47)
        self._has_ended = False

    @property
    def has_ended(self) -> bool:
        """True if the compressed data is complete, unless more follows."""
        return self._stream.eof or self._has_ended

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yields the inflated bytes of a chunk, piece by piece. Raises zlib.error."""
        unread, piece = chunk, b""
        # After a full piece zlib may hold more output, even if all input was consumed.
        while unread or len(piece) == _PIECE_BYTES:
            piece = self._stream.decompress(unread, _PIECE_BYTES)
            unread = self._stream.unconsumed_tail
            self._has_ended = self._has_ended and not piece
            if self._stream.eof:
                unread = self._stream.unused_data
                if unread:
                    self._stream = zlib.decompressobj(wbits=47)
                    self._has_ended = True
            if piece:
                yield piece


def _packed_in(encoding: str) -> list[str]:
    """Returns the compressions that a content-encoding names."""
    codings = [coding.strip().lower() for coding in encoding.split(",")]
    return [coding for coding in codings if coding in _READABLE or coding in _UNREADABLE]


def _inflated(body: bytes, most_bytes: int, wbits: int) -> bytes | Literal["cut"] | None:
    """Inflates all streams of a body, one after the other. Other data after a stream is ignored, as clients do. Raises
    zlib.error."""
    plain = b""
    while True:
        inflater = zlib.decompressobj(wbits)
        plain += inflater.decompress(body, most_bytes + 1 - len(plain))
        if len(plain) > most_bytes:
            return None
        if not inflater.eof:
            return "cut"
        body = inflater.unused_data
        if not body.startswith(_GZIP):
            return plain
