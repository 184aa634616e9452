"""Overrides by operators that hold at all gateways of a fleet: what changed here is stored, what changed elsewhere is
applied, the latest of each.

The store keeps them, so that they outlive a restart of all gateways. A change that is made while the store does not
answer is stored as soon as it does, with its age.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

from llm_guard.clock import Clock
from llm_guard.storage.shared.exchange_store import ExchangeStore, Override, StoredOverride, StoredOverrides

_MOST_BYTES = 8192
_MOST = 2000
"""Overrides that are read; the latest ones, if there are more."""
_ENDS_KEPT_S = 7 * 86400.0
_JITTER_S = 1.0
"""Ages that differ by less are the same."""

Applied = Literal["yes", "unreadable", "not here"]


class OverrideTarget(Protocol):
    """The overrides of this gateway, implemented by `admin.persistence.shared_overrides`."""

    def current(self) -> Mapping[str, Override]:
        """Returns all overrides in effect, by key."""
        ...

    def apply(self, changes: Sequence[tuple[str, StoredOverride]]) -> Mapping[str, Applied]:
        """Applies changes of other gateways, in this order; returns the result of each."""
        ...


class FleetOverrides:
    """Life cycle: `connect`, before the first exchange."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._target: OverrideTarget | None = None
        self._changed: dict[str, tuple[float, Override]] = {}
        """Changes that are not stored yet, with the instant from which their age counts."""
        self._seen: dict[str, int] = {}
        """What has been applied, or was made here: `since_ms` by key."""
        self._ended: dict[str, tuple[float, Override]] = {}
        """Ends that the store knew: a store that was emptied must not take an old override for a new one."""
        self._version = -1
        self.unreadable = 0
        """Overrides of others that could not be read."""

    @property
    def has_changes(self) -> bool:
        """True if the next exchange stores a change, or reads all overrides."""
        return self._target is not None and (bool(self._changed) or self._version < 0)

    def connect(self, target: OverrideTarget) -> None:
        self._target = target

    def note_changed(self, changed: Mapping[str, Override]) -> None:
        """Stores these changes with the next exchange."""
        now = self._clock.now()
        self._changed |= {key: (now, change) for key, change in changed.items()}

    def look_again(self, lost: Iterable[str]) -> None:
        """Reads all overrides with the next exchange: a new config may have their targets. `lost`: those that it ended
        because it lacks theirs."""
        self._version = -1
        for key in lost:
            self._seen.pop(key, None)

    async def exchange(self, store: ExchangeStore, version: int) -> None:
        """Stores what changed here, and applies what changed elsewhere, if anything did: `version` is that of the
        store. Raises StoreUnavailable."""
        if self._target is None or (version == self._version and not self._changed):
            return
        sent, now = dict(self._changed), self._clock.now()
        found = await store.change_overrides({key: change.aged(now - at) for key, (at, change) in sent.items()})
        self._changed = {key: value for key, value in self._changed.items() if sent.get(key) is not value}
        for key, (_, change) in sent.items():
            if key in found.entries and found.entries[key].content == change.content:
                self._seen[key] = found.entries[key].since_ms
        self._apply(found, self._target)
        self._version = found.version

    def _apply(self, found: StoredOverrides, target: OverrideTarget) -> None:
        own, now = target.current(), self._clock.now()
        latest = sorted(found.entries.items(), key=lambda item: item[1].since_ms)[-_MOST:]
        news = []
        for key, entry in latest:
            if self._seen.get(key) == entry.since_ms or key in self._changed:
                continue
            if key not in self._seen and key in own and own[key].age_s < entry.age_s - _JITTER_S:
                self._changed[key] = now, own[key]  # restored by this gateway, from a time without the store
            elif len(entry.content) > _MOST_BYTES:
                self._seen[key] = entry.since_ms
                self.unreadable += 1
            else:
                news.append((key, entry))
        for key, applied in target.apply(news).items():
            if applied != "not here":
                self._seen[key] = found.entries[key].since_ms
            self.unreadable += applied == "unreadable"
        self._restore(found, target)

    def _restore(self, found: StoredOverrides, target: OverrideTarget) -> None:
        """Gives the store what it lacks: it was emptied, or this gateway has restored its own."""
        now = self._clock.now()
        known = {key: one for key, one in self._ended.items() if key not in found.entries}
        ended: dict[str, tuple[float, Override]] = {
            key: (now, entry) for key, entry in found.entries.items() if entry.is_ended
        }
        self._ended = {
            key: (at, one) for key, (at, one) in (known | ended).items() if one.aged(now - at).age_s < _ENDS_KEPT_S
        }
        own = {key: (now, one) for key, one in target.current().items()}
        lacking = {key: one for key, one in (self._ended | own).items() if key not in found.entries}
        self._changed = lacking | self._changed
