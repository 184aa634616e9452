"""How often tests repeat what they do at random (examples, walks, kills) and how many cells of a matrix they simulate.

`make test` does a quarter; `make thorough-tests`, which CI runs, does everything (LLM_GUARD_TEST_EFFORT=full). A
defect that only the full effort finds becomes an explicit example, which both run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

_Cell = TypeVar("_Cell")

IS_FULL = os.environ.get("LLM_GUARD_TEST_EFFORT") == "full"
PART = 1 if IS_FULL else 4


def repeated(times: int, least: int = 1) -> int:
    """Returns how often to repeat what the full effort repeats `times` times: rounded up, and at least `least` times
    where fewer reach too little. Also scales the counts that show that the repetitions reached enough."""
    return max(-(-times // PART), least)


def some(cells: Sequence[_Cell]) -> Sequence[_Cell]:
    """Returns the cells of a matrix to simulate: all with full effort, else the first, the fifth and so on."""
    return cells[::PART]
