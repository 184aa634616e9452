"""How often tests repeat what they do at random (examples, walks, kills) and how many cells of a matrix they simulate.

`make test` does an eighth; `make thorough-tests`, which CI runs, does everything (LLM_GUARD_TEST_EFFORT=full). A
defect that only the full effort finds becomes an explicit example, which both run.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

_Cell = TypeVar("_Cell")

IS_FULL = os.environ.get("LLM_GUARD_TEST_EFFORT") == "full"
PART = 1 if IS_FULL else 8
SEEDS_AT_A_TIME = 50


def repeated(times: int, least: int = 1) -> int:
    """Returns how often to repeat what the full effort repeats `times` times: rounded up, and at least `least` times
    where fewer reach too little. Also scales the counts that show that the repetitions reached enough."""
    return max(-(-times // PART), least)


def some(cells: Sequence[_Cell]) -> Sequence[_Cell]:
    """Returns the cells of a matrix to simulate: all with full effort, else the first, the ninth and so on."""
    return cells[::PART]


def each_seed(times: int, least: int = 1) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Parametrizes the argument `seed` of a test with as many seeds as `repeated` returns. Calls the test 50 times in
    one test for pytest, which takes longer to collect, start and report a test than most seeds do. The traceback of a
    failure names the seed in its last line."""
    seeds = range(repeated(times, least))
    batches = [seeds[at : at + SEEDS_AT_A_TIME] for at in seeds[::SEEDS_AT_A_TIME]]

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def with_each(seeds: range, **arguments: object) -> None:
            for seed in seeds:
                try:
                    test(seed=seed, **arguments)
                except Exception as error:
                    error.add_note(f"with seed {seed}")
                    raise

        signature = inspect.signature(test)
        names = [each.replace(name="seeds") if each.name == "seed" else each for each in signature.parameters.values()]
        with_each.__signature__ = signature.replace(parameters=names)  # type: ignore[attr-defined]  # pytest reads it
        ids = [f"{batch[0]}-{batch[-1]}" for batch in batches]
        parametrized: Callable[..., None] = pytest.mark.parametrize("seeds", batches, ids=ids)(with_each)
        return parametrized

    return decorated
