"""Reserved disk space: deleting from a database takes room, which a full disk does not have."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class DiskReserve:
    """A file that reserves disk space, shared by all gateways of a folder."""

    def __init__(self, path: Path, size: int) -> None:
        """`size`: in bytes."""
        self._path = path
        self._size = size

    def fill(self) -> None:
        """Creates the file, unless it exists or there is not enough room."""
        with contextlib.suppress(OSError):
            if self._path.exists():
                return
            file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, self._size)
            except OSError:
                os.unlink(self._path)
                raise
            finally:
                os.close(file)

    def has_given(self) -> bool:
        """Deletes the file, so that its room can be used. False: there was none."""
        try:
            os.unlink(self._path)
        except OSError:
            return False
        return True
