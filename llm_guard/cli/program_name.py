"""How this program was called, for commands that are printed to be copied."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def called() -> str:
    """Returns the command that runs this program, for a shell in the same directory: a clone has no `llm-guard`."""
    if Path(sys.argv[0]).name != "__main__.py":
        return shlex.quote(sys.argv[0])
    python = Path(sys.executable)
    shown = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    return f"{shlex.quote(str(shown))} -m llm_guard"
