"""The response cache: its types, the protocols of a store and of its entries, and the store in memory.

Which responses may be cached is decided in `proxy.cache.response_cache`; how long one stays fresh, in
`resilience.caching.freshness`.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal, Protocol

import msgspec

from llm_guard.clock import Clock

_BESIDE_BYTES = 650
"""Memory in bytes of an entry besides its text: key, dict entry and heap entry (CPython 3.11, 64 bits)."""
_HEADER_BYTES = 180
"""The same for each header."""
_FEW = 64

CacheKind = Literal["memory", "sqlite", "redis"]


class CachedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A complete response, without headers that apply only to the original call."""

    route: str
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    """The body; for a stream, all its events."""
    is_stream: bool
    deployment: str
    """Deployment that produced the response."""


class CacheHit(msgspec.Struct, frozen=True):
    """A cache hit."""

    answer: CachedResponse
    age_s: float
    """Age in seconds since it was stored."""


class RouteCacheSize(msgspec.Struct, frozen=True):
    """Size of a route's part of the cache."""

    entries: int
    bytes: int


class CacheSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a store at one moment."""

    kind: CacheKind
    max_bytes: int
    routes: Mapping[str, RouteCacheSize]
    evictions: int
    """Entries evicted to make room, since the start."""
    failures: Mapping[str, int]
    """Failed operations since the start, by cause: `read`, `slow`, `write`, `full`."""


class ResponseStore(Protocol):
    """A store of responses. Its methods never raise: an entry that cannot be read is a miss, one that cannot be written
    is not stored, and both are counted. A key is 32 bytes that cannot be guessed."""

    async def get(self, key: bytes) -> CacheHit | None:
        """Returns the entry if it has not expired; takes at most a tenth of a second."""

    async def put(self, key: bytes, answer: CachedResponse, lasts_s: float) -> None:
        """Stores or replaces the entry. It is stored when this returns, unless the store took longer than a second."""

    async def purge(self, route: str | None) -> int | None:
        """Deletes a route's entries (None: all) and returns their number; None if the store does not respond."""

    def sweep(self) -> None:
        """Deletes expired entries. To be called each second."""

    def limit(self, max_bytes: int) -> None:
        """Changes the maximum size."""

    def snapshot(self) -> CacheSnapshot: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EntriesChange:
    """The entries after a change."""

    routes: Mapping[str, RouteCacheSize]
    evicted: int = 0
    """Entries evicted to make room."""
    gone: int = 0
    """Entries deleted because they had expired or were purged."""


class CacheEntries(Protocol):
    """Entries that several gateways share. Blocking; used by one thread. All methods raise StoreError; `now` in seconds
    since the epoch."""

    def get(self, key: bytes, now: float) -> CacheHit | None: ...

    def put(
        self, key: bytes, answer: CachedResponse, now: float, lasts_s: float, touches: Mapping[bytes, float], most: int
    ) -> EntriesChange:
        """Stores or replaces an entry. `touches`: when other entries were last used; `most`: maximum size of all
        together."""
        ...

    def forget_ended(self, now: float, most: int) -> EntriesChange:
        """Deletes expired entries, then evicts until the rest fits into `most` bytes."""
        ...

    def purge(self, route: str | None) -> EntriesChange:
        """Deletes a route's entries; None: all."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Slot:
    answer: CachedResponse
    stored_at: float
    ends_at: float
    size: int


class MemoryCache:
    """An LRU cache, bounded by size and lost with the process."""

    def __init__(self, clock: Clock, max_bytes: int) -> None:
        """`max_bytes`: of all entries together, including their overhead."""
        self._clock = clock
        self._max_bytes = max_bytes
        self._slots: OrderedDict[bytes, _Slot] = OrderedDict()
        """Least recently used first."""
        self._ends: list[tuple[float, bytes]] = []
        """Heap of expiry times; may contain stale entries of replaced keys."""
        self._bytes = 0
        self._evictions = 0

    async def get(self, key: bytes) -> CacheHit | None:
        now = self._clock.now()
        slot = self._slots.get(key)
        if slot is None or now >= slot.ends_at:
            return None
        self._slots.move_to_end(key)
        return CacheHit(slot.answer, now - slot.stored_at)

    async def put(self, key: bytes, answer: CachedResponse, lasts_s: float) -> None:
        self._drop(key)
        now, size = self._clock.now(), cost_of(answer)
        self._forget_ended(now)
        if size > self._max_bytes:
            return
        self._make_room(self._max_bytes - size)
        self._slots[key] = _Slot(answer, now, now + lasts_s, size)
        self._bytes += size
        heappush(self._ends, (now + lasts_s, key))
        if len(self._ends) > 2 * len(self._slots) + _FEW:
            self._ends = [(slot.ends_at, key) for key, slot in self._slots.items()]
            heapify(self._ends)

    async def purge(self, route: str | None) -> int:
        gone = [key for key, slot in self._slots.items() if route in (None, slot.answer.route)]
        for key in gone:
            self._drop(key)
        return len(gone)

    def sweep(self) -> None:
        self._forget_ended(self._clock.now())

    def limit(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._make_room(max_bytes)

    def snapshot(self) -> CacheSnapshot:
        entries: defaultdict[str, int] = defaultdict(int)
        sizes: defaultdict[str, int] = defaultdict(int)
        for slot in self._slots.values():
            entries[slot.answer.route] += 1
            sizes[slot.answer.route] += slot.size
        routes = {route: RouteCacheSize(count, sizes[route]) for route, count in entries.items()}
        return CacheSnapshot(
            kind="memory", max_bytes=self._max_bytes, routes=routes, evictions=self._evictions, failures={}
        )

    async def close(self) -> None:
        """Does nothing."""

    def _make_room(self, most_bytes: int) -> None:
        while self._bytes > most_bytes:
            self._drop(next(iter(self._slots)))
            self._evictions += 1

    def _forget_ended(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            _, key = heappop(self._ends)
            slot = self._slots.get(key)
            if slot is not None and slot.ends_at <= now:
                self._drop(key)

    def _drop(self, key: bytes) -> None:
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._bytes -= slot.size


def cost_of(answer: CachedResponse) -> int:
    """Memory that an entry takes, in bytes."""
    headers = sum(len(name) + len(value) + _HEADER_BYTES for name, value in answer.headers)
    return len(answer.body) + headers + _BESIDE_BYTES
