"""The interface of the store through which the gateways of a fleet exchange what they know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

STALE_S = 3.0
"""What a gateway published longer ago than this is not returned."""


class StoreUnavailable(Exception):
    """Raised if an exchange fails; the text says why, and quotes no secret."""


@dataclass(frozen=True, slots=True)
class Published:
    """What another gateway has published."""

    replica: str
    """Its id."""
    age_s: float
    content: bytes


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The result of an exchange."""

    others: tuple[Published, ...]
    held: Mapping[str, float]
    """The leases that this gateway holds of those that it wanted, each with the seconds left."""


class ExchangeStore(Protocol):
    """A store, as one gateway sees it."""

    async def exchange(self, content: bytes, wanted: Mapping[str, float]) -> Exchanged:
        """Publishes `content` in place of what this gateway published before, and takes or extends the leases that are
        `wanted`, each for so many seconds, unless another gateway holds them. Raises StoreUnavailable."""
        ...

    async def close(self) -> None:
        """Withdraws what this gateway has published, if the store is there, and closes the connection."""
        ...
