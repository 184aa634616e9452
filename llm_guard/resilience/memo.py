"""Memoizes a function of short texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Text = TypeVar("_Text", str, bytes)
_Result = TypeVar("_Result")


class Memo(dict[_Text, _Result]):
    """`memo[text]` is `find(text)`, computed once for each text.

    Bounded, because clients choose the texts: 1,024 results, of texts of up to 64 characters. A full memo is cleared.
    Raises what `find` raises, and stores nothing then.
    """

    __slots__ = ("_find",)

    _MOST = 1024
    _LONGEST = 64

    def __init__(self, find: Callable[[_Text], _Result]) -> None:
        super().__init__()
        self._find: Callable[[_Text], _Result] = find

    def __missing__(self, text: _Text) -> _Result:
        result: _Result = self._find(text)
        if len(text) <= self._LONGEST:
            if len(self) >= self._MOST:
                self.clear()
            self[text] = result
        return result
