"""Content codings of requests: gzip and deflate, decoded and encoded piece by piece within bounds."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from llm_guard.proxy.request_body.fields import BadRequest

_INFLATED_BYTES = 1 << 15


class Inflater:
    """Decodes a gzip or deflate body block by block."""

    def __init__(self, content_encoding: str, max_bytes: int) -> None:
        """Raises BadRequest (415) for an encoding that the gateway cannot decode."""
        self._encoding = content_encoding.strip().lower()
        if self._encoding not in ("gzip", "x-gzip", "deflate"):
            raise BadRequest(
                415, "unsupported_content_encoding",
                f"the gateway cannot find the model in a body with content-encoding {content_encoding!r}: "
                "send it uncompressed, gzip or deflate",
            )  # fmt: skip
        self._inflater = zlib.decompressobj(15 if self._encoding == "deflate" else 47)  # 47: gzip or zlib, by its head
        self._max_bytes = max_bytes
        self.size = 0
        """Number of bytes inflated so far."""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yields the next piece, inflated, in blocks of 32 KiB at most. Raises BadRequest if it is corrupt (400) or the
        body inflates beyond the bound (413)."""
        while True:
            try:
                plain = self._inflater.decompress(piece, _INFLATED_BYTES)
            except zlib.error:
                message = f"the body is not valid {self._encoding}, as its content-encoding says"
                raise BadRequest(400, "invalid_body", message) from None
            self.size += len(plain)
            if self.size > self._max_bytes:
                raise BadRequest(413, "body_too_large", f"the body inflates to more than {self._max_bytes} bytes")
            if self._inflater.unused_data:  # a second stream, which only some servers would read
                raise BadRequest(400, "invalid_body", f"the {self._encoding} body has data after its end")
            if plain:
                yield plain
            piece = self._inflater.unconsumed_tail
            if not piece and len(plain) < _INFLATED_BYTES:
                return

    def end(self) -> None:
        """Ends the body. Raises BadRequest if the compressed data is incomplete."""
        if not self._inflater.eof:
            raise BadRequest(400, "invalid_body", f"the {self._encoding} body is truncated")


def is_coded(content_encoding: str) -> bool:
    """Returns whether a body must be decoded before it can be read."""
    return content_encoding.strip().lower() not in ("", "identity")


def inflate(body: bytes, content_encoding: str, max_bytes: int) -> bytes:
    """Returns the decoded bytes of a complete body. Raises BadRequest like an Inflater."""
    if not is_coded(content_encoding):
        return body
    inflater = Inflater(content_encoding, max_bytes)
    plain = b"".join(inflater.feed(body))
    inflater.end()
    return plain


def deflater(content_encoding: str) -> zlib._Compress:
    """Returns a compressor for an encoding that an Inflater reads. Level 1: level 6 costs four times as much, for a
    body that is sent once."""
    return zlib.compressobj(1, wbits=15 if content_encoding.strip().lower() == "deflate" else 31)
