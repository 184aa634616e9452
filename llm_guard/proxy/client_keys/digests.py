"""The digest of a key."""

from __future__ import annotations

import hashlib


def digest(key: str) -> bytes:
    """Returns a digest by which keys can be compared without being stored."""
    return hashlib.sha256(key.encode()).digest()
