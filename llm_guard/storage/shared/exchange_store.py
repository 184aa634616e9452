"""The interface of the store through which the gateways of a fleet exchange what they know, and overrides by
operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol, Self

from llm_guard.resilience.capacity.slot_sharing import SlotGrant, SlotRequest

STALE_S = 3.0
"""What a gateway published longer ago than this is not returned."""
NO_SLOTS: Mapping[str, SlotRequest] = MappingProxyType({})


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
    overrides_version: int = 0
    """Grows with each change of an override; 0: there are none."""
    slots: Mapping[str, SlotGrant] = field(default_factory=dict)
    """Grants by subject."""


@dataclass(frozen=True, slots=True)
class Override:
    """An override that an operator has set, or has ended."""

    age_s: float
    """Seconds since then."""
    content: bytes
    is_ended: bool
    left_s: float | None = None
    """Seconds until it ends by itself; None: it has no end."""

    def aged(self, by_s: float) -> Self:
        """Returns it as it is `by_s` seconds later."""
        return replace(self, age_s=self.age_s + by_s, left_s=None if self.left_s is None else self.left_s - by_s)


@dataclass(frozen=True, slots=True)
class StoredOverride(Override):
    """An override in the store. Its times are by the store's clock: those of gateways may differ."""

    since_ms: int = field(kw_only=True)
    """When it was set or ended."""


@dataclass(frozen=True, slots=True)
class StoredOverrides:
    """All overrides of a fleet."""

    version: int
    entries: Mapping[str, StoredOverride]


class ExchangeStore(Protocol):
    """A store, as one gateway sees it."""

    async def exchange(
        self, content: bytes, wanted: Mapping[str, float], slots: Mapping[str, SlotRequest] = NO_SLOTS
    ) -> Exchanged:
        """Publishes `content` in place of what this gateway published before; takes or extends the leases that are
        `wanted`, each for so many seconds, unless another gateway holds them; and asks for `slots`, by subject. Raises
        StoreUnavailable."""
        ...

    async def change_overrides(self, changed: Mapping[str, Override]) -> StoredOverrides:
        """Stores overrides by operators, each unless the store has a later one for the same key, and returns all.
        Raises StoreUnavailable."""
        ...

    async def close(self) -> None:
        """Withdraws what this gateway has published, if the store is there, and closes the connection."""
        ...
