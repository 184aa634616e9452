"""Bodies on the disk that nobody can read without the key: AES-256-GCM.

Owns how they are sealed and opened, and that keys can be changed while what is old can still be opened. Does not own
the keys (`config.lasting`), nor what is sealed (`store.kept_bodies`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256

_NONCE_BYTES = 12
"""Drawn anew for each piece, which NIST SP 800-38D (8.3) allows 2^32 times with one key."""
_TAG_BYTES = 16
_PIECE_BYTES = 4 * 1024**2
"""While one is sealed nothing else of the process runs: 2 ms, and 30 ms for a body of 64 MiB that is one."""


class Sealing:
    """The first key seals; all of them open."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """`keys`: of 32 bytes each. Raises ImportError without `cryptography`, for which `config.lasting` looks."""
        # Only where it is asked for: it takes 20 MB.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        self._ciphers = {_name(key): AESGCM(key) for key in keys}
        self.newest = _name(keys[0])
        """The name of the key that seals; it tells nothing of the key."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of all the keys."""
        return tuple(self._ciphers)

    def seal(self, content: bytes, place: str) -> bytes:
        """With the newest key. `place`: what it is; it cannot be passed off as anything else."""
        pieces = [content[at : at + _PIECE_BYTES] for at in range(0, len(content), _PIECE_BYTES)] or [b""]
        cipher, sealed = self._ciphers[self.newest], bytearray()
        for number, piece in enumerate(pieces, 1):
            nonce = os.urandom(_NONCE_BYTES)
            sealed += nonce + cipher.encrypt(nonce, piece, _label(place, number, len(pieces)))
        return bytes(sealed)

    def open(self, sealed: bytes, place: str, name: str) -> bytes:
        """Raises ValueError where it is not what was sealed here; KeyError where no key has this name."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # as above

        cipher, step = self._ciphers[name], _NONCE_BYTES + _PIECE_BYTES + _TAG_BYTES
        pieces = [sealed[at : at + step] for at in range(0, len(sealed), step)]
        opened = bytearray()
        try:
            for number, piece in enumerate(pieces, 1):
                nonce, rest = piece[:_NONCE_BYTES], piece[_NONCE_BYTES:]
                opened += cipher.decrypt(nonce, rest, _label(place, number, len(pieces)))
        except (InvalidTag, ValueError):
            raise ValueError("it was damaged or changed since it was sealed") from None
        if not pieces:
            raise ValueError("nothing is left of it")
        return bytes(opened)


def _name(key: bytes) -> str:
    return sha256(b"llm_guard.store.key:" + key).hexdigest()[:16]


def _label(place: str, number: int, count: int) -> bytes:
    return f"{place}:{number}/{count}".encode()
