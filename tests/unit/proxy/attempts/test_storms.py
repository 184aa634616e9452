"""Recovery after a storm of errors: the quick cells of the storm matrix, on a virtual clock.

`python -m benchmarks storm-matrix` runs all of them.
"""

from __future__ import annotations

import pytest

from benchmarks.storm_matrix import fallbacks, measure
from benchmarks.storm_matrix.cells import Cell
from benchmarks.storm_matrix.fallbacks import Flaw
from tests.effort import some

CELLS = (
    Cell(5.0, 0.5, "429", None),
    Cell(16.0, 5.0, "429", None),
    Cell(16.0, 5.0, "429", 2),
    Cell(60.0, 5.0, "429", 2),
    Cell(600.0, 0.5, "429", 2),
    Cell(16.0, 5.0, "429", 86400),
    Cell(60.0, 5.0, "503", None),
    Cell(16.0, 5.0, "503", 86400),
    Cell(16.0, 5.0, "529", 30),
    Cell(16.0, 5.0, "quota", None),
    Cell(60.0, 1.0, "429", 30),
    Cell(16.0, 2.0, "429", 2),
    Cell(60.0, 5.0, "429", None, share=0.5),
    Cell(600.0, 0.5, "429", None, share=0.9),
    Cell(600.0, 0.5, "429", 2, share=0.7),
)
FLAWS = (Flaw("429", 1, 5.0), Flaw("429", None, 5.0), Flaw("503", 1, 5.0), Flaw("529", 1, 5.0))


@pytest.mark.parametrize("cell", some(CELLS), ids=lambda cell: cell.name)
def test_calls_are_served_again_after_a_storm(cell: Cell) -> None:
    assert measure.measure(cell).broken == []


@pytest.mark.parametrize("flaw", some(FLAWS), ids=lambda flaw: flaw.name)
def test_random_errors_leave_the_calls_with_their_own_model(flaw: Flaw) -> None:
    assert fallbacks.measure(flaw).broken == []
