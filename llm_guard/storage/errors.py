"""Errors that every store raises."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot be written or read (disk full, missing or too slow, file corrupt); the text says why."""


class DiskFullError(StoreError):
    """The disk is full: nothing can be added, but entries can still be read and deleted."""


class EvictingStoreError(StoreError):
    """The server may evict what must not be lost; the text names the remedy."""
