"""Small quotas: number of 429s within half an hour, beside those of an earlier pacer.

The providers and the gate are those of `storm.rate_limit_storms`.
"""

from __future__ import annotations

from benchmarks.storm.rate_limit_storms import BucketQuota, Run, WindowQuota
from benchmarks.storm.row import Row, promised

OFFERED_TIMES = (2, 10, 50)
OFFERED_LITTLE_MORE = (1.1, 1.5)
"""Multiples of a quota at which calls seldom wait, so that its rate is forgotten again and again."""
SEEDS = range(1, 7)
CELLS_BEFORE = {
    (3, 1.1, True): 152,
    (3, 1.25, True): 201,
    (3, 1.5, True): 264,
    (15, 4, False): 151,
    (15, 10, False): 163,
    (15, 50, False): 250,
}
"""429s of commit addab53 over `SEEDS`, by fixed window of so many calls a minute, multiple of it that is offered, and
whether a 429 has a Retry-After: the cells in which 429s are hardest to avoid."""
_WATCHED_S = 1800.0
_BEFORE = {
    (3, "bucket"): 830,
    (3, "window"): 1512,
    (15, "bucket"): 333,
    (15, "window"): 3271,
}
"""429s of the pacer before slow start and quotas became its phases (commit addab53), in the same simulation."""
_LITTLE_MORE_BEFORE = {
    (3, "bucket"): 745,
    (3, "window"): 735,
    (15, "bucket"): 454,
    (15, "window"): 413,
}
"""The same for `OFFERED_LITTLE_MORE`, without hints, over `SEEDS`."""


def quota(per_minute: int, kind: str, times: float, has_hint: bool, seed: int = 1) -> int:
    """Number of 429s in half an hour."""
    provider = BucketQuota(per_minute, has_hint) if kind == "bucket" else WindowQuota(per_minute, has_hint)
    run = Run(provider, seed)
    run.offer(per_minute * times / 60, 0.0, _WATCHED_S)
    run.timeline.run(until=_WATCHED_S)
    return len(run.limited_at)


def window_cell(per_minute: int, times: float, has_hint: bool) -> int:
    """Number of 429s of a fixed window over `SEEDS`."""
    return sum(quota(per_minute, "window", times, has_hint, seed) for seed in SEEDS)


def rows() -> list[Row]:
    """Rows with the 429s of small quotas."""
    return [
        *(_quota_row(per_minute, kind, before) for (per_minute, kind), before in _BEFORE.items()),
        *(_little_more_row(per_minute, kind, before) for (per_minute, kind), before in _LITTLE_MORE_BEFORE.items()),
        *(_cell_row(*cell, before) for cell, before in CELLS_BEFORE.items()),
    ]


def _quota_row(per_minute: int, kind: str, before: int) -> Row:
    found = sum(quota(per_minute, kind, times, hint) for times in OFFERED_TIMES for hint in (False, True))
    return promised(
        "small quota", f"{per_minute} a minute ({kind}), offered 2, 10 and 50 times as much, with and without hints",
        f"fewer 429s than {before}", f"{found}", found < before,
    )  # fmt: skip


def _little_more_row(per_minute: int, kind: str, before: int) -> Row:
    found = sum(
        quota(per_minute, kind, times, has_hint=False, seed=seed) for times in OFFERED_LITTLE_MORE for seed in SEEDS
    )
    return promised(
        "small quota", f"{per_minute} a minute ({kind}), offered 1.1 and 1.5 times as much, without hints, "
        f"{len(SEEDS)} runs each",
        f"fewer 429s than {before}", f"{found}", found < before,
    )  # fmt: skip


def _cell_row(per_minute: int, times: float, has_hint: bool, before: int) -> Row:
    found = window_cell(per_minute, times, has_hint)
    return promised(
        "small quota", f"{per_minute} a minute (window), offered {times:g} times as much, "
        f"{'with' if has_hint else 'without'} hints, {len(SEEDS)} runs",
        f"at most {before} 429s", f"{found}", found <= before,
    )  # fmt: skip
