"""A file that several gateways share, before anybody looks into it.

Owns its making, that one gateway at a time replaces it, and how it is moved aside. Does not own what lies in it
(`store.database`).
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

from llm_guard.store.folder import open_private

_LOOK_AGAIN_S = 0.05
_BESIDE = ("", "-wal", "-shm")


def create(path: Path, flags: int = 0) -> None:
    """SQLite gives its files beside this one the same mode."""
    os.close(open_private(path, flags))


@contextlib.contextmanager
def alone(lock: Path, within_s: float) -> Iterator[None]:
    """Of all gateways with this folder: two must not move the same file aside, nor one the other's new one. Raises
    OSError."""
    held = open_private(lock)
    try:
        _lock(held, lock, within_s)
        yield
    finally:
        os.close(held)


def move_aside(path: Path) -> str:
    """Where it is now, with what SQLite had beside it."""
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
    """Raises OSError where another gateway has kept it for too long: it may have been stopped in the middle."""
    never = threading.Event()
    for _ in range(max(1, round(within_s / _LOOK_AGAIN_S))):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        never.wait(_LOOK_AGAIN_S)
    raise OSError(errno.EAGAIN, f"another gateway does not let go of {lock.name}")
