"""Disk space for spooled request bodies: one limit for all bodies of the process, and their files.

`proxy.request_body.reader` decides when a body is spooled, `proxy.request_body.spooled_body` reads it.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import IO

from llm_guard.proxy.request_body.fields import BadRequest

_MAX_DEFAULT_BYTES = 4 << 30
_RETRY_AFTER_S = 5.0
"""An upload of some hundred MiB takes seconds to minutes: a retry sooner than this would mostly be refused again."""


def default_max_bytes() -> int:
    """Returns the default of `server.max_spool`: half of the free space under TMPDIR, at most 4 GiB."""
    try:
        return min(_MAX_DEFAULT_BYTES, shutil.disk_usage(tempfile.gettempdir()).free // 2)
    except OSError:  # the directory may be usable later; until then `new_file` refuses each body
        return _MAX_DEFAULT_BYTES


class Spool:
    """Counts the bytes of all spooled bodies of one process and keeps them below a limit."""

    def __init__(self, default_max_bytes: int) -> None:
        """`default_max_bytes` is the limit while none is configured."""
        self._default_max_bytes = default_max_bytes
        self.max_bytes = default_max_bytes
        self.used_bytes = 0
        """Bytes in open files. Above `max_bytes` only after a reload that lowers the limit."""
        self.refused = 0
        """Number of bodies refused so far for lack of room."""

    def adopt(self, max_bytes: int | None) -> None:
        """Changes the limit (None for the default). Bodies that are already spooled stay."""
        self.max_bytes = self._default_max_bytes if max_bytes is None else max_bytes

    def check(self, size: int) -> None:
        """Raises BadRequest if a body of `size` bytes exceeds the limit alone (413), or together with those that are
        spooled now (503). Reserves nothing: a client that announces a large body and does not send it takes no room."""
        self._check(size, 0)

    def new_file(self) -> SpoolFile:
        """Raises BadRequest (503) if the disk has no room."""
        return SpoolFile(self)

    def reserve(self, count: int, spooled: int) -> None:
        """Counts `count` more bytes for a body that has `spooled` already. Raises BadRequest as `check` does."""
        self._check(spooled + count, spooled)
        self.used_bytes += count

    def release(self, count: int) -> None:
        """Frees the bytes of a file that is closed."""
        self.used_bytes -= count

    def _check(self, size: int, spooled: int) -> None:
        if size > self.max_bytes:
            message = f"the body is larger than {self.max_bytes} bytes (server.max_spool)"
            raise BadRequest(413, "body_too_large", message)
        if self.used_bytes - spooled + size > self.max_bytes:
            raise self.refusal("other large bodies fill server.max_spool")

    def refusal(self, reason: str | None) -> BadRequest:
        """Counts a body for which there is no room, and returns its error."""
        self.refused += 1
        message = f"the gateway cannot spool a body of this size now: {reason}"
        return BadRequest(503, "no_room_for_body", message, should_retry=True, retry_after_s=_RETRY_AFTER_S)


class SpoolFile:
    """A temporary file without a name. Its bytes count against the spool until it is closed."""

    __slots__ = ("_file", "_size", "_spool")

    def __init__(self, spool: Spool) -> None:
        """Raises BadRequest (503) if the disk has no room."""
        self._spool = spool
        self._size = 0
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # `close` closes it
        except OSError as error:
            raise spool.refusal(error.strerror) from None

    @property
    def closed(self) -> bool:
        """True if the file is deleted."""
        return self._file.closed

    @property
    def size(self) -> int:
        """Number of bytes written."""
        return self._size

    def append(self, block: bytes) -> None:
        """Writes all of `block`. Raises BadRequest if the spool or the disk has no room, or the body is too large."""
        self._spool.reserve(len(block), self._size)
        self._size += len(block)
        rest = memoryview(block)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise self._spool.refusal(error.strerror) from None

    def seek(self, offset: int) -> int:
        return self._file.seek(offset)

    def read(self, size: int) -> bytes:
        """Reads at most `size` bytes from the current position. Raises OSError."""
        return self._file.read(size)

    def read_at(self, offset: int, size: int) -> bytes:
        """Reads at most `size` bytes from `offset`; may be called between two calls of `append`. Raises OSError."""
        self._file.seek(offset)
        block = self._file.read(size)
        self._file.seek(self._size)  # where the next block is appended
        return block

    def close(self) -> None:
        """Deletes the file and frees its bytes. A second call does nothing."""
        if not self._file.closed:
            self._file.close()
            self._spool.release(self._size)
