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
    overrides: dict[str, tuple[float, float | None, bytes, bool]] = field(default_factory=dict)
    """Instants of change and of end, content, and whether it was ended, by key."""
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
        shared, now = self._shared, self._clock.now()
        for key, change in changed.items():
            at = now - change.age_s
            if key not in shared.overrides or at > shared.overrides[key][0]:
                ends_at = None if change.left_s is None else now + change.left_s
                shared.overrides[key] = at, ends_at, change.content, change.is_ended
                shared.version += 1
        shared.overrides = {
            key: one for key, one in shared.overrides.items() if one[1] is None or one[1] > now
        }  # fmt: skip
        entries = {
            key: StoredOverride(
                round(at * 1000), now - at, content, is_ended, None if ends_at is None else ends_at - now
            )
            for key, (at, ends_at, content, is_ended) in shared.overrides.items()
        }
        return StoredOverrides(shared.version, entries)

    async def close(self) -> None:
        self._shared.published.pop(self._replica, None)
