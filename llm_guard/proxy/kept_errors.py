"""Errors that are kept, to be raised later and perhaps more than once."""

from __future__ import annotations

from typing import TypeVar

_E = TypeVar("_E", bound=Exception)


def raisable(kept: _E) -> _E:
    """Returns a copy to be raised. Raising the kept error would give it a traceback with frames that refer to its
    owner: a cycle, in which the call and its body would stay until the garbage collector runs."""
    error: _E = type(kept).__new__(type(kept), *kept.args)
    error.__dict__.update(kept.__dict__)
    error.__cause__ = kept.__cause__
    return error
