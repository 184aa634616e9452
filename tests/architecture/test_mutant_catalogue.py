"""The catalogue of mutants is about the code as it is: what a mutant replaces exists. `tests.mutants` kills them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.mutant import Mutant, catalogue


def test_each_mutant_replaces_code_that_exists() -> None:
    mutants = catalogue()
    assert mutants
    assert list(_problems(mutants)) == []


def _problems(mutants: list[Mutant]) -> Iterator[str]:
    for mutant in mutants:
        try:
            mutant.source()
        except (OSError, ValueError) as error:
            yield str(error)
