"""The bodies of kept calls: in a table of their own, so that looking for calls does not read them.

Owns whether they are kept, and whether they are sealed. Does not own the calls (`store.kept_calls`), nor the sealing
(`store.sealing`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Literal

from llm_guard.store.errors import StoreError
from llm_guard.store.kept import Purpose
from llm_guard.store.sealing import Sealing

BodyRule = Literal["plain", "encrypted", "none"]
"""Of dead letters. What is answered later cannot do without: it is sealed where there is a key."""
Part = Literal["request", "ended", "answer"]

_PUT = "INSERT INTO bodies (call, part, key, content) VALUES (?, ?, ?, ?)"
_DROP = "DELETE FROM bodies WHERE call = ? AND part = ?"
_SELECT = "SELECT part, key, content FROM bodies WHERE call = ?"


class Unreadable(StoreError):
    """Something of one call is there, but was damaged; the text says what. The others are not concerned."""


class Bodies:
    """As the config wants them. `sealing` None: there is no key."""

    def __init__(self, rule: BodyRule, sealing: Sealing | None) -> None:
        """Raises ValueError for encrypted ones without a key."""
        if rule == "encrypted" and sealing is None:
            raise ValueError("bodies are to be encrypted, but there is no key")
        self._rule = rule
        self._sealing = sealing
        self.keys = json.dumps(() if sealing is None else sealing.names)
        """The names of those that can open, as SQL reads them."""

    def are_kept(self, purpose: Purpose, *, is_dead: bool) -> bool:
        """Of such a call; a promise that is dead is a letter."""
        return self._rule != "none" or (purpose == "later" and not is_dead)

    def put(
        self, connection: sqlite3.Connection, number: int, call_id: str, parts: Mapping[Part, bytes | None],
        purpose: Purpose,
    ) -> None:  # fmt: skip
        """In place of those that were; None: there is none any more."""
        is_sealed = self._rule == "encrypted" or purpose == "later"
        sealing = self._sealing if is_sealed else None
        for part, content in parts.items():
            connection.execute(_DROP, (number, part))
            if content is None:
                continue
            key = None if sealing is None else sealing.newest
            kept = content if sealing is None else sealing.seal(content, f"{call_id}/{part}")
            connection.execute(_PUT, (number, part, key, kept))

    def of(self, connection: sqlite3.Connection, number: int, call_id: str) -> tuple[dict[Part, bytes], bool]:
        """Those that are there, and whether all of them could be opened with the keys that there are. Raises
        Unreadable."""
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


def _opened(sealing: Sealing, content: bytes, place: str, key: str) -> bytes:
    try:
        return sealing.open(content, place, key)
    except ValueError as error:
        raise Unreadable(f"the body of {place}: {error}") from None
