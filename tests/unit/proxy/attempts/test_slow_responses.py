"""Valid responses that take minutes, with no timeout configured: none is lost, and no request is sent twice.

Each case has two hundred calls, on a virtual clock.
"""

from __future__ import annotations

import pytest

from benchmarks.storm_matrix.slow import CASES, SlowCase, measure


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_slow_right_answer_is_neither_lost_nor_repeated(case: SlowCase) -> None:
    found = measure(case)
    assert (found.slow_lost, found.slow_repeated, found.quick_lost, found.quick_repeated) == (0, 0, 0, 0)
