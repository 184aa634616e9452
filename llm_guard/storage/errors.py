"""Errors that every store raises."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot be written or read (disk full, missing or too slow, file corrupt); the text says why."""


class RefusedError(StoreError):
    """The store has refused an operation, which has changed nothing."""


class DiskFullError(RefusedError):
    """The disk is full: nothing can be added, but entries can still be read and deleted."""


class EvictingStoreError(RefusedError):
    """The server may evict what must not be lost; the text names the remedy."""
