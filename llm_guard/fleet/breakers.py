"""The breakers of a fleet: what this gateway publishes of its own, and what it concludes from those of the others.

The policy is in `resilience.circuit_breaker.shared_breaker`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from llm_guard.fleet.names import FleetNames
from llm_guard.proxy.attempts.admission import log_transition
from llm_guard.resilience.circuit_breaker.caller_evidence import NO_CALLERS, CallersSummary
from llm_guard.resilience.circuit_breaker.shared_breaker import SharedBreaker
from llm_guard.resilience.circuit_breaker.shared_callers import SharedCallers
from llm_guard.resilience.circuit_breaker.shared_evidence import BreakerSummary
from llm_guard.routing.deployment import Deployment
from llm_guard.storage.shared.exchange_store import Leases

_Shared = tuple[str, Deployment, SharedBreaker]
"""A deployment with its breaker, and the breaker's subject."""


class FleetBreakers:
    """The breakers of this gateway's deployments, one by subject."""

    def __init__(self, deployments: Callable[[], Iterable[Deployment]], names: FleetNames) -> None:
        self._deployments = deployments
        self._names = names
        self._listed: tuple[Deployment, ...] = ()
        """The deployments, as of the last look."""
        self._breakers: tuple[_Shared, ...] = ()
        """The breakers of these, each once."""

    def summaries(self, now: float) -> dict[str, BreakerSummary]:
        """Returns what to publish: nothing of breakers that are closed and idle."""
        found = {}
        for subject, deployment, breaker in self._shared():
            if not breaker.is_idle(now) and (summary := breaker.summary(now, _callers(deployment, now))) is not None:
                found[subject] = summary
        return found

    def are_quiet(self, now: float) -> bool:
        """True if this gateway has nothing about breakers that another one should know at once."""
        for _, _, breaker in self._shared():
            if not breaker.is_well(now) or breaker.lease.wanted_until(now) is not None:
                return False
        return True

    def wanted(self, now: float) -> dict[str, float]:
        """Returns the probe leases that are wanted, each with the seconds."""
        found = {}
        for subject, _, breaker in self._shared():
            if (until := breaker.lease.wanted_until(now)) is not None:
                found[f"probe:{subject}"] = until - now
        return found

    def conclude(
        self, others: Iterable[tuple[float, Mapping[str, BreakerSummary]]], found: Leases, now: float
    ) -> None:  # fmt: skip
        """Updates each breaker: with the summaries of other gateways, each with its age in seconds, and with its probe
        lease."""
        by_subject: dict[str, list[tuple[float, BreakerSummary]]] = {}
        for age_s, summaries in others:
            for subject, summary in summaries.items():
                by_subject.setdefault(subject, []).append((age_s, summary))
        for subject, deployment, breaker in self._shared():
            calls, are_theirs_quiet = 0, True
            failing: list[CallersSummary] = []
            theirs = by_subject.get(subject, ())
            for age_s, summary in theirs:
                calls += summary.calls
                are_theirs_quiet = are_theirs_quiet and _is_quiet(summary)
                if summary.callers.looks:
                    failing.append(summary.callers.aged(age_s))
            breaker.note_calls_elsewhere(calls)
            if isinstance(deployment.callers, SharedCallers):
                deployment.callers.note_elsewhere(failing, now)
            if are_theirs_quiet and breaker.state == "closed":
                # There is nothing to conclude without failures at two gateways. Of many deployments most are well, and
                # the rest costs a hundred times as much.
                breaker.lease.free()
                continue
            aged = [summary.aged(age_s) for age_s, summary in theirs]
            transition = breaker.conclude_with(aged, now, _callers(deployment, now))
            if (seconds := found.held.get(f"probe:{subject}")) is not None:
                breaker.lease.grant(now + seconds, now)
            elif (seconds := found.taken.get(f"probe:{subject}")) is not None:
                breaker.lease.note_taken(now + seconds)
            if transition is not None:
                log_transition(transition, deployment.errors, **deployment.breaker_of())

    def _shared(self) -> tuple[_Shared, ...]:
        listed = tuple(self._deployments())
        if listed != self._listed:  # names take longer than all else here
            self._listed, self._breakers = listed, tuple(_named(listed, self._names))
        return self._breakers


def _named(deployments: Iterable[Deployment], names: FleetNames) -> Iterator[_Shared]:
    seen = set[SharedBreaker]()
    numbers = Counter[str]()
    for deployment in deployments:
        breaker = deployment.breaker
        if isinstance(breaker, SharedBreaker) and breaker not in seen:
            seen.add(breaker)
            subject = names.subject(deployment)
            numbers[subject] += 1
            # Models that disagree on their settings have a breaker each, in the order of the config.
            yield f"{subject}/{numbers[subject]}", deployment, breaker


def are_quiet(summaries: Mapping[str, BreakerSummary]) -> bool:
    """True if all breakers are closed, without failures and slow calls in their windows."""
    return not any(one.failures or one.slow_calls or not _is_quiet(one) for one in summaries.values())


def _callers(deployment: Deployment, now: float) -> CallersSummary:
    callers = deployment.callers
    return callers.summary(now) if isinstance(callers, SharedCallers) else NO_CALLERS


def _is_quiet(summary: BreakerSummary) -> bool:
    return summary.state == "closed" and not summary.counted
