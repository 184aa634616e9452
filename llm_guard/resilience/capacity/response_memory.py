"""Bound on the memory taken by unary responses, for each and for all together.

`proxy.response.unary` decides what happens to a response that finds no room.
"""

from __future__ import annotations

UNCOUNTED_BYTES = 1 << 16
"""Smaller responses are always read whole, and not counted."""


class ResponseMemory:
    """The bound for all responses together; `limit_bytes` may be replaced at any moment."""

    __slots__ = ("limit_bytes", "taken_bytes")

    def __init__(self, limit_bytes: int = 256 << 20) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0


class MemoryLease:
    """Memory that one call has taken; released once, at the end of the call."""

    __slots__ = ("_bytes", "_memory")

    def __init__(self, memory: ResponseMemory) -> None:
        self._memory = memory
        self._bytes = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    def try_take(self, count: int) -> bool:
        """Takes `count` more bytes, all or none."""
        memory = self._memory
        if memory.taken_bytes + count > memory.limit_bytes:
            return False
        memory.taken_bytes += count
        self._bytes += count
        return True

    def give_back(self, count: int) -> None:
        """Returns `count` of the bytes taken."""
        self._bytes -= count
        self._memory.taken_bytes -= count

    def release(self) -> None:
        """Returns all bytes taken."""
        if self._bytes:
            self.give_back(self._bytes)
