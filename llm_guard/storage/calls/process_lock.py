"""A lock file that shows whether the gateway process that runs deferred calls is alive.

Also finds earlier processes of the same gateway that have ended. The kernel releases a lock when its process ends,
however it ends (flock(2)). Blocking; used by one thread. The calls of an ended process are taken over in
`storage.calls.sqlite_store`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from llm_guard.storage.state_dir import make_private, open_private

_SUFFIX = ".lock"


class RunnerLock:
    """The lock of one process. If it cannot be held, other processes wait until its calls' leases end."""

    def __init__(self, folder: Callable[[], Path], gateway: str, token: str) -> None:
        """`folder` may raise OSError. `gateway` is the same after a restart, `token` differs for each process."""
        self._folder = folder
        self._prefix = f"{gateway}-runner-"
        self.runner = f"{self._prefix}{token}"
        """The name of this process in the store."""
        self._held: int | None = None

    def hold(self) -> None:
        """Takes the lock; call it before this process runs its first call. Does nothing where the file system has no
        locks."""
        if self._held is not None:
            return
        with contextlib.suppress(OSError):
            make_private(self._folder())
            path = self._path(self.runner)
            new = path.with_suffix(".new")
            descriptor = open_private(new)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                new.rename(path)  # so the lock file is never visible unlocked while this process lives
            except OSError:
                os.close(descriptor)
                raise
            self._held = descriptor

    def ended(self) -> list[str]:
        """Returns the names of earlier processes of this gateway that have ended without `release`."""
        with contextlib.suppress(OSError):
            names = [name.removesuffix(_SUFFIX) for name in os.listdir(self._folder()) if self._is_ours(name)]
            return [name for name in sorted(names) if name != self.runner and not self._is_locked(name)]
        return []

    def forget(self, runner: str) -> None:
        """Deletes the lock file of a process that has ended."""
        with contextlib.suppress(OSError):
            self._path(runner).unlink()

    def release(self) -> None:
        """Releases the lock and deletes its file: this process runs no more calls."""
        if self._held is not None:
            self.forget(self.runner)
            os.close(self._held)
            self._held = None

    def _is_ours(self, name: str) -> bool:
        return name.startswith(self._prefix) and name.endswith(_SUFFIX)

    def _is_locked(self, runner: str) -> bool:
        """Returns True also if the lock cannot be checked."""
        try:
            descriptor = os.open(self._path(runner), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _path(self, runner: str) -> Path:
        return self._folder() / f"{runner}{_SUFFIX}"
