"""Records which client key created which of a provider's objects, on the server that the gateways of a fleet share.

Blocking; used by one thread. Each operation is one script, `owners.lua`. Nothing of it ends by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_guard.clock import Clock
from llm_guard.resilience.client_keys.object_owners import MOST_ANSWERS, MOST_OBJECTS, ObjectKey, Ownership
from llm_guard.storage.shared.redis_script import RedisScript

_TIMEOUT_S = 1.0
_AT_ONCE = 1000
"""Entries that one script adds or reads: it holds up the server for some milliseconds."""
_SEPARATOR = "\0"


class RedisOwners:
    """Implements `storage.owners_file.OwnersStore`."""

    def __init__(self, url: str, fleet: str, clock: Clock) -> None:
        self._script = RedisScript(url, __package__, "owners.lua", f"llmg:1:{{{fleet}}}:owners:", _TIMEOUT_S, clock)
        self._origin = b""
        """When the first of the entries was added that have been read; empty: none has been read."""

    def exchange(self, new: Sequence[Ownership], after: int) -> tuple[list[Ownership], int]:
        for begin in range(0, len(new), _AT_ONCE):
            entries = [part for one in new[begin : begin + _AT_ONCE] for part in _parts(one)]
            self._script.run("add", after, MOST_OBJECTS, MOST_ANSWERS, *entries)
        found, last, origin = self._script.run("read", after, _AT_ONCE)
        known, self._origin = self._origin, origin
        if known not in (b"", origin):
            return [], 0
        entries_read = (_entry(name.decode(errors="replace"), said.decode(errors="replace")) for name, said in found)
        return [entry for entry in entries_read if entry is not None], last

    def close(self) -> None:
        self._script.close()


def _parts(one: Ownership) -> tuple[str, str, str]:
    return f"{one.key.upstream}{_SEPARATOR}{one.key.id}", one.owner, str(int(one.is_answer))


def _entry(name: str, said: str) -> Ownership | None:
    """Returns an entry; None if it cannot be one."""
    upstream, separator, object_id = name.partition(_SEPARATOR)
    kind, owner = said[:1], said[1:]
    if not separator or kind not in ("0", "1") or not owner:
        return None
    return Ownership(ObjectKey(upstream, object_id), owner, kind == "1")
