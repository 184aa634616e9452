"""Concurrency limits that hold for all gateways of a fleet together: those of deployments and of client keys.

The policy is in `resilience.capacity.slot_sharing`. Adaptive limits are each gateway's own: each sees the effect of all
calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from llm_guard.fleet.breakers import digest, subject_of
from llm_guard.proxy.client_keys.quotas import ClientQuotas
from llm_guard.resilience.capacity.slot_sharing import SlotGrant, SlotRequest, SlotShare
from llm_guard.routing.deployment import Deployment, Gates

_NONE = SlotRequest(0, 0, 0)


@dataclass(slots=True)
class _Limit:
    """One limit, as of the last look."""

    share: SlotShare = field(default_factory=SlotShare)
    request: SlotRequest = _NONE
    in_use: int = 0
    waiting: int = 0

    def look(self, limit: int, in_use: int, waiting: int, now: float) -> None:
        self.in_use, self.waiting = in_use, waiting
        self.request = self.share.request(limit, in_use, waiting, now)


class FleetSlots:
    """This gateway's shares, by subject. A limit is asked for before its first call."""

    def __init__(
        self, deployments: Callable[[], Iterable[Deployment]], quotas: ClientQuotas, wake: Callable[[], None]
    ) -> None:
        """`wake` lets waiting calls in that may go now."""
        self._deployments = deployments
        self._quotas = quotas
        self._wake = wake
        self._limits: dict[str, _Limit] = {}
        self._replicas = 1

    def requests(self, now: float) -> dict[str, SlotRequest]:
        """Gives up what others should have, and returns what to ask the store for."""
        before, self._limits = self._limits, {}
        for subject, limit, in_use, waiting in (*self._of_deployments(), *self._of_clients()):
            one = self._limits[subject] = before.get(subject) or _Limit()
            one.look(limit, in_use, waiting, now)
        self._apply(now, is_connected=True)
        return {subject: one.request for subject, one in self._limits.items()}

    def conclude(self, grants: Mapping[str, SlotGrant], replicas: int, now: float) -> None:
        """Uses what was granted; `replicas` is the number of gateways, this one included."""
        self._replicas = replicas
        for subject, grant in grants.items():
            if subject in self._limits:
                self._limits[subject].share.grant(grant)
        self._apply(now, is_connected=True)
        self._wake_waiting()

    def work_alone(self, now: float) -> None:
        """Goes on without the store."""
        self._apply(now, is_connected=False)
        self._wake_waiting()

    def left(self) -> dict[str, SlotRequest]:
        """Returns the requests that give all slots up, once no call is in flight."""
        return dict.fromkeys(self._limits, _NONE)

    @property
    def are_quiet(self) -> bool:
        """True if no call waits for a slot, and this gateway holds none that another one should have."""
        return not any(one.waiting or one.request.need > one.request.holds for one in self._limits.values())

    def adopt(self, deployment: Deployment) -> None:
        """Gives a deployment its shares, before its first call. If it is new, the others may have calls on it: until
        the next exchange it gets an equal part."""
        limit = deployment.gates.settings.concurrency
        if self._replicas > 1 and isinstance(limit, int):
            part = self._part(limit)
            deployment.gates.share(dict.fromkeys(deployment.upstream.gate_names(), part), part)

    def _part(self, limit: int) -> int:
        return max(1, limit // self._replicas)

    def _apply(self, now: float, *, is_connected: bool) -> None:
        usable = {
            subject: one.share.usable(one.request.limit, self._replicas, now, is_connected=is_connected)
            for subject, one in self._limits.items()
        }
        for subject, gates, names in self._gates():
            shares = {account: usable.get(f"{subject}/{digest(name)}") for account, name in names.items()}
            limit = gates.settings.concurrency
            expected = self._part(limit) if isinstance(limit, int) else 1
            gates.share({account: share for account, share in shares.items() if share is not None}, expected)
        for subject, name in self._clients():
            self._quotas.by_name[name].slots = usable.get(subject)

    def _wake_waiting(self) -> None:
        if any(one.waiting for one in self._limits.values()):
            self._wake()

    def _of_deployments(self) -> Iterator[tuple[str, int, int, int]]:
        for subject, gates, names in self._gates():
            limit = gates.settings.concurrency
            if isinstance(limit, int):
                for account, name in names.items():
                    gate = gates.find(account)
                    in_use, waiting = (0, 0) if gate is None else (gate.in_flight, gate.waiting)
                    yield f"{subject}/{digest(name)}", limit, in_use, waiting

    def _gates(self) -> Iterator[tuple[str, Gates, Mapping[str, str]]]:
        """Yields the gates of each deployment with a subject, and the names of their keys by account."""
        seen, numbers = set[int](), Counter[str]()
        for deployment in self._deployments():
            if id(deployment.gates) not in seen:
                seen.add(id(deployment.gates))
                subject = subject_of(deployment)
                numbers[subject] += 1
                # Models that disagree on their settings have gates of their own, in the order of the config.
                yield f"slots:{subject}/{numbers[subject]}", deployment.gates, deployment.upstream.gate_names()

    def _of_clients(self) -> Iterator[tuple[str, int, int, int]]:
        for subject, name in self._clients():
            limits = self._quotas.by_name[name]
            if (most := limits.settings.concurrency) is not None:
                yield subject, most, limits.in_flight, limits.take_denied()

    def _clients(self) -> Iterator[tuple[str, str]]:
        return ((f"client:{digest(name)}", name) for name in self._quotas.by_name)
