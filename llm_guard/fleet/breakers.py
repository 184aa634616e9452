"""The breakers of a fleet: what this gateway publishes of its own, and what it concludes from those of the others.

The policy is in `resilience.circuit_breaker.shared_breaker`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b

from llm_guard.proxy.attempts.release import log_transition
from llm_guard.resilience.circuit_breaker.shared_breaker import SharedBreaker
from llm_guard.resilience.circuit_breaker.shared_evidence import BreakerSummary
from llm_guard.routing.deployment import Deployment
from llm_guard.storage.shared.exchange_store import Leases

_RECOVERED_S = 60.0


class FleetBreakers:
    """The breakers of this gateway's deployments, one by subject."""

    def __init__(self, deployments: Callable[[], Iterable[Deployment]]) -> None:
        self._deployments = deployments

    def summaries(self, now: float) -> dict[str, BreakerSummary]:
        """Returns what to publish: nothing of breakers that are closed and idle."""
        found = {subject: breaker.summary(now) for subject, _, breaker in self._shared()}
        return {subject: summary for subject, summary in found.items() if summary is not None and not _is_idle(summary)}

    def are_quiet(self, now: float) -> bool:
        """True if this gateway has nothing about breakers that another one should know at once."""
        return not self.wanted(now) and are_quiet(self.summaries(now))

    def wanted(self, now: float) -> dict[str, float]:
        """Returns the probe leases that are wanted, each with the seconds."""
        found = {subject: breaker.lease.wanted_until(now) for subject, _, breaker in self._shared()}
        return {f"probe:{subject}": until - now for subject, until in found.items() if until is not None}

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
            theirs = by_subject.get(subject, [])
            breaker.note_calls_elsewhere(sum(summary.calls for _, summary in theirs))
            if breaker.is_quiet and all(_is_quiet(summary) for _, summary in theirs):
                breaker.lease.free()
                continue  # of many deployments most are, and the rest costs a hundred times as much
            transition = breaker.conclude_with([summary.aged(age_s) for age_s, summary in theirs], now)
            if (seconds := found.held.get(f"probe:{subject}")) is not None:
                breaker.lease.grant(now + seconds, now)
            elif (seconds := found.taken.get(f"probe:{subject}")) is not None:
                breaker.lease.note_taken(now + seconds)
            if transition is not None:
                log_transition(transition, deployment.errors, **deployment.breaker_of())

    def _shared(self) -> Iterator[tuple[str, Deployment, SharedBreaker]]:
        seen = set[SharedBreaker]()
        numbers = Counter[str]()
        for deployment in self._deployments():
            breaker = deployment.breaker
            if isinstance(breaker, SharedBreaker) and breaker not in seen:
                seen.add(breaker)
                subject = subject_of(deployment)
                numbers[subject] += 1
                # Models that disagree on their settings have a breaker each, in the order of the config.
                yield f"{subject}/{numbers[subject]}", deployment, breaker


def subject_of(deployment: Deployment) -> str:
    """Returns the name under which gateways with the same upstream and model share a breaker."""
    upstream = deployment.upstream
    return digest(f"{upstream.name}\n{upstream.base_url}\n{deployment.model or ''}")


@lru_cache(maxsize=4096)
def digest(identity: str) -> str:
    return blake2b(identity.encode(), digest_size=8).hexdigest()


def are_quiet(summaries: Mapping[str, BreakerSummary]) -> bool:
    """True if all breakers are closed, without failures and slow calls in their windows."""
    return all(_is_quiet(one) and not one.failures and not one.slow_calls for one in summaries.values())


def _is_idle(summary: BreakerSummary) -> bool:
    has_recovered = summary.recovered_s is not None and summary.recovered_s < _RECOVERED_S
    return summary.state == "closed" and not summary.calls and not has_recovered


def _is_quiet(summary: BreakerSummary) -> bool:
    return summary.state == "closed" and not summary.counted
