"""The paces that the gateways of a fleet share: one for each deployment and API key of which a provider limits calls.

The policy is in `resilience.capacity.pace_sharing`. Calls with their callers' keys, and on accounts that callers name,
are paced by each gateway alone. Names of client keys leave the gateway as digests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from llm_guard.fleet.names import FleetNames
from llm_guard.proxy.attempts.admission import OUR_OWN
from llm_guard.resilience.bounded_map import BoundedMap
from llm_guard.resilience.capacity.pace_report import PaceEvent, PaceGrant, PaceReport, WaitingCalls
from llm_guard.resilience.capacity.pace_sharing import KEEPER_LEASE_S, PaceSharing
from llm_guard.resilience.capacity.settings import CapacitySettings
from llm_guard.resilience.capacity.shared_gate import SharedGate
from llm_guard.routing.deployment import Deployment, Gates, Upstream
from llm_guard.storage.shared.exchange_store import Leases

_LEASE = "pace:"
_NAMES = 4096
_Item = TypeVar("_Item", PaceEvent, PaceGrant, WaitingCalls)
_Reports = dict[str, tuple[float, PaceReport]]
"""The reports of the other gateways about one pace, each with its age, by their ids."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a pace applies at this gateway."""

    deployment: Deployment
    account: str

    @property
    def settings(self) -> CapacitySettings:
        return self.deployment.gates.settings

    @property
    def gate(self) -> SharedGate | None:
        """None: there was no call yet."""
        gate = self.deployment.gates.find(self.account)
        return gate if isinstance(gate, SharedGate) else None

    def has_calls_of(self, other: _Place) -> bool:
        """Returns whether both have the same gate; a reload replaces deployments."""
        return self.deployment.gates is other.deployment.gates and self.account == other.account


