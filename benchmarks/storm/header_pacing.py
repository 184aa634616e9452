"""Rate-limit headers: number of 429s for a gate that paces its calls by them.

Buckets and fixed windows report in each response what remains and when it is full again, as of the arrival of the
request. Calls arrive at random; their responses take 0.3 s or 3 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.storm.rate_limit_storms import BucketQuota, Run, WindowQuota
from benchmarks.storm.row import Row, promised

PER_MINUTE = (60, 600, 6000)
OFFERED_TIMES = (1.1, 1.5, 3.0)
ANSWERS_S = (0.3, 3.0)
KINDS = ("bucket", "small bucket", "window")
_SETTLED_S = 10.0
_WATCHED_S = 140.0
_MOST_PER_S = 200.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One provider from ten seconds on: 429s per request, and the used share of that time's quota."""

    name: str
    limited: float
    used: float


def measure(kind: str, per_minute: int, times: float, answer_s: float, seed: int = 1) -> Cell:
    end = _SETTLED_S + _WATCHED_S
    run = Run(_provider(kind, per_minute), seed, answer_s)
    run.offer(per_minute / 60 * times, 0.0, end)
    run.timeline.run(until=end)
    sent = sum(at >= _SETTLED_S for at in run.sent_at)
    limited = sum(at >= _SETTLED_S for at in run.limited_at)
    name = f"{kind} of {per_minute} a minute, {times:g} times as much offered, answers of {answer_s:g} s"
    return Cell(name, limited / sent, (sent - limited) / (per_minute * _WATCHED_S / 60))


def cells() -> Iterator[Cell]:
    for kind in KINDS:
        for per_minute in PER_MINUTE:
            for times in OFFERED_TIMES:
                if per_minute / 60 * times <= _MOST_PER_S:
                    yield from (measure(kind, per_minute, times, answer_s) for answer_s in ANSWERS_S)


def rows() -> list[Row]:
    """A row with the worst of all cells."""
    found = list(cells())
    worst, least = max(found, key=lambda cell: cell.limited), min(found, key=lambda cell: cell.used)
    return [promised(
        "header pacing", f"429s from 10 s on, and quota used, worst of {len(found)} cells ({worst.name})",
        "≤ 2 %, ≥ 95 % used", f"{worst.limited:.1%}, {least.used:.1%}", worst.limited <= 0.02 and least.used >= 0.95,
    )]  # fmt: skip


def _provider(kind: str, per_minute: int) -> BucketQuota | WindowQuota:
    if kind == "window":
        return WindowQuota(per_minute, has_headers=True)
    return BucketQuota(per_minute, capacity=per_minute / 6 if kind == "small bucket" else 0.0, has_headers=True)
