"""A dict with a maximum number of keys, for keys that clients or upstreams choose."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class BoundedMap(OrderedDict[_Key, _Value]):
    """A dict that evicts its first key when a new one exceeds the bound.

    The first key is the oldest, as assigning to a key leaves it in its place. Call `move_to_end(key)` on each use to
    evict the least recently used key instead.
    """

    __slots__ = ("_most", "_on_evict")

    def __init__(self, most: int, on_evict: Callable[[_Key], object] | None = None) -> None:
        """`most`: maximum number of keys, >= 1; `on_evict` is called with each evicted key."""
        super().__init__()
        self._most = most
        self._on_evict = on_evict

    def __setitem__(self, key: _Key, value: _Value) -> None:
        super().__setitem__(key, value)
        if len(self) > self._most:
            evicted, _ = self.popitem(last=False)
            if self._on_evict is not None:
                self._on_evict(evicted)
