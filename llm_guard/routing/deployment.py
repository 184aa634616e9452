"""Deployments: the targets of calls, with the state that is kept of each between calls, in memory.

`routing.route_table` decides which calls go where; `resilience` draws the conclusions from the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from llm_guard.resilience.bounded_map import BoundedMap
from llm_guard.resilience.capacity.gate import CapacitySettings, Gate
from llm_guard.resilience.causes.provider_errors import ErrorLog, ProviderError, call_ids_of
from llm_guard.resilience.causes.refusal_series import RefusalSeries
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings
from llm_guard.resilience.circuit_breaker.callers import Callers, Suspect
from llm_guard.resilience.circuit_breaker.cooldown import CooldownKey
from llm_guard.resilience.retry.limits import BudgetSettings, RetryBudget
from llm_guard.resilience.routing.candidates import Latency, PeakEwma
from llm_guard.resilience.throttling.release_spreading import ReturnSchedule
from llm_guard.routing.api_keys import POOLED
from llm_guard.routing.upstream import Upstream

NewGate = Callable[[CapacitySettings, float], Gate]

_CALLERS = 1024
_NO_SHARES: Mapping[str, int] = MappingProxyType({})


class Gates:
    """The gates of one deployment, which limit concurrency and request rate.

    A concurrency limit belongs to the deployment: one gate serves all callers. Without a limit, a gate only paces the
    requests of one account, and each account has its own. Each key of a pool has its own gate, with its own concurrency
    limit, because providers limit accounts.
    """

    __slots__ = (
        "_by_account", "_expected_share", "_new_gate", "_newest", "_settings", "_shares", "in_flight", "shared",
    )  # fmt: skip

    def __init__(self, settings: CapacitySettings, new_gate: NewGate = Gate) -> None:
        self._new_gate = new_gate
        self.in_flight = 0
        """Number of running attempts, on all accounts."""
        self._settings = settings
        self._by_account = BoundedMap[str, Gate](_CALLERS)
        """Least recently used first: callers choose their keys."""
        self._newest: Gate | None = None
        """The gate used last."""
        self.shared: Gate | None = None
        """Gate for all calls without a pool key; None if each account has its own, or there was no call yet."""
        self._shares: Mapping[str, int] = _NO_SHARES
        self._expected_share = 1.0

    def of(self, account: str, now: float) -> Gate:
        """Returns the gate for calls on an account; `account` may be any string that identifies it."""
        account = self._shared(account)
        gate = self._by_account.get(account)
        if gate is None:
            gate = self._by_account[account] = self._new_gate(self._settings, now)
            gate.share(self._shares.get(account), self._expected_share)
            self._find_shared()
        elif gate is not self._newest:
            self._by_account.move_to_end(account)
        self._newest = gate
        return gate

    def find(self, account: str) -> Gate | None:
        """Returns the account's gate without creating one; None if there is none."""
        return self._by_account.get(self._shared(account))

    def _shared(self, account: str) -> str:
        """Returns the account with the gate that limits concurrency for this account."""
        if self._settings.concurrency is None:
            return account
        return account.partition("\n")[0] if account.startswith(POOLED) else ""

    def _find_shared(self) -> None:
        self.shared = None if self._settings.concurrency is None else self._by_account.get("")

    @property
    def settings(self) -> CapacitySettings:
        return self._settings

    def adopt(self, settings: CapacitySettings) -> None:
        """Applies new settings, to calls that wait as well."""
        self._settings = settings
        self._find_shared()
        for gate in self._by_account.values():
            gate.settings = settings

    def share(self, shares: Mapping[str, int], expected: float) -> None:
        """Sets this gateway's share of the concurrency limit on each account, and the least that it may expect; on
        accounts that are missing it has all of it. They have the form of `Upstream.gate_names`."""
        self._shares, self._expected_share = shares, expected
        for account, gate in self._by_account.items():
            gate.share(shares.get(account), expected)

    def ramp(self, now: float, seconds: float) -> None:
        """Begins the slow start of a deployment that has recovered."""
        for gate in self._by_account.values():
            gate.ramp(now, seconds)

    def end_ramp(self, now: float) -> None:
        for gate in self._by_account.values():
            gate.end_ramp(now)

    def all(self) -> tuple[Gate, ...]:
        return tuple(self._by_account.values())


@dataclass(frozen=True, slots=True)
class MaintenanceHold:
    """An operator's maintenance hold: the deployment gets no new attempts; running ones continue."""

    kind: Literal["drained", "cordoned"]
    reason: str
    who: str
    since: float
    """Seconds since the epoch."""
    until: float | None
    """Monotonic instant at which the hold ends; None if an operator has to end it."""


