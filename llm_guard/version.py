"""The product's version, alone in a file so that the build reads it without importing anything."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

__version__ = "0.1.0"


def is_compiled() -> bool:
    """Whether the way of a call is machine code (`make compiled`), or Python as it is written."""
    spec = find_spec("llm_guard.gateway.server")
    return spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))


def full_version() -> str:
    """`0.1.0`, or `0.1.0+compiled`."""
    return f"{__version__}+compiled" if is_compiled() else __version__
