"""Login codes that were used, shared by every gateway of the state folder and kept across restarts.

Keeps a marker file for each, until the code has expired anyway. Blocking. Codes are validated in
`admin.http.credentials`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import structlog

_log = structlog.get_logger("llm_guard.storage.used_login_codes")

_FOLDER = "ops-logins"
_MARK = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class UsedCodes:
    """Used codes, on the disk and in memory: without a writable folder a code is still accepted only once by this
    gateway."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        """`folder` may raise OSError."""
        self._folder = folder
        self._known: dict[str, float] = {}

    def use(self, mark: str, until: float, now: float) -> bool:
        """Returns True at the first use of a code. `mark` must be a valid file name; `until` and `now` are seconds
        since the epoch."""
        self._known = {used: end for used, end in self._known.items() if end > now}
        if mark in self._known:
            return False
        self._known[mark] = until
        try:
            folder = self._folder() / _FOLDER
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sweep(folder, now)
            os.close(os.open(folder / f"{until:.0f}-{mark}", _MARK, 0o600))
        except FileExistsError:
            return False
        except OSError as error:
            _log.warning(
                "a used login code could not be stored: other gateways would accept it again", error=str(error)
            )
        return True


def _sweep(folder: Path, now: float) -> None:
    for entry in folder.iterdir():
        until = entry.name.partition("-")[0]
        if until.isdigit() and int(until) < now:
            with contextlib.suppress(FileNotFoundError):
                entry.unlink()
