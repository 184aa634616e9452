"""Where things are kept that outlive the process.

Owns the choice of the folder, and that nobody else can look into it. Does not own what lies in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_NAME = "llm-guard"


def state_folder(chosen: str | None, env: Mapping[str, str]) -> Path:
    """`chosen`, else XDG_STATE_HOME/llm-guard, else ~/.local/state/llm-guard (XDG Base Directory 0.8: a relative path
    is ignored). Raises OSError when there is no home either."""
    base = env.get("XDG_STATE_HOME", "")
    try:
        if chosen is not None:
            return Path(chosen).expanduser()
        return Path(base, _NAME) if base.startswith("/") else Path.home() / ".local" / "state" / _NAME
    except RuntimeError:
        raise FileNotFoundError("there is no home directory: set ops.store to a whole path") from None


def make_private(folder: Path) -> None:
    """Raises OSError. A folder that is there already stays as it is."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
