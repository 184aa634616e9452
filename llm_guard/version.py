"""The product's version, in its own file so that the build can read it without importing the package."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

__version__ = "0.1.0"


def is_compiled() -> bool:
    """Returns True if the modules that handle calls are compiled to machine code (`make compiled`)."""
    spec = find_spec("llm_guard.proxy.handler")
    return spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))


def full_version() -> str:
    """Returns `0.1.0`, or `0.1.0+compiled`."""
    return f"{__version__}+compiled" if is_compiled() else __version__
