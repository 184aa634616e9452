"""The bodies of stored calls, in their own table, so that searching for calls does not read them.

Decides whether bodies are stored and encrypted. The calls are in `storage.calls.sqlite_store`, the encryption in
`storage.calls.encryption`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Literal

from llm_guard.storage.calls.encryption import BodyEncryption
from llm_guard.storage.calls.store import Purpose
from llm_guard.storage.errors import StoreError

BodyRule = Literal["plain", "encrypted", "none"]
"""Rule for the bodies of dead letters. Deferred calls always store them, encrypted if there is a key."""
Part = Literal["request", "ended", "answer"]

_PUT = "INSERT INTO bodies (call, part, key, content) VALUES (?, ?, ?, ?)"
_DROP = "DELETE FROM bodies WHERE call = ? AND part = ?"
_SELECT = "SELECT part, key, content FROM bodies WHERE call = ?"


class Unreadable(StoreError):
    """A stored part of one call is damaged; the text says which. Other calls are not affected."""


class Bodies:
    """Stores bodies as configured. `sealing` None: there is no key."""

    def __init__(self, rule: BodyRule, sealing: BodyEncryption | None) -> None:
        """Raises ValueError if bodies are to be encrypted and there is no key."""
        if rule == "encrypted" and sealing is None:
            raise ValueError("bodies must be encrypted, but there is no key")
        self._rule = rule
        self._sealing = sealing
        self.keys = json.dumps(() if sealing is None else sealing.names)
        """Names of the keys that can decrypt, as JSON for SQL."""

    def are_kept(self, purpose: Purpose, *, is_dead: bool) -> bool:
        """True if such a call's bodies are stored. A deferred call that is dead counts as a dead letter."""
        return self._rule != "none" or (purpose == "deferred" and not is_dead)

    def put(
        self, connection: sqlite3.Connection, number: int, call_id: str, parts: Mapping[Part, bytes | None],
        purpose: Purpose,
    ) -> None:  # fmt: skip
        """Replaces the bodies of these parts; None deletes one."""
        is_sealed = self._rule == "encrypted" or purpose == "deferred"
        sealing = self._sealing if is_sealed else None
        for part, content in parts.items():
            connection.execute(_DROP, (number, part))
            if content is None:
                continue
            key = None if sealing is None else sealing.newest
            kept = content if sealing is None else sealing.seal(content, f"{call_id}/{part}")
            connection.execute(_PUT, (number, part, key, kept))

    def of(self, connection: sqlite3.Connection, number: int, call_id: str) -> tuple[dict[Part, bytes], bool]:
        """Returns the stored bodies that could be decrypted, and whether that was all of them. Raises Unreadable."""
        found: dict[Part, bytes] = {}
        is_open = True
        for part, key, content in connection.execute(_SELECT, (number,)):
            if key is None:
                found[part] = content
            elif self._sealing is None or key not in self._sealing.names:
                is_open = False
            else:
                found[part] = _opened(self._sealing, content, f"{call_id}/{part}", key)
        return found, is_open


def _opened(sealing: BodyEncryption, content: bytes, place: str, key: str) -> bytes:
    try:
        return sealing.open(content, place, key)
    except ValueError as error:
        raise Unreadable(f"the body of {place}: {error}") from None
