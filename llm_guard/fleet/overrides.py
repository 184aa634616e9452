"""Overrides by operators that hold at all gateways of a fleet: what changed here is stored, what changed elsewhere is
applied, the latest of each.

The store keeps them, so that they outlive a restart of all gateways. A change that is made while the store does not
answer is stored as soon as it does, with its age.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from llm_guard.clock import Clock
from llm_guard.storage.shared.exchange_store import ChangedOverride, ExchangeStore

_MOST_BYTES = 8192


class OverrideTarget(Protocol):
    """The overrides of this gateway, implemented by `admin.persistence.shared_overrides`."""

    def current(self) -> Mapping[str, ChangedOverride]:
        """Returns all overrides in effect, by key."""
        ...

    def apply(self, key: str, content: bytes, *, is_ended: bool) -> bool:
        """Applies a change of another gateway. Returns False if it cannot be read."""
        ...


class FleetOverrides:
    """Life cycle: `connect`, before the first exchange."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._target: OverrideTarget | None = None
        self._changed: dict[str, tuple[float, ChangedOverride]] = {}
        """Changes that are not stored yet, with the instant from which their age counts."""
        self._seen: dict[str, int] = {}
        """What has been applied, or was made here: `since_ms` by key."""
        self._version = -1
        self.unreadable = 0
        """Overrides of others that could not be read."""

    def connect(self, target: OverrideTarget) -> None:
        self._target = target

    def note_changed(self, changed: Mapping[str, ChangedOverride]) -> None:
        """Stores these changes with the next exchange."""
        now = self._clock.now()
        self._changed |= {key: (now, change) for key, change in changed.items()}

    async def exchange(self, store: ExchangeStore, version: int) -> None:
        """Stores what changed here, and applies what changed elsewhere, if anything did: `version` is that of the
        store. Raises StoreUnavailable."""
        if self._target is None or (version == self._version and not self._changed):
            return
        sent, now = dict(self._changed), self._clock.now()
        found = await store.change_overrides(
            {
                key: ChangedOverride(change.age_s + now - at, change.content, change.is_ended)
                for key, (at, change) in sent.items()
            }
        )
        self._changed = {key: value for key, value in self._changed.items() if sent.get(key) is not value}
        for key, entry in found.entries.items():
            if self._seen.get(key) == entry.since_ms or key in self._changed:
                continue
            self._seen[key] = entry.since_ms
            is_readable = len(entry.content) <= _MOST_BYTES and self._target.apply(
                key, entry.content, is_ended=entry.is_ended
            )
            self.unreadable += not is_readable
        self._version = found.version
        # A store that was emptied, or a gateway that has restored its own: the store gets what it lacks.
        lacking = {key: one for key, one in self._target.current().items() if key not in found.entries}
        self.note_changed({key: one for key, one in lacking.items() if key not in self._changed})
