"""Cached responses on a Redis or Valkey server, which gateways on several machines share.

Blocking; used by one thread. Timeouts are applied in `storage.cache.blocking_cache`. Each operation is one script,
`cache.lua`. Responses are encrypted, and keys are hidden by a digest that needs the encryption key, so that a stored
response cannot be found by guessing its request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from llm_guard.clock import Clock
from llm_guard.storage.cache.response_store import CachedResponse, CacheHit, EntriesChange, RouteCacheSize, cost_of
from llm_guard.storage.calls.encryption import BodyEncryption
from llm_guard.storage.errors import StoreError
from llm_guard.storage.shared.redis_script import RedisScript

_TIMEOUT_S = 1.0
_LATE_S = 60.0
"""An entry further in the future was stored before a clock was set back: its age is unknown, so it is a miss."""
_AT_ONCE = 500
"""Entries that one script deletes."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(CachedResponse).decode


class RedisCacheEntries:
    """Implements `CacheEntries`. All gateways of a fleet must agree on the wall time to within a minute."""

    def __init__(self, url: str, fleet: str, sealing: Callable[[], BodyEncryption | None], clock: Clock) -> None:
        """`sealing` returns the present encryption; after a change of its newest key nothing is found."""
        self._script = RedisScript(url, __package__, "cache.lua", f"llmg:1:{{{fleet}}}:cache:", _TIMEOUT_S, clock)
        self._sealing = sealing

    def get(self, key: bytes, now: float) -> CacheHit | None:
        sealing = self._present()
        hidden = _hidden(key, sealing)
        found = self._script.run("get", hidden, repr(now))
        if found is None:
            return None
        try:
            stored_at = float(found[1])
            answer = _decode(sealing.open(found[0], hidden, sealing.newest))
        except (ValueError, RecursionError, msgspec.MsgspecError):  # something else has changed it
            return None
        return None if stored_at > now + _LATE_S else CacheHit(answer, max(0.0, now - stored_at))

    def put(
        self, key: bytes, answer: CachedResponse, now: float, lasts_s: float, touches: Mapping[bytes, float], most: int
    ) -> EntriesChange:
        sealing = self._present()
        hidden = _hidden(key, sealing)
        content = sealing.seal(_encode(answer), hidden)
        used = [part for touched, used_at in touches.items() for part in (_hidden(touched, sealing), repr(used_at))]
        routes, gone, evicted = self._script.run(
            "put", hidden, answer.route, repr(now), repr(lasts_s), cost_of(answer), content, most, *used
        )
        return EntriesChange(_routes(routes), evicted, gone)

    def forget_ended(self, now: float, most: int) -> EntriesChange:
        routes, gone, evicted = self._script.run("forget_ended", repr(now), most, _AT_ONCE)
        return EntriesChange(_routes(routes), evicted, gone)

    def purge(self, route: str | None) -> EntriesChange:
        place, gone = b"0", 0
        while True:
            routes, count, _, place = self._script.run("purge", int(route is not None), route or "", _AT_ONCE, place)
            gone += count
            if place == b"0":
                return EntriesChange(_routes(routes), gone=gone)

    def close(self) -> None:
        self._script.close()

    def _present(self) -> BodyEncryption:
        """Raises StoreError: a reload may have removed the key, with the store that a restart removes."""
        sealing = self._sealing()
        if sealing is None:
            raise StoreError("there is no store.encryption_key")
        return sealing


def _hidden(key: bytes, sealing: BodyEncryption) -> str:
    return sealing.digest(key).hex()


def _routes(totals: Sequence[bytes]) -> dict[str, RouteCacheSize]:
    found = dict(zip(totals[::2], totals[1::2], strict=True))
    return {
        name.removeprefix(b"count:").decode(): RouteCacheSize(
            int(number), max(0, int(found.get(b"size:" + name.removeprefix(b"count:"), 0)))
        )
        for name, number in found.items()
        if name.startswith(b"count:")
    }
