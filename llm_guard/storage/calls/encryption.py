"""Encryption of bodies on the disk: AES-256-GCM, with keys that can be rotated.

The keys come from `config.storage`; what is encrypted is decided in `storage.calls.bodies`.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from hashlib import sha256

_NONCE_BYTES = 12
"""Random for each piece. NIST SP 800-38D (8.3) allows 2^32 of them with one key."""
_TAG_BYTES = 16
_PIECE_BYTES = 4 * 1024**2
"""Encrypting a piece blocks all threads of the process: 2 ms, instead of 30 ms for a body of 64 MiB in one piece."""


class BodyEncryption:
    """Encrypts with the first key and decrypts with any of them."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """`keys`: 32 bytes each. Raises ImportError without `cryptography`; `config.storage` checks for it first."""
        # Imported only if needed: it takes 20 MB.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        self._ciphers = {_name(key): AESGCM(key) for key in keys}
        self.newest = _name(keys[0])
        """Name of the key that encrypts; reveals nothing about the key."""
        self._digest_key = sha256(b"llm_guard.store.digest:" + keys[0]).digest()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all keys."""
        return tuple(self._ciphers)

    def digest(self, content: bytes) -> bytes:
        """Returns a digest that cannot be computed without the newest key, so that `content` cannot be guessed."""
        return hmac.digest(self._digest_key, content, "sha256")

    def seal(self, content: bytes, place: str) -> bytes:
        """Encrypts with the newest key. `place` identifies the content and is authenticated: the result cannot be
        decrypted as anything else."""
        pieces = [content[at : at + _PIECE_BYTES] for at in range(0, len(content), _PIECE_BYTES)] or [b""]
        cipher, sealed = self._ciphers[self.newest], bytearray()
        for number, piece in enumerate(pieces, 1):
            nonce = os.urandom(_NONCE_BYTES)
            sealed += nonce + cipher.encrypt(nonce, piece, _label(place, number, len(pieces)))
        return bytes(sealed)

    def open(self, sealed: bytes, place: str, name: str) -> bytes:
        """Decrypts. Raises ValueError if the content was changed or truncated; KeyError if no key has this name."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # as above

        cipher, step = self._ciphers[name], _NONCE_BYTES + _PIECE_BYTES + _TAG_BYTES
        pieces = [sealed[at : at + step] for at in range(0, len(sealed), step)]
        opened = bytearray()
        try:
            for number, piece in enumerate(pieces, 1):
                nonce, rest = piece[:_NONCE_BYTES], piece[_NONCE_BYTES:]
                opened += cipher.decrypt(nonce, rest, _label(place, number, len(pieces)))
        except (InvalidTag, ValueError):
            raise ValueError("it was damaged or changed after it was encrypted") from None
        if not pieces:
            raise ValueError("it is empty")
        return bytes(opened)


def _name(key: bytes) -> str:
    return sha256(b"llm_guard.store.key:" + key).hexdigest()[:16]


def _label(place: str, number: int, count: int) -> bytes:
    return f"{place}:{number}/{count}".encode()
