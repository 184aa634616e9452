"""What gateways publish in place of names: digests that only the gateways of the fleet can compute.

Names of client keys, callers, upstreams and models could be guessed, and then recognized by a plain digest.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b, scrypt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_guard.routing.deployment import Deployment

_NAMES = 8192
_MEMORY_BYTES = 1 << 25
"""Twice what `scrypt` needs here."""


class FleetNames:
    """The digests of a fleet. Gateways with another operator token have others, and share nothing with it."""

    def __init__(self, token: str) -> None:
        """Takes a twentieth of a second, so that the token cannot be found by trying many."""
        salt = b"llm-guard fleet names 1"
        key = scrypt(token.encode(), salt=salt, n=1 << 14, r=8, p=1, maxmem=_MEMORY_BYTES, dklen=32)
        self.of = lru_cache(_NAMES)(
            lambda name: blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=key).hexdigest()
        )
        """Returns the digest of a name."""
        self.own = self.of("llm-guard")
        """The same at all gateways with this token."""

    def subject(self, deployment: Deployment) -> str:
        """Returns the name under which gateways with the same upstream and model share what they know of it."""
        upstream = deployment.upstream
        return self.of(f"{upstream.name}\n{upstream.base_url}\n{deployment.model or ''}")
