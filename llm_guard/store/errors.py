"""What can go wrong with a store.

Owns the errors that every store raises. Does not own what is done about them.
"""

from __future__ import annotations


class StoreError(Exception):
    """It cannot be written or read (a disk that is full, gone or too slow, a broken file); the text says why."""


class DiskFullError(StoreError):
    """There is no room for it. What is there can be read, and deleted."""
