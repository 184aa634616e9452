"""A store for gateways in one process: tests, and the reference for `storage.shared.redis_store`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_guard.clock import Clock
from llm_guard.storage.shared.exchange_store import (
    STALE_S,
    ChangedOverride,
    Exchanged,
    Leases,
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
    overrides: dict[str, StoredOverride] = field(default_factory=dict)
    version: int = 0


class MemoryStore:
    """Implements `storage.shared.exchange_store.ExchangeStore`."""

    def __init__(self, shared: SharedMemory, replica: str, clock: Clock) -> None:
        self._shared = shared
        self._replica = replica
        self._clock = clock

    async def exchange(self, content: bytes, wanted: Mapping[str, float]) -> Exchanged:
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
        return Exchanged(published, Leases(held, taken), shared.version)

    async def change_overrides(self, changed: Mapping[str, ChangedOverride]) -> StoredOverrides:
        shared, now_ms = self._shared, round(self._clock.now() * 1000)
        for key, change in changed.items():
            since_ms = now_ms - round(change.age_s * 1000)
            if key not in shared.overrides or since_ms >= shared.overrides[key].since_ms:
                shared.overrides[key] = StoredOverride(since_ms, change.content, change.is_ended)
                shared.version += 1
        return StoredOverrides(shared.version, dict(shared.overrides))

    async def close(self) -> None:
        self._shared.published.pop(self._replica, None)
