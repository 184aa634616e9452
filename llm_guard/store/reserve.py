"""Room on the disk that is kept back: to delete something takes room, and a full disk has none.

Owns the file that takes the room. Does not own when it is used.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class Reserve:
    """Of several gateways that share a folder."""

    def __init__(self, path: Path, size: int) -> None:
        """`size`: in bytes."""
        self._path = path
        self._size = size

    def fill(self) -> None:
        """Takes the room, unless that is done already, or there is not enough."""
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
        """Gives the room to whoever writes next. False: it was given already, or never there."""
        try:
            os.unlink(self._path)
        except OSError:
            return False
        return True
