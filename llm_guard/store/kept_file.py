"""One gateway's own file in the state folder, which is replaced as a whole or stays as it was.

Owns its name, and that two gateways of one name do not take turns at it. It blocks, and is one thread's. Does not own
what is in it, nor when it is written (`ops.keeping`).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from llm_guard.store.folder import make_private, open_private

_MAX_BYTES = 16 * 1024**2


class TakenOver(Exception):
    """Another gateway has put its own in the place of this one's file."""


class KeptFile:
    """After an OSError the next call tries anew."""

    def __init__(self, folder: Callable[[], Path], name: str) -> None:
        """`folder` may raise OSError."""
        self._folder = folder
        self._name = name
        self._mine: tuple[int, int] | None = None
        """The file that was written here last."""

    def read(self) -> bytes | None:
        """None: there is none. Raises OSError."""
        try:
            # Without O_NONBLOCK somebody's pipe of that name would be waited for.
            descriptor = os.open(self._path(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            return file.read(_MAX_BYTES)

    def write(self, content: bytes) -> None:
        """On the disk when it returns; what was there before is taken for this gateway's own the first time. Raises
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


def file_name(host: str, port: int) -> str:
    return f"{gateway_name(host, port)}.json"


def gateway_name(host: str, port: int) -> str:
    """Of the gateway that listens there on this machine: after a restart it has the same."""
    return f"gateway-{quote(socket.gethostname(), safe='')}-{quote(host, safe='')}-{port}"


def _identity(path: Path) -> tuple[int, int] | None:
    """Inode and time: a file system may give the inode of a file that is gone to the next one."""
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns
    return None
