"""Counts the inputs of a request that is read in parts (`proxy.request_body.json_scanner`).

`proxy.request_body.fields` defines what counts as one input.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from llm_guard.proxy.request_body.fields import BodyFields, inputs_in_list

_NAMES = ("input", "prompt")
_IN_LIST = 2
"""Number of open brackets inside a list that is the value of a field."""


class InputCount:
    """Counts the items of lists that are cut into parts. Each part is a JSON object in which the field "" continues the
    value that the previous part left open."""

    def __init__(self) -> None:
        self._lengths: dict[str, int] = {}
        """Length of each list so far."""
        self._firsts: dict[str, Any] = {}
        self._has_input = False
        """There is a field `input`, which counts instead of `prompt`."""
        self._last_name = ""
        """The field in which the last part ended."""
        self._depth = 0
        self._is_new = True

    def begin_part(self, depth: int, *, is_new: bool) -> None:
        """Announces a part. `depth`: number of open brackets where it begins. `is_new`: nothing precedes it in the
        innermost one."""
        self._depth = depth
        self._is_new = is_new

    def feed(self, part: dict[str, Any]) -> None:
        """Adds the part that `begin_part` has announced."""
        if self._depth >= _IN_LIST and self._last_name in self._lengths:
            self._extend(self._last_name, part.get(""))
        for name in _NAMES:
            if name in part:
                self._begin(name, part[name])
        last_name = next(reversed(part), "")
        self._last_name = last_name or self._last_name
        self._has_input = self._has_input or "input" in part

    def corrected(self, asked: BodyFields) -> BodyFields:
        """Returns `asked`, which knows only the first part of each list, with the lengths of complete lists."""
        counts = {name: inputs_in_list(first, self._lengths[name]) for name, first in self._firsts.items()}
        prompts = counts.get("prompt", asked.prompts)
        inputs = counts.get("input" if self._has_input else "prompt", asked.inputs)
        return replace(asked, prompts=prompts, inputs=inputs)

    def _begin(self, name: str, value: Any) -> None:
        self._forget(name)
        if type(value) is list:
            self._lengths[name] = 0
            self._add(name, value, len(value))

    def _extend(self, name: str, value: Any) -> None:
        """Adds the rest of a list. Unless the part begins right after the opening bracket, its first item has been
        counted already, or stands for items that have."""
        if type(value) is not list:
            self._forget(name)
            return
        counted = 0 if self._is_new and self._depth == _IN_LIST else 1
        self._add(name, value[counted : counted + 1], len(value) - counted)

    def _add(self, name: str, beginning: list[Any], count: int) -> None:
        if beginning and name not in self._firsts:
            self._firsts[name] = beginning[0]
        self._lengths[name] += count

    def _forget(self, name: str) -> None:
        self._lengths.pop(name, None)
        self._firsts.pop(name, None)
