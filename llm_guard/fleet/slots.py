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
from llm_guard.resilience.client_keys.limits import ClientLimits
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


@dataclass(frozen=True, slots=True)
class _SharedGates:
    """The gates of a deployment with a fixed limit."""

    limit: int
    """Of each account."""
    accounts: tuple[tuple[str, str], ...]
    """Subject and account of each gate with a limit of its own."""


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
        self._gates: dict[Gates, _SharedGates] = {}
        """Gates with a fixed limit, as of the last look."""
        self._replicas = 1

    def requests(self, now: float) -> dict[str, SlotRequest]:
        """Gives up what others should have, and returns what to ask the store for."""
        before, self._gates = self._gates, self._fixed_gates()
        for gates in before.keys() - self._gates.keys():
            gates.share({}, 1)
        limits, self._limits = self._limits, {}
        for subject, limit, in_use, waiting in (*self._of_gates(), *self._of_clients()):
            one = self._limits[subject] = limits.get(subject) or _Limit()
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
        """True if no call waits for a slot, and this gateway needs no more than it holds."""
        return not any(one.waiting or one.request.need > one.request.holds for one in self._limits.values())

    def adopt(self, deployment: Deployment) -> None:
        """Gives a deployment its shares, before its first call. If it is new, the others may have calls on it: until
        the next exchange it gets an equal part."""
        limit = deployment.gates.settings.concurrency
        if self._replicas > 1 and isinstance(limit, int):
            part = self._part(limit)
            deployment.gates.share(dict.fromkeys(deployment.upstream.gate_names(), part), part)

    def _apply(self, now: float, *, is_connected: bool) -> None:
        usable = {
            subject: one.share.usable(one.request.limit, self._replicas, now, is_connected=is_connected)
            for subject, one in self._limits.items()
        }
        for gates, shared in self._gates.items():
            shares = {account: usable.get(subject) for subject, account in shared.accounts}
            granted = {account: share for account, share in shares.items() if share is not None}
            gates.share(granted, self._part(shared.limit))
        for subject, limits in self._clients():
            limits.slots = usable.get(subject)

    def _part(self, limit: int) -> int:
        return max(1, limit // self._replicas)

    def _wake_waiting(self) -> None:
        if any(one.waiting for one in self._limits.values()):
            self._wake()

    def _fixed_gates(self) -> dict[Gates, _SharedGates]:
        found, numbers = dict[Gates, _SharedGates](), Counter[str]()
        for deployment in self._deployments():
            limit = deployment.gates.settings.concurrency
            if isinstance(limit, int) and deployment.gates not in found:
                subject = subject_of(deployment)
                numbers[subject] += 1
                # Models that disagree on their settings have gates of their own, in the order of the config.
                name = f"slots:{subject}/{numbers[subject]}"
                keys = deployment.upstream.gate_names().items()
                found[deployment.gates] = _SharedGates(
                    limit, tuple((f"{name}/{digest(key)}", account) for account, key in keys)
                )
        return found

    def _of_gates(self) -> Iterator[tuple[str, int, int, int]]:
        for gates, shared in self._gates.items():
            for subject, account in shared.accounts:
                gate = gates.find(account)
                in_use, waiting = (0, 0) if gate is None else (gate.in_flight, gate.waiting)
                yield subject, shared.limit, in_use, waiting

    def _of_clients(self) -> Iterator[tuple[str, int, int, int]]:
        for subject, limits in self._clients():
            if (most := limits.settings.concurrency) is not None:
                yield subject, most, limits.in_flight, limits.take_denied()

    def _clients(self) -> Iterator[tuple[str, ClientLimits]]:
        return ((f"client:{digest(name)}", limits) for name, limits in self._quotas.by_name.items())
