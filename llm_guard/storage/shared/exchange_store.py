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
class Leases:
    """What became of the leases that a gateway wanted: the seconds left of each, by subject."""

    held: Mapping[str, float]
    taken: Mapping[str, float]
    """Those that another gateway holds."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The result of an exchange."""

    others: tuple[Published, ...]
    leases: Leases


class ExchangeStore(Protocol):
    """A store, as one gateway sees it."""

    async def exchange(self, content: bytes, wanted: Mapping[str, float]) -> Exchanged:
        """Publishes `content` in place of what this gateway published before, and takes or extends the leases that are
        `wanted`, each for so many seconds, unless another gateway holds them. Raises StoreUnavailable."""
        ...

    async def close(self) -> None:
        """Withdraws what this gateway has published, if the store is there, and closes the connection."""
        ...
