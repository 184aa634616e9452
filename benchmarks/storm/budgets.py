"""Rows A18, A20, A21 and the promises for a brownout and an outage, from the points of the retry budgets.

The points come from `storm.frontier`; quotas with other costs are in its tests.
"""

from __future__ import annotations

from benchmarks.storm.frontier import Point
from benchmarks.storm.row import Row, promised

SCHEMES = _ADAPTIVE, _FIXED, _NONE, _AWS, _GRPC = (
    "adaptive", "fixed 20 %", "no budget", "AWS quota", "gRPC throttle",
)  # fmt: skip


def rows(points: list[Point]) -> list[Row]:
    """The rows, with four attempts at 100 calls/s."""
    at = {(point.scheme, point.failure_rate): point for point in points}
    brownout, outage, few = at[_ADAPTIVE, 0.4], at[_ADAPTIVE, 1.0], at[_ADAPTIVE, 0.01]
    fixed = at[_FIXED, 1.0].requests_per_call
    return [
        Row("A17", _NONE + ", all fail", "4.00 requests per call", f"{at[_NONE, 1.0].requests_per_call:.2f}",
            "reference" if at[_NONE, 1.0].requests_per_call == 4 else "broken"),
        promised("A18", _FIXED + ", all fail", "≤ 1.21 requests per call", f"{fixed:.3f}", fixed <= 1.21),
        _agreeing(at[_NONE, 0.3], 1.415, 0.992),
        _agreeing(at[_FIXED, 0.3], 1.20, 0.841),
        _agreeing(at[_GRPC, 0.3], 1.00, 0.70),
        Row("A20", f"{_AWS}, 30 % fail", "1.39, 97.3 % (3 attempts)", _shown(at[_AWS, 0.3]), "differs",
            "with four attempts here, as all others"),
        promised("A20", "llm_guard, adaptive, 30 % fail", "≥ 98.5 %", _shown(at[_ADAPTIVE, 0.3]),
                 at[_ADAPTIVE, 0.3].success >= 0.985),
        promised("A21", "llm_guard, adaptive, 1 % fail", "1.0102, ≥ 99.99 %", _shown(few),
                 few.success >= 0.9999 and few.requests_per_call < 1.0125),
        promised("brownout", "llm_guard, adaptive, 40 % fail", "≤ 1.75, ≥ 95 %", _shown(brownout),
                 brownout.success >= 0.95 and brownout.requests_per_call <= 1.75),
        promised("outage", "llm_guard, adaptive, all fail, no breaker", "less than a fixed 20 %", _shown(outage),
                 outage.requests_per_call < fixed),
    ]  # fmt: skip


def _agreeing(point: Point, load: float, success: float) -> Row:
    """A row that compares a point with A20's figures for others."""
    agrees = abs(point.requests_per_call - load) <= 0.03 and abs(point.success - success) <= 0.02
    expected = f"{load:.2f}, {success:.1%}".replace("%", " %")
    what = f"{point.scheme}, 30 % fail"
    return Row("A20", what, expected, _shown(point), "reference" if agrees else "broken")


def _shown(point: Point) -> str:
    return f"{point.requests_per_call:.3f}, {point.success:.2%}".replace("%", " %")
