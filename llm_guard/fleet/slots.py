"""Concurrency limits that hold for all gateways of a fleet together: those of deployments and of client keys.

The policy is in `resilience.capacity.slot_sharing`. Adaptive limits are each gateway's own: each sees the effect of all
calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from llm_guard.fleet.names import FleetNames
from llm_guard.proxy.client_keys.quotas import ClientQuotas
from llm_guard.resilience.capacity.settings import CapacitySettings
from llm_guard.resilience.capacity.slot_sharing import SlotGrant, SlotRequest, SlotShare
from llm_guard.resilience.client_keys.limits import ClientLimits
from llm_guard.routing.api_keys import ApiKey
from llm_guard.routing.deployment import Deployment, Gates

_NONE = SlotRequest(0, 0, 0)
_IDLE_EACH_S = 2.0
"""Slots of limits without calls are requested less often: slots are held for five seconds."""
_MOST_WANTED = 1000
_SEEN_S = 3.0
"""A gateway counts for so long after it was seen last, since an emptied store would show none."""


_Seen = tuple[Deployment, CapacitySettings, tuple[ApiKey, ...] | None]


@dataclass(slots=True)
class _Limit:
    """One limit, as of the last look."""

    share: SlotShare = field(default_factory=SlotShare)
    limit: int = 0
    need: int = 0
    in_use: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class _SharedGates:
    """The gates of a deployment with a fixed limit."""

    limit: int
    """The limit of each account."""
    accounts: tuple[tuple[str, str], ...]
    """Subject and account of each gate with a limit of its own."""


class FleetSlots:
    """This gateway's shares, by subject. Slots are requested before the first call."""

    def __init__(
        self,
        deployments: Callable[[], Iterable[Deployment]],
        quotas: ClientQuotas,
        names: FleetNames,
        wake: Callable[[], None],
    ) -> None:
        """`wake` lets waiting calls in that may go now."""
        self._deployments = deployments
        self._quotas = quotas
        self._names = names
        self._wake = wake
        self._limits: dict[str, _Limit] = {}
        self._gates: dict[Gates, _SharedGates] = {}
        """Gates with a fixed limit, as of the last look."""
        self._seen: list[_Seen] = []
        """The settings and keys that these were made from."""
        self._applied: tuple[Mapping[str, int | None], int] = {}, 0
        """The usable slots and the number of gateways, as applied to the gates."""
        self._applied_gates: Mapping[Gates, _SharedGates] = self._gates
        self._wanted: Collection[str] = ()
        """Limits of which another gateway needs more slots than it has."""
        self._is_alone = False
        self._gateways = 1
        """Gateways that were seen lately, this one included."""
        self._fewer_from = -inf
        """From this instant on there may be fewer."""

    def requests(self, now: float) -> dict[str, SlotRequest]:
        """Gives up what others should have, and returns the requests for the store."""
        self._look()
        limits, self._limits = self._limits, {}
        for subject, limit, in_use, waiting in (*self._of_gates(), *self._of_clients()):
            one = self._limits[subject] = limits.get(subject) or _Limit()
            one.limit, one.in_use, one.waiting = limit, in_use, waiting
        due = {subject: one for subject, one in self._limits.items() if self._is_due(subject, one, now)}
        requests = {
            subject: one.share.request(one.limit, one.in_use, one.waiting, self._gateways, now, is_alone=self._is_alone)
            for subject, one in due.items()
        }
        for subject, request in requests.items():
            due[subject].need = request.need
        self._apply(now)
        return requests

    def wanted(self) -> list[str]:
        """Returns the limits of which this gateway needs more slots than it has, for the others."""
        found = [subject for subject, one in self._limits.items() if one.need > one.share.held]
        return found[:_MOST_WANTED]

    def conclude(
        self, grants: Mapping[str, SlotGrant], replicas: int, now: float, wanted: Collection[str] = ()
    ) -> None:
        """Uses what was granted; `replicas` is the number of gateways, this one included, and `wanted` what the others
        need."""
        self._wanted = wanted
        if replicas >= self._gateways or now >= self._fewer_from:
            self._gateways, self._fewer_from = replicas, now + _SEEN_S
        for subject, grant in grants.items():
            if subject in self._limits:
                self._limits[subject].share.grant(grant)
        self._is_alone = False
        self._apply(now)
        self._wake_waiting()

    def work_alone(self, now: float) -> None:
        """Goes on without the store."""
        self._is_alone = True
        self._apply(now)
        self._wake_waiting()

    def left(self) -> dict[str, SlotRequest]:
        """Returns the requests that give all slots up, once no call is in flight."""
        return dict.fromkeys(self._limits, _NONE)

    @property
    def gateways(self) -> int:
        """Gateways that were seen lately, this one included."""
        return self._gateways

    @property
    def are_quiet(self) -> bool:
        """True if no call waits for a slot, and this gateway needs no more than it holds."""
        return not any(one.waiting or one.need > one.share.held for one in self._limits.values())

    def adopt(self, deployment: Deployment) -> None:
        """Gives a new deployment its shares, before its first call. The others may have calls on it: until the next
        exchange it gets an equal part."""
        limit = deployment.gates.settings.concurrency
        if self._gateways > 1 and isinstance(limit, int) and deployment.gates not in self._gates:
            part = self._part(limit)
            deployment.gates.share(dict.fromkeys(deployment.upstream.gate_names(), part), self._expected(limit))

    def _is_due(self, subject: str, one: _Limit, now: float) -> bool:
        spread_s = hash(subject) % 16 / 16  # so that the limits without calls do not all come at once
        return subject in self._wanted or one.share.is_due(one.in_use, one.waiting, now, _IDLE_EACH_S - spread_s)

    def _apply(self, now: float) -> None:
        usable = {
            subject: one.share.usable(one.limit, self._gateways, now, is_connected=not self._is_alone)
            for subject, one in self._limits.items()
        }
        for subject, limits in self._clients():
            limits.slots = usable.get(subject)
        if (usable, self._gateways) == self._applied and self._gates is self._applied_gates:
            return
        for gates, shared in self._gates.items():
            granted = {
                account: share for subject, account in shared.accounts if (share := usable.get(subject)) is not None
            }
            gates.share(granted, self._expected(shared.limit))
        self._applied, self._applied_gates = (usable, self._gateways), self._gates

    def _part(self, limit: int) -> int:
        return max(1, limit // self._gateways)

    def _expected(self, limit: int) -> float:
        """Returns the least share that calls may expect: below 1, this gateway has a slot for a part of the time."""
        return limit / self._gateways

    def _wake_waiting(self) -> None:
        if any(one.waiting for one in self._limits.values()):
            self._wake()

    def _look(self) -> None:
        """Finds the gates with a fixed limit, and gives those that are left out their limits back."""
        deployments = tuple(self._deployments())
        seen = [_seen(deployment) for deployment in deployments]
        if seen == self._seen:  # the names of the gates take longer than all else here
            return
        before, self._gates, self._seen = self._gates, _fixed_gates(deployments, self._names), seen
        for gates in before.keys() - self._gates.keys():
            gates.share({}, 1)

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
        return ((f"client:{self._names.of(name)}", limits) for name, limits in self._quotas.by_name.items())


def _seen(deployment: Deployment) -> _Seen:
    """Returns what the shared gates of a deployment depend on: reloads, operators and key files may replace each."""
    keys = deployment.upstream.keys
    return deployment, deployment.gates.settings, None if keys is None else keys.keys


def _fixed_gates(deployments: Iterable[Deployment], names: FleetNames) -> dict[Gates, _SharedGates]:
    found, numbers = dict[Gates, _SharedGates](), Counter[str]()
    for deployment in deployments:
        limit = deployment.gates.settings.concurrency
        if isinstance(limit, int) and deployment.gates not in found:
            subject = names.subject(deployment)
            numbers[subject] += 1
            # Models that disagree on their settings have gates of their own, in the order of the config.
            name = f"slots:{subject}/{numbers[subject]}"
            keys = deployment.upstream.gate_names().items()
            found[deployment.gates] = _SharedGates(
                limit, tuple((f"{name}/{names.of(key)}", account) for account, key in keys)
            )
    return found
