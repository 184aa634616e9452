"""Answers that are kept for a while, by what they answer.

Owns the nouns, what a store of them must do, and the one in memory. Does not own what may be kept
(`gateway.answer_cache`), nor for how long an answer may be given (`policy.freshness`).
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
"""What it takes to keep an answer, beyond its text: its key, its places in the table and in the heap (CPython 3.11, 64
bits)."""
_HEADER_BYTES = 180
"""The same for each of its headers."""
_FEW = 64


class CachedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, without what was true of its call alone."""

    route: str
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    """Of a stream all its events."""
    is_stream: bool
    deployment: str
    """Whose answer it was."""


class Found(msgspec.Struct, frozen=True):
    """An answer that is still kept."""

    answer: CachedAnswer
    age_s: float
    """Since it was stored."""


class Held(msgspec.Struct, frozen=True):
    """How much of a route is kept."""

    entries: int
    bytes: int


class CacheSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A store at one moment."""

    kind: Literal["memory", "sqlite"]
    max_bytes: int
    routes: Mapping[str, Held]
    evictions: int
    """Answers that made room for others, since the start."""
    failures: Mapping[str, int]
    """What a store could not do, since the start: `read`, `slow`, `write`, `full`."""


class AnswerStore(Protocol):
    """None of its methods raises: what cannot be read is not there, what cannot be written is not kept, and both are
    counted. A key is 32 bytes, and not to be guessed."""

    async def get(self, key: bytes) -> Found | None:
        """What was put and has not lasted its time; within a tenth of a second."""

    async def put(self, key: bytes, answer: CachedAnswer, lasts_s: float) -> None:
        """In place of what was there; kept when it returns, unless something kept it from it for a second."""

    async def purge(self, route: str | None) -> int | None:
        """Forgets the answers of a route, or all of them; how many. None: that is not known, the store does not
        answer."""

    def sweep(self) -> None:
        """To be called each second: what has lasted its time is forgotten."""

    def limit(self, max_bytes: int) -> None:
        """From now on."""

    def snapshot(self) -> CacheSnapshot: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _Slot:
    answer: CachedAnswer
    stored_at: float
    ends_at: float
    size: int


class MemoryCache:
    """Those asked for lately, as many as there is room for. Gone with the process."""

    def __init__(self, clock: Clock, max_bytes: int) -> None:
        """`max_bytes` of all together, with what it takes to keep them."""
        self._clock = clock
        self._max_bytes = max_bytes
        self._slots: OrderedDict[bytes, _Slot] = OrderedDict()
        """The one not asked for the longest first."""
        self._ends: list[tuple[float, bytes]] = []
        """A heap: when each ends. Some have been replaced since."""
        self._bytes = 0
        self._evictions = 0

    async def get(self, key: bytes) -> Found | None:
        now = self._clock.now()
        slot = self._slots.get(key)
        if slot is None or now >= slot.ends_at:
            return None
        self._slots.move_to_end(key)
        return Found(slot.answer, now - slot.stored_at)

    async def put(self, key: bytes, answer: CachedAnswer, lasts_s: float) -> None:
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
        routes = {route: Held(count, sizes[route]) for route, count in entries.items()}
        return CacheSnapshot(
            kind="memory", max_bytes=self._max_bytes, routes=routes, evictions=self._evictions, failures={}
        )

    async def close(self) -> None:
        """There is nothing to close."""

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


def cost_of(answer: CachedAnswer) -> int:
    """What it takes to keep it, in bytes."""
    headers = sum(len(name) + len(value) + _HEADER_BYTES for name, value in answer.headers)
    return len(answer.body) + headers + _BESIDE_BYTES