class FleetPaces:
    """This gateway's part in each of them, by subject."""

    def __init__(
        self,
        deployments: Callable[[], Iterable[Deployment]],
        replica: str,
        names: FleetNames,
        wake: Callable[[Iterable[Deployment]], None],
    ) -> None:
        """`replica` is the id of this gateway; `wake` lets waiting calls of deployments in that may go now."""
        self._deployments = deployments
        self._replica = replica
        self._names = names
        self._wake = wake
        self._shared: dict[str, PaceSharing] = {}
        self._shared_at: dict[str, _Place] = {}
        self._others: dict[str, _Reports] = {}
        self._callers = BoundedMap[str, str](_NAMES)
        """Names of callers by digest; the digest itself for one that has not called here."""

    def reports(self, now: float) -> dict[str, PaceReport]:
        """Returns what to publish: nothing while no provider limits calls."""
        if not self._others and not self._shared and not self._has_active(now):
            return {}
        places = self._places()
        self._end_removed(places, now)
        found = {}
        for subject, place in places.items():
            sharing = self._shared.get(subject) or PaceSharing(self._replica)
            others = {replica: report for replica, (_, report) in self._others.get(subject, {}).items()}
            if place.settings.pacing and sharing.is_needed(place.gate, others, now):
                self._shared[subject], self._shared_at[subject] = sharing, place
                found[subject] = _with_names(sharing.report(place.gate, now), self._digest)
            elif subject in self._shared:
                self._end(subject, now)
        return found

    def wanted(self, now: float) -> dict[str, float]:
        """Returns the leases that are wanted, each with the seconds."""
        return {
            f"{_LEASE}{subject}": KEEPER_LEASE_S
            for subject, sharing in self._shared.items()
            if sharing.wants_lease(now)
        }

    def conclude(
        self,
        others: Sequence[tuple[str, float, Mapping[str, PaceReport]]],
        found: Leases,
        gateways: int,
        now: float,
    ) -> None:
        """Applies what the others have published, each with its id and age; `gateways`: those that were seen lately,
        this one included."""
        self._others = {}
        for replica, age_s, reports in others:
            for subject, report in reports.items():
                known = _with_names(report, self._name)
                self._others.setdefault(subject, {})[replica] = age_s, known
        if not self._shared:
            return
        for subject, place in self._places().items():
            if (sharing := self._shared.get(subject)) is not None:
                has_lease = found.held.get(f"{_LEASE}{subject}", 0.0) > 0
                theirs = self._others.get(subject, {})
                sharing.conclude(place.gate, place.settings, theirs, gateways, now, has_lease=has_lease)
                self._wake((place.deployment,))

    def work_alone(self, gateways: int, now: float) -> None:
        """Goes on without the store: with an equal part of each rate."""
        self._others = {}
        if not self._shared:
            return
        for subject, place in self._places().items():
            if (sharing := self._shared.get(subject)) is not None:
                sharing.work_alone(place.gate, gateways, now)
                self._wake((place.deployment,))

    def _end_removed(self, places: Mapping[str, _Place], now: float) -> None:
        """Ends what a reload has removed: calls that wait there would get no grant any more."""
        for subject, before in list(self._shared_at.items()):
            place = places.get(subject)
            if place is None or not place.has_calls_of(before):
                self._end(subject, now)

    def _end(self, subject: str, now: float) -> None:
        place = self._shared_at.pop(subject)
        self._shared.pop(subject).end(place.gate, now)
        self._wake((place.deployment,))

    @property
    def are_quiet(self) -> bool:
        """True if no provider limits calls of any gateway."""
        return not self._shared and not self._others

    @property
    def has_grants(self) -> bool:
        """True if this gateway has decided something for which the others wait."""
        return any(sharing.has_grants for sharing in self._shared.values())

    @property
    def kept(self) -> int:
        """Number of paces about which this gateway decides."""
        return sum(sharing.is_keeper for sharing in self._shared.values())

    @property
    def followed(self) -> int:
        """Number of paces that this gateway shares."""
        return sum(sharing.is_shared for sharing in self._shared.values())

    def _digest(self, name: str) -> str:
        if not name or name in self._callers:
            return name  # of another gateway's caller only the digest is known
        found = self._names.of(name)
        self._callers[found] = name
        return found

    def _name(self, found: str) -> str:
        if found and found not in self._callers:
            self._callers[found] = found
        return self._callers.get(found, found)

    def _has_active(self, now: float) -> bool:
        return any(
            gate.is_active(now)
            for deployment in self._deployments()
            if deployment.upstream.has_own_key
            for gate in deployment.gates.all()
            if isinstance(gate, SharedGate)
        )

    def _places(self) -> dict[str, _Place]:
        found, seen, numbers = dict[str, _Place](), set[Gates](), Counter[str]()
        for deployment in self._deployments():
            if deployment.gates in seen or not deployment.upstream.has_own_key:
                continue
            seen.add(deployment.gates)
            subject = self._names.subject(deployment)
            numbers[subject] += 1
            # Models that disagree on their settings have gates of their own, in the order of the config.
            for name, account in _accounts(deployment.upstream):
                found[f"{subject}/{numbers[subject]}/{self._names.of(name)}"] = _Place(deployment, account)
        return found


def _accounts(upstream: Upstream) -> Iterator[tuple[str, str]]:
    """Yields the name of each of the upstream's own keys with the account of its calls."""
    if upstream.keys is None:
        yield "", OUR_OWN
        return
    for key in upstream.keys.keys:
        yield key.name, f"{key.account}\n" if key.account else OUR_OWN


def _with_names(report: PaceReport, renamed: Callable[[str], str]) -> PaceReport:
    """Returns the report with other names of callers."""
    decision = report.decision
    if decision is not None:
        members = {
            replica: replace(one, grants=tuple(_renamed(one.grants, renamed)))
            for replica, one in decision.members.items()
        }
        decision = replace(decision, members=members, callers=tuple(map(renamed, decision.callers)))
    return replace(
        report, events=tuple(_renamed(report.events, renamed)), waiting=tuple(_renamed(report.waiting, renamed)),
        callers=tuple(map(renamed, report.callers)), decision=decision,
    )  # fmt: skip


def _renamed(items: Iterable[_Item], renamed: Callable[[str], str]) -> Iterator[_Item]:
    for item in items:
        yield replace(item, source=renamed(item.source)) if item.source else item