class FailingDeployments:
    """Deployments that fail their probes (`upstreams.probes.prober`). Tried last, never skipped: probes can be
    wrong."""

    __slots__ = ("keys",)

    def __init__(self) -> None:
        self.keys: frozenset[tuple[str, str | None]] = frozenset()
        """Pairs of upstream name and model; the model is None if all of the upstream is down."""

    def has(self, deployment: Deployment) -> bool:
        name = deployment.upstream.name
        return (name, None) in self.keys or (name, deployment.model) in self.keys


@dataclass(slots=True, eq=False)
class Deployment:
    """One callable target: an upstream and a model, with what is known of its health."""

    label: str
    """`openai/gpt-4-turbo`; for a pattern `openai/gpt-*`, for pass-through `openai`. Clients cannot choose it."""
    upstream: Upstream
    model: str | None
    """Model name sent to the upstream; None to leave the body's model as it is."""
    breaker: Breaker
    budget: RetryBudget
    """Retry budget; its `recent` counts the failures among the last attempts."""
    host: Breaker
    """The upstream's breaker, shared by its deployments: it counts connection failures, not responses."""
    gates: Gates
    callers: Callers = field(default_factory=Callers)
    returns: ReturnSchedule = field(default_factory=ReturnSchedule)
    latency: Latency = field(default_factory=Latency)
    """Latency of whole responses."""
    first_tokens: Latency = field(default_factory=Latency)
    """Latency of streams, to their first token."""
    cost: PeakEwma = field(default_factory=PeakEwma)
    last_success_wall: float | None = None
    """Seconds since the epoch."""
    refuses_prefill: bool = False
    """True if it has refused to continue from the beginning of an answer."""
    most_tokens: int | None = None
    """The largest output limit that its model accepts, as learned from a refusal of a translated request."""
    hold: MaintenanceHold | None = None
    held: int = 0
    """Calls that were not sent because of the hold."""
    full: RefusalSeries = field(default_factory=RefusalSeries)
    """Calls that were not sent because it had no room."""
    errors: ErrorLog = field(default_factory=ErrorLog)
    """The last errors of its attempts."""
    upstream_errors: ErrorLog = field(default_factory=ErrorLog)
    """The last errors of all deployments of its upstream, which share it."""
    credential: CooldownKey | None = field(init=False, repr=False)
    """Cooldown key of the upstream's only API key on its default account; None if it has several, or callers send
    theirs."""

    def __post_init__(self) -> None:
        upstream = self.upstream
        self.credential = upstream.credential(upstream.key_digest) if upstream.has_one_credential else None

    def breaker_of(self) -> dict[str, str]:
        """Returns log fields that identify the breaker: the label, and the model under a pattern, where each model has
        its own breaker."""
        is_named = self.model is None or self.label == f"{self.upstream.name}/{self.model}"
        return {"deployment": self.label} if is_named else {"deployment": self.label, "model": str(self.model)}

    def adopt(self, breaker: BreakerSettings, budget: BudgetSettings) -> None:
        """Applies new settings, also to callers that are judged separately."""
        self.breaker.settings, self.budget.settings = breaker, budget
        for _, suspect in self.callers.suspects():
            suspect.breaker.settings, suspect.budget.settings = breaker, budget

    def share_budget(self, gateways: int) -> None:
        """Divides the floors of the retry budgets among so many gateways, also of callers that are judged
        separately."""
        self.budget.share(gateways)
        for _, suspect in self.callers.suspects():
            suspect.budget.share(gateways)

    def judge_of(self, suspect: Suspect | None) -> Breaker:
        """Returns the breaker that decides about a call: that of all callers, unless it is closed."""
        return self.breaker if suspect is None or self.breaker.state != "closed" else suspect.breaker

    def note_failure(self, caller: str, now: float) -> bool:
        """Records a failure of a caller's call that is evidence against the deployment. Returns True if the caller is
        judged separately from now on."""
        is_alone = self.callers.note_failure(caller, now)
        if is_alone:
            budget = RetryBudget(self.budget.settings, now)
            budget.share(self.budget.gateways)
            self.callers.begin(caller, Suspect(Breaker(self.breaker.settings), budget))
        return is_alone

    def note_error(self, error: ProviderError) -> None:
        """Keeps an error, as evidence of what may refuse calls from now on."""
        self.errors.note(error)
        self.upstream_errors.note(error)

    def failed_calls(self) -> tuple[str, ...]:
        """Returns the ids of the last calls that failed here, or elsewhere at its upstream if none did here."""
        return call_ids_of(self.errors.latest() or self.upstream_errors.latest())

    def latency_of(self, is_stream: bool) -> Latency:
        return self.first_tokens if is_stream else self.latency
