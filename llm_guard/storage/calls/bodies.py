"""The bodies of stored calls: which are stored, and how they are encrypted.

The encryption is in `storage.calls.encryption`; where bodies are stored is up to each store of calls.
"""

from __future__ import annotations

from typing import Literal

from llm_guard.storage.calls.encryption import BodyEncryption
from llm_guard.storage.calls.store import CallFailure, Purpose, State, StoredCall, StoredResponse
from llm_guard.storage.errors import StoreError

BodyRule = Literal["plain", "encrypted", "none"]
"""Rule for the bodies of dead letters. Deferred calls always store them, encrypted if there is a key."""
Part = Literal["request", "ended", "answer"]


class Unreadable(StoreError):
    """A stored part of one call is damaged; the text says which. Other calls are not affected."""


class Bodies:
    """Encrypts and decrypts bodies as configured. `sealing` None: there is no key."""

    def __init__(self, rule: BodyRule, sealing: BodyEncryption | None) -> None:
        """Raises ValueError if bodies are to be encrypted and there is no key."""
        if rule == "encrypted" and sealing is None:
            raise ValueError("bodies must be encrypted, but there is no key")
        self._rule = rule
        self._sealing = sealing
        self.keys: tuple[str, ...] = () if sealing is None else sealing.names
        """Names of the keys that can decrypt."""

    def of_new(self, call: StoredCall) -> dict[Part, bytes | None]:
        """Returns the bodies that are stored with a new call."""
        parts: dict[Part, bytes | None] = {"answer": None if call.answer is None else call.answer.body}
        if self._are_kept(call.purpose, call.state):
            parts |= {"request": call.request.body, "ended": None if call.ended is None else call.ended.body}
        return parts

    def after(
        self, purpose: Purpose, state: State, ended: CallFailure | None, answer: StoredResponse | None
    ) -> dict[Part, bytes | None]:
        """Returns the bodies that a change to this state stores, or deletes (None)."""
        if answer is not None:
            return {"request": None, "ended": None, "answer": answer.body}
        if not self._are_kept(purpose, state):
            return {"request": None, "ended": None}
        return {} if ended is None else {"ended": ended.body}

    def seal(self, content: bytes, place: str, purpose: Purpose) -> tuple[str | None, bytes]:
        """Returns the name of the key that encrypts a body, and the encrypted content; None and the content itself if
        the bodies of such a call are not encrypted. `place` is `ID/PART`, and authenticated."""
        if not (self._rule == "encrypted" or purpose == "deferred"):
            return None, content
        return self.seal_always(content, place)

    def seal_always(self, content: bytes, place: str) -> tuple[str | None, bytes]:
        """The same for what is encrypted whenever there is a key."""
        if self._sealing is None:
            return None, content
        return self._sealing.newest, self._sealing.seal(content, place)

    def open(self, content: bytes, place: str, key: str | None) -> bytes | None:
        """Returns what was encrypted with the key of this name, or None if this gateway does not have it. Raises
        Unreadable."""
        if key is None:
            return content
        if self._sealing is None or key not in self.keys:
            return None
        try:
            return self._sealing.open(content, place, key)
        except ValueError as error:
            raise Unreadable(f"the body of {place}: {error}") from None

    def _are_kept(self, purpose: Purpose, state: State) -> bool:
        """True if such a call's bodies are stored. A deferred call that is dead counts as a dead letter."""
        return self._rule != "none" or (purpose == "deferred" and state != "dead")
