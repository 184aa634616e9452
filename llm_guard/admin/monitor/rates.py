"""Snapshots of counters and their differences: rates, shares, quantiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import add, sub

from llm_guard.admin.schemas.models import Quantiles
from llm_guard.outcome import GATEWAYS_DOING, FailureKind, Scope
from llm_guard.proxy.telemetry.recorder import DeploymentCounts, ModelCounts

DURATION_BOUNDS = ModelCounts().call_duration["ok"].bounds
FIRST_TOKEN_BOUNDS = ModelCounts().time_to_first_token.bounds
"""Bucket bounds of all calls and attempts, in seconds."""

_OF_THE_CALL = frozenset(kind.label for kind in FailureKind if kind.scope is Scope.CALL)
"""Outcomes of attempts that the call itself caused, and that do not count for or against the deployment."""


@dataclass(frozen=True, slots=True)
class CallTally:
    """Counts of events, of one name or summed over several."""

    calls: int = 0
    """Calls; for a deployment, its attempts and the calls that were refused instead of being sent to it."""
    judged: int = 0
    """Those with an outcome that counts for or against the gateway and its upstreams."""
    ok: int = 0
    attempts: int = 0
    retries: int = 0
    timeouts: int = 0
    durations: tuple[int, ...] = ()
    """Counts of successful ones by `DURATION_BOUNDS`, the last one above them all; empty: none."""
    failed_durations: tuple[int, ...] = ()
    refused_durations: tuple[int, ...] = ()
    """Those that the gateway itself refused; a deployment has none."""
    first_tokens: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    """Calls that the gateway refused, by `GATEWAYS_DOING`; empty: none."""

    def plus(self, other: CallTally) -> CallTally:
        return self._with(other, add)

    def since(self, earlier: CallTally) -> CallTally:
        """Returns the difference to `earlier`."""
        return self._with(earlier, sub)

    @property
    def refused_by(self) -> dict[str, int]:
        """Calls that the gateway refused, by reason, without zeros."""
        return {by: count for by, count in zip(GATEWAYS_DOING, self.refused, strict=False) if count}

    @property
    def success_rate(self) -> float | None:
        """Share from 0 to 1; None: no outcome counts."""
        return share(self.ok, self.judged)

    def _with(self, other: CallTally, how: Callable[[int, int], int]) -> CallTally:
        return CallTally(
            how(self.calls, other.calls),
            how(self.judged, other.judged),
            how(self.ok, other.ok),
            how(self.attempts, other.attempts),
            how(self.retries, other.retries),
            how(self.timeouts, other.timeouts),
            _each(self.durations, other.durations, how),
            _each(self.failed_durations, other.failed_durations, how),
            _each(self.refused_durations, other.refused_durations, how),
            _each(self.first_tokens, other.first_tokens, how),
            _each(self.refused, other.refused, how),
        )


NOTHING = CallTally()


def of_model(counts: ModelCounts, before: CallTally = NOTHING) -> CallTally:
    """Returns a snapshot; `before` itself, if nothing has happened since."""
    calls = sum(counts.calls.values())
    if calls == before.calls:
        return before
    return CallTally(
        calls,
        counts.judged,
        counts.calls.get("ok", 0),
        counts.attempts_made,
        counts.retries_made,
        counts.limits_hit,
        tuple(counts.call_duration["ok"].counts),
        tuple(counts.call_duration["failed"].counts),
        tuple(counts.call_duration["refused"].counts),
        tuple(counts.time_to_first_token.counts),
        _refused(counts.refusals),
    )


def of_deployment(counts: DeploymentCounts, before: CallTally = NOTHING) -> CallTally:
    """Returns a snapshot; `before` itself, if nothing has happened since."""
    attempts = sum(counts.attempts.values())
    calls = attempts + counts.turned_away
    if calls == before.calls:
        return before
    of_the_call = sum(number for outcome, number in counts.attempts.items() if outcome in _OF_THE_CALL)
    return CallTally(
        calls,
        attempts - of_the_call,
        counts.attempts.get("ok", 0),
        attempts,
        sum(counts.retries.values()),
        sum(counts.timeouts.values()),
        tuple(counts.upstream_duration["ok"].counts),
        tuple(counts.upstream_duration["failed"].counts),
        refused=_refused(counts.refusals),
    )


def total(tallies: Iterable[CallTally]) -> CallTally:
    """Returns the sum."""
    whole = NOTHING
    for tally in tallies:
        whole = whole.plus(tally)
    return whole


def share(part: float, whole: float) -> float | None:
    """Returns the share, None if the whole is 0."""
    return part / whole if whole else None


def quantiles(bounds: tuple[float, ...], counts: tuple[int, ...]) -> Quantiles:
    return Quantiles(*(quantile(bounds, counts, q) for q in (0.5, 0.95, 0.99)))


def quantile(bounds: tuple[float, ...], counts: tuple[int, ...], q: float) -> float | None:
    """Returns the value that a share `q`, 0 < q < 1, does not exceed, estimated like Prometheus' `histogram_quantile`:
    linear between two bounds, and at most the last one. None: there are no values."""
    rank = q * sum(counts)
    if not rank:
        return None
    below = 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count >= rank:
            return below + (bound - below) * rank / count
        rank -= count
        below = bound
    return below


def _refused(refusals: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(refusals.get(by, 0) for by in GATEWAYS_DOING) if refusals else ()


def _each(left: tuple[int, ...], right: tuple[int, ...], how: Callable[[int, int], int]) -> tuple[int, ...]:
    if not left or not right:
        return left or right if how is add else left
    return tuple(map(how, left, right))
