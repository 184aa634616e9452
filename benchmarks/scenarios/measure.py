"""Computes the figures of a scenario's clients, and which promises do not hold."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from benchmarks.scenarios.catalogue import Promise, Scenario
from benchmarks.scenarios.play import Observed
from llm_guard.mock.load_result import FinishedCall, LoadResult, percentiles, sum_up

_AFTER_S = 10.0
_SILENT = ("truncated", "wrong_text")


@dataclass(frozen=True, slots=True)
class Outage:
    """Figures during and after an outage."""

    requests_per_call: float
    """For calls due during the outage."""
    median_failure_s: float
    first_success_s: float | None
    """Seconds from the recovery; None: never."""
    last_success_s: float | None
    share_after: float | None
    """Share of success of the calls due in the ten seconds from the recovery on; None: there was no call."""
    share_since_success: float | None
    """The same from the first success on."""
    hinted: float
    """Share of the failures during the outage that had a retry-after."""
    retry_after_off_s: float | None
    """Maximum error of the retry-after in 95 % of the refusals, as the time until the provider's next request; None:
    no refusals."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One client's figures in one scenario."""

    client: str
    load: LoadResult
    requests_per_call: float
    client_requests_per_call: float
    """Requests sent by the client itself: more than one with retries of its own."""
    outage: Outage | None
    successes: tuple[int, ...]
    """Counts by second of the response, from the start."""
    failures: tuple[int, ...]
    requests: tuple[int, ...]
    """Requests that the provider received, by second."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"load": self.load.as_dict()}


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one scenario."""

    scenario: Scenario
    measured: tuple[Measured, ...]
    broken: tuple[str, ...] = ()
    """Promises that do not hold."""
    not_run: str | None = None
    """Reason."""

    def of(self, client: str) -> Measured | None:
        """None for a client that did not take part."""
        return next((each for each in self.measured if each.client == client), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "scenario": asdict(self.scenario),
            "measured": [each.as_dict() for each in self.measured],
            "broken": list(self.broken),
            "not_run": self.not_run,
        }


def measure(scenario: Scenario, seen: Observed) -> Measured:
    """The figures of one client."""
    last_at = max((one.ended_at for one in seen.ended), default=seen.started_at)
    load = sum_up(seen.ended, last_at - seen.started_at)
    seconds = math.ceil(load.duration_s)
    sent = sum(one.requests for one in seen.ended)
    return Measured(
        seen.client.name,
        load,
        seen.requests[-1][1] / load.calls,
        sent / load.calls,
        None if scenario.outage is None else _outage(scenario.outage, seen),
        _by_second([one.ended_at - seen.started_at for one in seen.ended if one.outcome == "ok"], seconds),
        _by_second([one.ended_at - seen.started_at for one in seen.ended if one.outcome != "ok"], seconds),
        _requests_by_second(seen, seconds),
    )


def broken(promise: Promise, measured: Measured, others: Sequence[Measured] = ()) -> tuple[str, ...]:
    """Bounds that do not hold, in words; `others` had no gateway."""
    outage = measured.outage
    bounds: list[tuple[str, float | None, int, float | None]] = [
        ("success", promise.success, -1, measured.load.success_share),
        ("requests per call", promise.requests_per_call, 1, measured.requests_per_call),
        ("p99", promise.p99_s, 1, measured.load.latency.p99),
        ("median failure", promise.median_failure_s, 1, measured.load.failed_latency.p50),
        ("success lost", promise.loses, 1, _lost(measured, others)),
        ("silent ends", promise.silent, 1, sum(measured.load.errors.get(kind, 0) for kind in _SILENT)),
    ]
    if outage is not None:
        bounds += [
            ("requests per call in the outage", promise.outage_requests_per_call, 1, outage.requests_per_call),
            ("first success after", promise.first_success_s, 1, outage.first_success_s),
            ("last success after", promise.last_success_s, 1, outage.last_success_s),
            ("success since then", promise.after, -1, outage.share_since_success),
            ("retry-after off by", promise.retry_after_off_s, 1, outage.retry_after_off_s),
        ]
    return tuple(
        f"{name} {'never' if found is None else f'{found:.4g}'} against {bound:g}"
        for name, bound, sign, found in bounds
        if bound is not None and (found is None or sign * found > sign * bound)
    )


def _lost(measured: Measured, others: Sequence[Measured]) -> float:
    """Share of success lost compared with the best of the others."""
    return max((other.load.success_share for other in others), default=0.0) - measured.load.success_share


def _outage(outage: tuple[float, float], seen: Observed) -> Outage:
    from_at, to_at = (seen.acts_at.get(seconds, seen.started_at + seconds) for seconds in outage)
    during = [one for one in seen.ended if from_at <= one.due_at < to_at]
    failed = [one for one in during if one.outcome != "ok"]
    good_at = sorted(one.ended_at for one in seen.ended if one.outcome == "ok" and one.ended_at >= to_at)
    first_at = good_at[0] if good_at else None
    requests = _requests_until(seen, to_at) - _requests_until(seen, from_at)
    return Outage(
        requests / len(during),
        percentiles([one.latency_s for one in failed]).p50,
        None if first_at is None else first_at - to_at,
        None if first_at is None else good_at[-1] - to_at,
        _share_from(seen.ended, to_at),
        None if first_at is None else _share_from(seen.ended, first_at),
        sum(one.retry_after_s is not None for one in failed) / len(failed) if failed else 0.0,
        _retry_after_off(seen, failed),
    )


def _share_from(ended: Sequence[FinishedCall], at: float) -> float | None:
    due = [one for one in ended if at <= one.due_at < at + _AFTER_S]
    return sum(one.outcome == "ok" for one in due) / len(due) if due else None


def _retry_after_off(seen: Observed, failed: Sequence[FinishedCall]) -> float | None:
    """Compares each refusal with the next request that the provider received: a new call's, or a repeated one's.
    Calls come one by one, so the interval between two of them is not an error of the refusal."""
    due = sorted(one.due_at for one in seen.ended)
    interval_s = (due[-1] - due[0]) / max(1, len(due) - 1)
    off = []
    for one in failed:
        place = bisect_right(seen.arrivals, one.ended_at)
        if one.refused_by is not None and one.retry_after_s is not None and place < len(seen.arrivals):
            error_s = seen.arrivals[place] - (one.ended_at + one.retry_after_s)
            off.append(max(0.0, abs(error_s) - interval_s))
    return sorted(off)[math.ceil(0.95 * len(off)) - 1] if off else None


def _by_second(seconds: Sequence[float], count: int) -> tuple[int, ...]:
    found = Counter(int(second) for second in seconds)
    return tuple(found[second] for second in range(count))


def _requests_by_second(seen: Observed, seconds: int) -> tuple[int, ...]:
    counts = [_requests_until(seen, seen.started_at + second) for second in range(seconds + 1)]
    return tuple(round(later - earlier) for earlier, later in pairwise(counts))


def _requests_until(seen: Observed, at: float) -> float:
    """Interpolates between two counts."""
    place = bisect_right(seen.requests, (at, math.inf))
    if place == 0:
        return 0.0
    if place == len(seen.requests):
        return float(seen.requests[-1][1])
    (left_at, left), (right_at, right) = seen.requests[place - 1], seen.requests[place]
    return left + (right - left) * (at - left_at) / (right_at - left_at)
