"""Ids and names of tools within the other dialect's limits.

They are reversible for one call, without collisions, and the same in each call, so that a provider's prompt cache
recognises a conversation."""

from __future__ import annotations

import re
from hashlib import blake2b

ID_LENGTH = 40
"""OpenAI's limit for the id of a tool call; Anthropic has none."""
CHAT_NAME_LENGTH = 64
"""OpenAI's limit for the name of a function."""
MESSAGES_NAME_LENGTH = 128
"""Anthropic's limit for the name of a tool."""

_VALID = re.compile(r"[A-Za-z0-9_-]+")
_INVALID = re.compile(r"[^A-Za-z0-9_-]+")
_DIGEST_CHARACTERS = 12


class NameMap:
    """Maps the client's texts to those on the wire, and back. A text that the other dialect accepts stays as it is."""

    __slots__ = ("_limit", "_originals", "_wire")

    def __init__(self, limit: int, wire: dict[str, str] | None = None, originals: dict[str, str] | None = None) -> None:
        """`limit`: the longest text that the other dialect accepts, in characters. `wire` and `originals` are what is
        known already, in both directions."""
        self._limit = limit
        self._wire = wire or {}
        self._originals = originals or {}

    def wire(self, text: str) -> str:
        """Returns the text for the other dialect; the same for each call with this text."""
        known = self._wire.get(text)
        if known is not None:
            return known
        wire = text if self._is_valid(text) else _shortened(text, self._limit, 0)
        attempt = 0
        while wire in self._originals:
            attempt += 1
            wire = _shortened(text, self._limit, attempt)
        self._wire[text] = wire
        self._originals[wire] = text
        return wire

    def original(self, wire: str) -> str | None:
        """Returns the client's text; None if no text was mapped to this one."""
        return self._originals.get(wire)

    def copy(self) -> NameMap:
        """Returns a map that knows the same texts, and learns others."""
        return NameMap(self._limit, self._wire.copy(), self._originals.copy())

    def _is_valid(self, text: str) -> bool:
        return len(text) <= self._limit and _VALID.fullmatch(text) is not None


def valid_id(text: str, used: NameMap, seed: str, index: int) -> str:
    """Returns the id under which the client gets a tool call: one that both dialects accept in a later request, and
    that no earlier call of the conversation has. `seed` and `index` identify the call where the provider gives no id of
    its own, or one that it repeats in each response."""
    if not text or used.original(text) is not None:
        text = f"{text or 'call'}_{seed}_{index}"
    return used.wire(text)


def _shortened(text: str, limit: int, attempt: int) -> str:
    digest = blake2b(f"{attempt}:{text}".encode("utf-8", "surrogatepass"), digest_size=_DIGEST_CHARACTERS // 2)
    kept = _INVALID.sub("_", text)[: limit - _DIGEST_CHARACTERS - 1]
    return f"{kept}_{digest.hexdigest()}"
