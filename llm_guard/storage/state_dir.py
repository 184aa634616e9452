"""The state folder: its location, and file modes that keep other users out."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path

import structlog

_log = structlog.get_logger("llm_guard.storage.state_dir")

_NAME = "llm-guard"
_OTHERS = 0o077
_OTHERS_WRITE = 0o022


def state_folder(chosen: str | None, env: Mapping[str, str]) -> Path:
    """Returns `chosen`, else XDG_STATE_HOME/llm-guard, else ~/.local/state/llm-guard (XDG Base Directory 0.8: a
    relative path is ignored). Raises OSError if there is no home either."""
    base = env.get("XDG_STATE_HOME", "")
    try:
        if chosen is not None:
            return Path(chosen).expanduser()
        return Path(base, _NAME) if base.startswith("/") else Path.home() / ".local" / "state" / _NAME
    except RuntimeError:
        raise FileNotFoundError("there is no home directory: set ops.store to an absolute path") from None


def make_private(folder: Path) -> None:
    """Creates the folder with mode 700. An existing folder keeps its mode, since other programs may use it, such as
    /var/lib; logs a warning if other users may remove files from it. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & _OTHERS_WRITE and not mode & stat.S_ISVTX:
        remedy = f"chmod go-w {shlex.quote(str(folder))}"
        _log.warning("other users can replace files in ops.store", folder=str(folder), mode=f"{mode:o}", remedy=remedy)


def open_private(path: Path, flags: int = 0) -> int:
    """Opens or creates a file and returns its descriptor. Removes other users' permissions from an existing file if it
    belongs to this user. Raises OSError, also for a symbolic link."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & _OTHERS:
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, mode & ~_OTHERS)
    return descriptor
