"""One gateway's own file in the state folder, which is replaced atomically.

Chooses its name, and detects two gateways of the same name. Blocking; used by one thread. Content and schedule are in
`admin.persistence.state_saver`.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from llm_guard.storage.state_dir import make_private, open_private

_MAX_BYTES = 16 * 1024**2


class TakenOver(Exception):
    """Another gateway has replaced this gateway's file with its own."""


class SnapshotFile:
    """A file that is read and replaced as a whole. After an OSError the next call tries again."""

    def __init__(self, folder: Callable[[], Path], name: str) -> None:
        """`folder` may raise OSError."""
        self._folder = folder
        self._name = name
        self._mine: tuple[int, int] | None = None
        """Identity of the file that was last written here."""

    def read(self) -> bytes | None:
        """Returns the content; None: there is no file. Raises OSError."""
        try:
            # O_NONBLOCK: a FIFO of that name must not block.
            descriptor = os.open(self._path(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            return file.read(_MAX_BYTES)

    def write(self, content: bytes) -> None:
        """Replaces the file; it is on the disk when this returns. The first write replaces any existing file. Raises
        OSError, and TakenOver."""
        path = self._path()
        if self._mine is None:
            make_private(path.parent)
        elif _identity(path) not in (None, self._mine):
            raise TakenOver
        new = path.with_name(f"{path.name}.new")
        with open(open_private(new, os.O_TRUNC), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        mine = _identity(new)
        os.replace(new, path)
        self._mine = mine

    def _path(self) -> Path:
        return self._folder() / self._name


def file_name(host: str, port: int, worker: int = 0) -> str:
    return f"{gateway_name(host, port, worker)}.json"


def gateway_name(host: str, port: int, worker: int = 0) -> str:
    """Name of the gateway that listens on this address of this machine; the same after a restart. `worker`: number of
    the process, 0 if the gateway has one process."""
    name = f"gateway-{quote(socket.gethostname(), safe='')}-{quote(host, safe='')}-{port}"
    return f"{name}-worker-{worker}" if worker else name


def _identity(path: Path) -> tuple[int, int] | None:
    """Inode and modification time: a file system may reuse the inode of a deleted file."""
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns
    return None
