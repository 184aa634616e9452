"""A test that bounds measured time from above allows for a busy machine."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MEASURED = re.compile(
    r"\btime\.(?:monotonic|perf_counter)\(\)|\.time\(\)|\b(?:took|latency|longest|overhead|departure)(?:_s|\.at)?\b"
)
"""What is read from a real clock. `time.thread_time()` is not: it counts no time spent waiting for a processor."""
ALLOWANCE = re.compile(r"lag|SLACK_S")
COMPUTED = ("unit", "property")
"""Folders whose tests read a manual clock."""


def strict_bounds(code: str) -> list[int]:
    """Returns the lines that assert an upper bound of measured time without adding the measured lag."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Assert)
        and MEASURED.search(code_of := ast.unparse(node))
        and not ALLOWANCE.search(code_of)
        for compare in ast.walk(node.test)
        if isinstance(compare, ast.Compare) and _is_bounded(compare)
    ]


def _is_bounded(compare: ast.Compare) -> bool:
    sides = [compare.left, *compare.comparators]
    return any(
        MEASURED.search(ast.unparse(left if isinstance(operator, ast.Lt | ast.LtE) else right))
        for left, operator, right in zip(sides, compare.ops, sides[1:], strict=False)
        if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    )


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("assert reply.took_s < 0.5", [1]),
        ("assert 0.1 <= took[1] <= 0.5", [1]),
        ("assert 0.5 > time.monotonic() - began_at", [1]),
        ("assert (reply.status, reply.took_s < 0.5) == (200, True)", [1]),
        ("assert reply.took_s < 0.5 + stand.lag_s", []),
        ("assert time.monotonic() - began_at < 1 + lag.total_s", []),
        ("assert reply.took_s >= 0.5", []),
        ("assert time.thread_time() - began < 1", []),
    ],
)
def test_strict_bounds_are_found(code: str, lines: list[int]) -> None:
    assert strict_bounds(code) == lines


def test_upper_bounds_of_measured_time_allow_for_a_busy_machine() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}: add the lag (tests.chaos.lag)"
        for path in sorted(TESTS.rglob("*.py"))
        if path.relative_to(TESTS).parts[0] not in COMPUTED
        for line in strict_bounds(path.read_text())
    ]
    assert not found, "\n".join(found)
