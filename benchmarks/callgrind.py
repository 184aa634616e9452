"""Reads the profiles that callgrind writes: instructions of each shared object, and calls and costs of each function.

The format is described in Valgrind's manual, "Callgrind Format Specification". Only one event, instructions, is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

_NAME = re.compile(r"\((\d+)\)(?: (.*))?")
_RECURSION = re.compile(r"'\d+$")


@dataclass(frozen=True, slots=True)
class Profile:
    """Instructions, and numbers of calls."""

    objects: Mapping[str, int]
    """Instructions by shared object: the name of its file up to the first dot."""
    calls: Mapping[str, int]
    """Calls by function."""
    costs: Mapping[str, int]
    """Instructions of each function with all that it calls, without calls of the function by itself."""

    @property
    def total(self) -> int:
        """Instructions of all objects."""
        return sum(self.objects.values())


@dataclass(slots=True)
class _Reader:
    """The state between two lines. Names are written once, and abbreviated as `(number)` from then on."""

    names: dict[tuple[str, str], str] = field(default_factory=dict)
    shared_object: str = "unknown"
    function: str = ""
    callee: str = ""
    count: int | None = None
    """Calls that the next line has the cost of; None: the next line is a cost of the function itself."""
    objects: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    costs: Counter[str] = field(default_factory=Counter)

    def read(self, line: str) -> None:
        if line[:1] in "+-*0123456789":
            self._add(int(line.split()[1]))
            return
        kind, _, value = line.partition("=")
        match kind:
            case "ob":
                self.shared_object = PurePath(self._name("object", value)).name.partition(".")[0]
            case "fn":
                self.function = self._name("function", value)
            case "cob":
                self._name("object", value)
            case "cfn":
                self.callee = self._name("function", value)
            case "calls":
                self.count = int(value.split()[0])
            case _:
                pass  # positions of the source, and totals

    def _add(self, cost: int) -> None:
        if self.count is None:
            self.objects[self.shared_object] += cost
            return
        self.calls[self.callee] += self.count
        if self.callee != self.function:
            self.costs[self.callee] += cost
        self.count = None

    def _name(self, kind: str, value: str) -> str:
        found = _NAME.fullmatch(value)
        if found is None:
            return value
        if found[2] is not None:
            self.names[kind, found[1]] = _RECURSION.sub("", found[2])
        return self.names[kind, found[1]]


def parse(text: str) -> Profile:
    """Parses one profile. Raises ValueError if it is none."""
    if "events: Ir\n" not in text:
        raise ValueError("not a profile of instructions: it lacks `events: Ir`")
    reader = _Reader()
    for line in text.partition("events: Ir\n")[2].splitlines():
        if line:
            reader.read(line)
    return Profile(reader.objects, reader.calls, reader.costs)
