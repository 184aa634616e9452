"""The operator's token in the state folder: created once, read by every gateway and command that shares the folder.

Checks the file's owner and mode, and ensures that several gateways that start at once end up with the same token.
Blocking. What the token permits is decided in `admin.http.credentials`.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import stat
from pathlib import Path

import structlog

from llm_guard.storage.errors import StoreError
from llm_guard.storage.state_dir import make_private

_log = structlog.get_logger("llm_guard.storage.token_file")

FILE = "ops-token"

_FORM = re.compile(r"[A-Za-z0-9_-]{43}\n?")
"""Format of `secrets.token_urlsafe(32)`. Rejects a file that was truncated or written by something else."""
_MAX_BYTES = 256
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO of that name must not block.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_token(folder: Path) -> str | None:
    """Returns the token, for a command; None if no gateway has created one yet. Raises OSError, and StoreError for a
    damaged file."""
    try:
        descriptor = os.open(folder / FILE, _READ)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        return _checked(file.read(_MAX_BYTES), folder / FILE)


def shared_token(folder: Path) -> tuple[str, bool]:
    """Returns the token, for a gateway, and whether it was created now. Raises OSError, and StoreError for a file that
    must not be trusted."""
    found = _trusted(folder / FILE)
    if found is not None:
        return found, False
    make_private(folder)
    token = secrets.token_urlsafe(32)
    if _put(folder, token):
        return token, True
    found = _trusted(folder / FILE)  # another gateway was first
    if found is None:
        raise StoreError(f"{folder / FILE} appears and disappears: does another program delete files in this folder?")
    return found, False


def _put(folder: Path, token: str) -> bool:
    """Returns True if the token is in the file now; False if another gateway's is. A link, unlike a rename, replaces
    nothing, and unlike O_EXCL it makes the file visible only once it is complete."""
    new = folder / f".{FILE}-{secrets.token_hex(8)}"
    try:
        with open(os.open(new, _NEW, 0o600), "wb") as file:
            file.write(f"{token}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        os.link(new, folder / FILE)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
    return True


def _trusted(path: Path) -> str | None:
    try:
        descriptor = os.open(path, _READ)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        _check_owner(path, os.fstat(descriptor))
        _narrow(path, descriptor)
        return _checked(file.read(_MAX_BYTES), path)


def _check_owner(path: Path, found: os.stat_result) -> None:
    """Raises StoreError if another user may have chosen the content."""
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path} is not a regular file: {_remedy(path)}")
    if found.st_uid not in (os.geteuid(), 0):
        raise StoreError(f"{path} belongs to another user: {_remedy(path)}")
    if found.st_mode & stat.S_IWOTH:
        raise StoreError(f"all users can write to {path}: {_remedy(path)}")


def _narrow(path: Path, descriptor: int) -> None:
    """Removes other users' access. Whether one of them has read the token already, only the operator can judge."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & 0o077:
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, 0o600)
        remedy = f"its mode is now 600; for a new token, {_remedy(path)}"
        _log.warning("other users could read the operator token", file=str(path), mode=f"{mode:o}", remedy=remedy)


def _checked(content: bytes, path: Path) -> str:
    text = content.decode("ascii", "replace")
    if _FORM.fullmatch(text) is None:
        raise StoreError(f"{path} has no complete token: {_remedy(path)}")
    return text.rstrip("\n")


def _remedy(path: Path) -> str:
    return f"rm {shlex.quote(str(path))}, then reload or restart the gateway"
