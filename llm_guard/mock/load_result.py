"""Results of a load run: counts, shares and percentiles."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds, by nearest rank; all 0 if nothing was measured."""

    count: int
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """One finished call of a load run."""

    outcome: str
    """`ok`, `http_503`, or the kind of error (see `load_call.call`); `not_sent` above the concurrency limit."""
    latency_s: float
    """Measured from the time at which the call was due, so that a late sender does not flatter the server."""
    status: int | None = None
    first_token_s: float | None = None
    ended_at: float = 0.0
    """Monotonic seconds; `due_at` is this minus the latency."""
    requests: int = 1
    """Number of requests that the client sent: more than one with retries of its own."""
    retry_after_s: float | None = None
    """Wait requested by a failure, in seconds."""
    refused_by: str | None = None
    """The gateway's reason if it refused the call itself (`x-llm-guard-refused-by`)."""
    attempts: int | None = None
    """Requests that the gateway sent upstream (`x-llm-guard-attempts`); None: the response does not say."""
    output_tokens: int = 0
    """Number that the response reports; 0 if it reports none, as streams of the openai dialect do by default."""

    @property
    def due_at(self) -> float:
        """Monotonic seconds."""
        return self.ended_at - self.latency_s


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A finished run; `success_share` counts calls that could not be sent as failures."""

    calls: int
    ok: int
    success_share: float
    statuses: Mapping[int, int]
    outcomes: Mapping[str, int]
    errors: Mapping[str, int]
    """`outcomes` without `ok`."""
    latency: Percentiles
    """For successful calls."""
    failed_latency: Percentiles
    """For calls that were sent and failed."""
    first_token: Percentiles
    duration_s: float
    calls_per_s: float
    attempts_per_call: float | None
    """Average over the calls whose responses report the number; None if no response does."""
    output_tokens: int
    """Of all calls."""
    sent_late_s: float
    """Longest delay with which a call was sent, which its latency contains: the sender's, not the server's."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"statuses": {str(status): n for status, n in self.statuses.items()}}


def sum_up(ended: Sequence[FinishedCall], duration_s: float, sent_late_s: float = 0.0) -> LoadResult:
    """The result of a run that took `duration_s` seconds from its first call to its last response."""
    outcomes = Counter(call.outcome for call in ended)
    ok = outcomes["ok"]
    first_tokens = [call.first_token_s for call in ended if call.first_token_s is not None]
    sent_badly = [call.latency_s for call in ended if call.outcome not in ("ok", "not_sent")]
    attempts = [call.attempts for call in ended if call.attempts is not None]
    return LoadResult(
        calls=len(ended),
        ok=ok,
        success_share=ok / len(ended) if ended else 0.0,
        statuses=dict(Counter(call.status for call in ended if call.status is not None)),
        outcomes=dict(outcomes),
        errors={outcome: count for outcome, count in outcomes.items() if outcome != "ok"},
        latency=percentiles([call.latency_s for call in ended if call.outcome == "ok"]),
        failed_latency=percentiles(sent_badly),
        first_token=percentiles(first_tokens),
        duration_s=duration_s,
        calls_per_s=len(ended) / duration_s if duration_s > 0 else 0.0,
        attempts_per_call=sum(attempts) / len(attempts) if attempts else None,
        output_tokens=sum(call.output_tokens for call in ended),
        sent_late_s=sent_late_s,
    )


def percentiles(values: Sequence[float]) -> Percentiles:
    """Nearest-rank percentiles of seconds."""
    ranked = sorted(values)
    if not ranked:
        return Percentiles(0, 0.0, 0.0, 0.0, 0.0)

    def at(share: float) -> float:
        return ranked[max(0, math.ceil(share * len(ranked)) - 1)]

    return Percentiles(len(ranked), at(0.5), at(0.9), at(0.99), ranked[-1])
