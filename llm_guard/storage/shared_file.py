"""Creates, locks and moves aside a file that several gateways share.

What the file contains is up to `storage.sqlite_file`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from llm_guard.storage.state_dir import open_private

_LOOK_AGAIN_S = 0.05
_BESIDE = ("", "-wal", "-shm")


def create(path: Path, flags: int = 0) -> None:
    """Creates the file with mode 600. SQLite gives its auxiliary files the same mode."""
    os.close(open_private(path, flags))


@contextlib.contextmanager
def alone(lock: Path, within_s: float) -> Iterator[None]:
    """Holds an exclusive lock among all gateways of this folder: two must not move the same file aside, nor one of them
    the new file of the other. Raises OSError."""
    held = open_private(lock)
    try:
        _lock(held, lock, within_s)
        yield
    finally:
        os.close(held)


def move_aside(path: Path) -> str:
    """Renames the file and SQLite's auxiliary files; returns the new path."""
    aside = next(name for number in count(1) if not os.path.lexists(name := f"{path}.broken-{number}"))
    for suffix in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


def identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _lock(held: int, lock: Path, within_s: float) -> None:
    """Raises OSError if another gateway holds the lock for too long: it may have been suspended."""
    never = threading.Event()
    for _ in range(max(1, round(within_s / _LOOK_AGAIN_S))):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        never.wait(_LOOK_AGAIN_S)
    raise OSError(errno.EAGAIN, f"another gateway does not release the lock {lock.name}")
