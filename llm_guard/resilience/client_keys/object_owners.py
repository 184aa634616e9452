"""Index of the client keys that created a provider's objects: bounded per key, so that none can evict another's.

Which objects there are is defined in `resilience.client_keys.provider_objects`; `storage.owners_file` and
`storage.redis_owners` persist the index.
"""

from __future__ import annotations

from typing import NamedTuple

from llm_guard.resilience.bounded_map import BoundedMap

MOST_OBJECTS = 20_000
"""Per key: files, batches, vector stores, jobs and the like. The least recently used are dropped first."""
MOST_ANSWERS = 50_000
"""Per key: responses and their items."""


class ObjectKey(NamedTuple):
    """Key of an object. Ids are a provider's own: two upstreams may use the same one."""

    upstream: str
    id: str


class Ownership(NamedTuple):
    """One entry of the index."""

    key: ObjectKey
    owner: str
    is_answer: bool


class ObjectOwners:
    """Index of one gateway. An object has one owner for good: the first that is noted."""

    def __init__(self, most_objects: int = MOST_OBJECTS, most_answers: int = MOST_ANSWERS) -> None:
        self._most = {False: most_objects, True: most_answers}
        self._owners: dict[ObjectKey, str] = {}
        self._recent: dict[tuple[str, bool], BoundedMap[ObjectKey, None]] = {}
        """Objects of each client key, least recently used first."""

    def __len__(self) -> int:
        return len(self._owners)

    def note(self, entry: Ownership) -> bool:
        """Adds an entry; returns whether it is new. An object that has an owner keeps it."""
        if entry.key in self._owners:
            return False
        share = (entry.owner, entry.is_answer)
        recent = self._recent.get(share)
        if recent is None:
            recent = self._recent[share] = BoundedMap(self._most[entry.is_answer], self._owners.__delitem__)
        recent[entry.key] = None
        self._owners[entry.key] = entry.owner
        return True

    def entries(self) -> list[Ownership]:
        """Returns all entries; of each owner the least recently used first."""
        return [Ownership(key, owner, is_answer) for (owner, is_answer), keys in self._recent.items() for key in keys]

    def is_own(self, key: ObjectKey, owner: str) -> bool:
        """Returns whether `owner` created the object; marks it as used."""
        if self._owners.get(key) != owner:
            return False
        for is_answer in (False, True):
            recent = self._recent.get((owner, is_answer))
            if recent is not None and key in recent:
                recent.move_to_end(key)
        return True

    def has_objects(self, owner: str) -> bool:
        """Whether `owner` has made anything but responses."""
        return bool(self._recent.get((owner, False)))

    def has_other(self, key: ObjectKey, owner: str) -> bool:
        """Returns whether another client key created the object."""
        return self._owners.get(key, owner) != owner
