"""A store for gateways in one process: tests, and the reference for `storage.shared.redis_store`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from llm_guard.clock import Clock
from llm_guard.resilience.capacity.slot_sharing import SLOTS_HELD_S, TURN_S, SlotGrant, SlotRequest, granted
from llm_guard.storage.shared.exchange_store import (
    NO_SLOTS,
    STALE_S,
    Exchanged,
    Leases,
    Override,
    Published,
    StoredOverride,
    StoredOverrides,
)


@dataclass(slots=True)
class SharedMemory:
    """The content that all stores of a fleet have in common."""

    published: dict[str, tuple[float, bytes]] = field(default_factory=dict)
    """Instant and content by replica."""
    leases: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Holder and end by subject."""
    slots: dict[str, dict[str, tuple[SlotRequest, float]]] = field(default_factory=dict)
    """The latest request, with the slots held since then, and its end, by subject and replica."""
    overrides: dict[str, tuple[float, Override]] = field(default_factory=dict)
    """Instant at which it was stored, and the override as of then, by key."""
    version: int = 0


class MemoryStore:
    """Implements `storage.shared.exchange_store.ExchangeStore`."""

    def __init__(self, shared: SharedMemory, replica: str, clock: Clock) -> None:
        self._shared = shared
        self._replica = replica
        self._clock = clock

    async def exchange(
        self, content: bytes, wanted: Mapping[str, float], slots: Mapping[str, SlotRequest] = NO_SLOTS
    ) -> Exchanged:
        shared, now = self._shared, self._clock.now()
        shared.published[self._replica] = now, content
        shared.published = {of: found for of, found in shared.published.items() if now - found[0] <= STALE_S}
        held, taken = {}, {}
        for subject, seconds in wanted.items():
            holder, ends_at = shared.leases.get(subject, (self._replica, now))
            if holder == self._replica or ends_at <= now:
                shared.leases[subject] = self._replica, now + seconds
                held[subject] = seconds
            else:
                taken[subject] = ends_at - now
        others = [(of, found) for of, found in shared.published.items() if of != self._replica]
        published = tuple(Published(of, now - at, found) for of, (at, found) in others)
        grants = {subject: self._grant(subject, request, now) for subject, request in slots.items()}
        return Exchanged(published, Leases(held, taken), shared.version, grants)

    def _grant(self, subject: str, request: SlotRequest, now: float) -> SlotGrant:
        holders = {
            replica: one
            for replica, one in self._shared.slots.get(subject, {}).items()
            if one[1] > now and replica != self._replica
        }
        if request.limit == 0:
            self._shared.slots[subject] = holders
            return SlotGrant(0, 0)
        others = {replica: held for replica, (held, _) in holders.items()}
        grant = granted(request, self._replica, others, int(self._clock.wall() / TURN_S))
        holders[self._replica] = replace(request, holds=grant.holds), now + SLOTS_HELD_S
        self._shared.slots[subject] = holders
        return grant

    async def change_overrides(self, changed: Mapping[str, Override]) -> StoredOverrides:
        shared, now = self._shared, self._clock.now()
        for key, change in changed.items():
            stored_at, stored = shared.overrides.get(key, (-inf, change))
            if now - change.age_s > stored_at - stored.age_s:
                shared.overrides[key] = now, change
                shared.version += 1
        found = {key: change.aged(now - at) for key, (at, change) in shared.overrides.items()}
        return StoredOverrides(
            shared.version,
            {
                key: StoredOverride(
                    one.age_s, one.content, one.is_ended, one.left_s, since_ms=round((now - one.age_s) * 1000)
                )
                for key, one in found.items()
                if one.left_s is None or one.left_s > 0
            },
        )

    async def close(self) -> None:
        self._shared.published.pop(self._replica, None)
