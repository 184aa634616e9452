"""Which client key has made which of a provider's objects: bounded for each key, so that none can push out another's.

Owns the index, and what is new in it. Does not own what an object is (`policy.objects`), nor where the index outlives
the process (`store.owners`).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

MOST_OBJECTS = 20_000
"""Of each key: files, batches, vector stores, jobs and the like. Those used the longest ago are forgotten first."""
MOST_ANSWERS = 50_000
"""Of each key: responses and their items."""


class ObjectKey(NamedTuple):
    """Ids are a provider's own: two upstreams may give the same one."""

    upstream: str
    id: str


class Ownership(NamedTuple):
    """One entry."""

    key: ObjectKey
    owner: str
    is_answer: bool


class Owners:
    """Of one gateway. An object has one owner, for good: the first that is noted."""

    def __init__(self, most_objects: int = MOST_OBJECTS, most_answers: int = MOST_ANSWERS) -> None:
        self._most = {False: most_objects, True: most_answers}
        self._owners: dict[ObjectKey, str] = {}
        self._recent: dict[tuple[str, bool], OrderedDict[ObjectKey, None]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def note(self, entry: Ownership) -> bool:
        """Returns whether it is new. What has an owner keeps it."""
        if entry.key in self._owners:
            return False
        recent = self._recent.setdefault((entry.owner, entry.is_answer), OrderedDict())
        if len(recent) >= self._most[entry.is_answer]:
            oldest, _ = recent.popitem(last=False)
            del self._owners[oldest]
        recent[entry.key] = None
        self._owners[entry.key] = entry.owner
        return True

    def is_own(self, key: ObjectKey, owner: str) -> bool:
        """Whether `owner` has made it; that it is used is noted."""
        if self._owners.get(key) != owner:
            return False
        for is_answer in (False, True):
            recent = self._recent.get((owner, is_answer))
            if recent is not None and key in recent:
                recent.move_to_end(key)
        return True

    def has_other(self, key: ObjectKey, owner: str) -> bool:
        """Whether another has made it."""
        return self._owners.get(key, owner) != owner
