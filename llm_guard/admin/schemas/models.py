"""Schemas of models and deployments in the admin API.

The docstring of a field is its text in the API description (`admin.http.openapi`). Durations in seconds, shares from 0
to 1, instants in ISO 8601; null where something is not known. `admin.schemas.subsystems` has the schemas of what
outlives a call.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from llm_guard.admin.api.clients import ClientView
from llm_guard.admin.schemas.restrictions import Restriction
from llm_guard.admin.schemas.subsystems import (
    CacheView,
    DegradedView,
    EngineView,
    FleetView,
    ProbedView,
    StoredCallsView,
)
from llm_guard.resilience.circuit_breaker.history import BreakerState
from llm_guard.resilience.health.status import HealthState

__all__ = [
    "BreakerOverrideView",
    "BreakerView",
    "BudgetView",
    "Counted",
    "DeploymentDetail",
    "DeploymentView",
    "GateView",
    "HealthState",
    "HealthSummary",
    "HoldView",
    "LabelledBreaker",
    "ModelView",
    "Quantiles",
    "Snapshot",
    "Traffic",
]


class Quantiles(Struct, frozen=True):
    """Percentiles of a duration."""

    p50_s: float | None
    """Seconds that half of them did not exceed."""
    p95_s: float | None
    """Seconds that 95 % of them did not exceed."""
    p99_s: float | None
    """Seconds that 99 % of them did not exceed."""


class Traffic(Struct, frozen=True):
    """Traffic of clients' calls."""

    calls: int
    """Calls since the start, refused ones included."""
    success_rate: float | None
    """Success rate of the last 100 calls, however long ago they were; failures that the client caused do not count."""
    calls_per_second: float
    """Average of the last minute."""
    retries_per_call: float | None
    """Average of the last minute."""
    attempts_per_call: float | None
    """Average of the last minute."""
    timeout_rate: float | None
    """Share of the last minute's attempts that timed out."""
    refused_rate: float | None
    """Share of the last minute's calls that the gateway itself refused: by a breaker, a limit, a cooldown, a hold or
    the deadline."""
    in_flight: int
    """Calls that run now."""
    duration: Quantiles
    """Duration of the last minute's successful calls, from their arrival to their end."""
    failed_duration: Quantiles
    """The same of those that failed."""
    refused_duration: Quantiles
    """The same of those that the gateway itself refused."""
    time_to_first_token: Quantiles
    """Time to the first token of the last minute's streams, from their arrival."""


class ModelView(Struct, frozen=True):
    """Calls with one `model` label."""

    model: str
    """The name, or the pattern that it matches; `other` for names that match none."""
    traffic: Traffic
    """Traffic of this model."""
    outcomes: dict[str, int]
    """Calls since the start by how they ended: ok, refused, or the kind of failure."""
    health: HealthState
    """Health in the last minute: degraded if the gateway itself refused half of the calls, unhealthy if nearly all."""
    reasons: list[str]
    """Reasons why it is not healthy."""


class BreakerView(Struct, frozen=True):
    """State of a breaker. Where several have one label (names under a pattern), the worst of them."""

    state: BreakerState
    """Current state."""
    is_forced: bool
    """Forced by an operator, or by the config's `state`."""
    reason: str | None
    """Reason that the operator gave, or the rule that opened it with its figures; null: it is closed."""
    since: str | None
    """When an operator forced it, or failures opened it."""
    until: str | None
    """When the override ends by itself; null: when it is reset, or there is none."""
    operator: str | None
    """Name of the operator, as claimed; null: no operator forced it."""
    failure_share: float
    """Share of the calls within its window that failed (`breaker.window`)."""
    calls: int
    """Calls within its window."""
    next_probe_s: float | None
    """Seconds until the next call is let through; null unless it is open."""
    breakers: int
    """Number of breakers with the label."""


class LabelledBreaker(BreakerView, frozen=True):
    """One entry of `GET /admin/breakers`."""

    deployment: str
    """Label of the deployment."""
    restrictions: list[Restriction]
    """Its open breakers: cause, last errors, and the request that closes each."""


class GateView(Struct, frozen=True):
    """Concurrency and wait queue of a deployment, summed over all accounts."""

    in_flight: int
    """Attempts that run now."""
    limit: int | None
    """Most concurrent attempts; null: no limit."""
    waiting: int
    """Calls in the wait queue."""
    rate: float | None
    """Attempts per second that it is limited to; null: not limited."""


class BudgetView(Struct, frozen=True):
    """Retry budget."""

    tokens: float
    """Retries available now."""
    ratio: float
    """Retries that each call adds."""


class DeploymentView(Struct, frozen=True):
    """Deployments with one label."""

    deployment: str
    """The label: UPSTREAM/MODEL, or the upstream's name alone for pass-through calls (`/upstreams/NAME/...`)."""
    upstream: str
    """Name of the upstream in the config."""
    dialect: str
    """Wire format of the upstream."""
    model: str | None
    """Model name sent to the upstream; null: the one in the request, or several names."""
    health: HealthState
    """Current health."""
    reasons: list[str]
    """Reasons why it is not healthy, the worst first."""
    attempts: int
    """Attempts since the start."""
    outcomes: dict[str, int]
    """Attempts since the start by how they ended: ok, or the kind of failure."""
    success_rate: float | None
    """Success rate of the last minute's attempts."""
    timeout_rate: float | None
    """Share of the last minute's attempts that timed out."""
    refused_rate: float | None
    """Share of the last minute's calls that the gateway itself refused instead of sending them to it."""
    duration: Quantiles
    """Duration of the last minute's successful attempts."""
    failed_duration: Quantiles
    """Duration of the last minute's failed attempts."""
    time_to_first_token: Quantiles
    """Time to the first token of the last five minutes' streams, from the request sent."""
    last_success: str | None
    """When an attempt last succeeded; null: none has since the start."""
    connection_attempts: int
    """Connections begun to its upstream since the start."""
    breaker: BreakerView
    """Breaker of the deployment."""
    host: BreakerState
    """State of the breaker of its upstream's host, which counts connection failures only."""
    gate: GateView
    """Concurrency and wait queue."""
    budget: BudgetView
    """Retry budget."""
    hold: HoldView | None
    """Maintenance hold set by an operator; null: there is none."""
    last_ok: str | None
    """When a probe of its upstream, or of the deployment, last succeeded; null where there are no probes, or none has
    yet."""


class DeploymentDetail(DeploymentView, frozen=True):
    """One entry of `GET /admin/deployments`."""

    restrictions: list[Restriction]
    """The states that refuse or delay its calls now, also those that it shares with others of its upstream."""


class HoldView(Struct, frozen=True):
    """A deployment that an operator took out of service."""

    kind: Literal["drained", "cordoned"]
    """drained: until it is uncordoned, unless a duration was given. cordoned: for a limited time."""
    reason: str
    """Reason that the operator gave."""
    since: str
    """When it was taken out of service."""
    until: str | None
    """When the hold ends; null: when it is uncordoned."""
    operator: str
    """Name of the operator, as claimed."""


class BreakerOverrideView(Struct, frozen=True):
    """An operator's override of breakers, as part of a `BreakerView`."""

    reason: str
    since: str
    until: str | None
    operator: str


class Snapshot(Struct, frozen=True):
    """Response of `GET /admin/metrics`."""

    at: str
    """Time of the snapshot."""
    version: str
    """Version of the gateway."""
    uptime_s: float
    """Seconds since the start of the process."""
    is_draining: bool
    """The gateway is shutting down: new calls are refused."""
    health: HealthState
    """Current health of the gateway as a whole."""
    reasons: list[str]
    """Reasons why it is not healthy, the worst first."""
    total: Traffic
    """Sum over all models."""
    models: list[ModelView]
    """Models, those of the config first, in its order."""
    deployments: list[DeploymentView]
    """All deployments of the config, including those for pass-through calls."""
    degraded: DegradedView
    """Degraded modes, in which fallback responses are sent early."""
    engines: list[EngineView]
    """Self-hosted engines."""
    probes: list[ProbedView]
    """Probed upstreams."""
    cache: CacheView | None
    """Response cache; null: no model uses it."""
    stored_calls: StoredCallsView | None
    """Deferred calls and dead letters; null: no model stores calls by itself, and none is stored."""
    credentials_in_cooldown: int
    """Provider keys in cooldown, because the provider refused them or their quota is spent."""
    connections: int
    """Open client connections."""
    max_connections: int
    """Most open client connections."""
    loop_lag_s: float
    """Largest lag of the event loop in the last minute."""
    clients: list[ClientView]
    """Client keys, in the order of the config."""
    fleet: FleetView | None
    """The gateways with the same store and fleet name; null: this gateway is alone."""
    notice: list[str]
    """Lines for the top of the dashboard; the demo explains there what it has played."""


class Counted(Struct, frozen=True):
    """Number of deployments in a state."""

    count: int
    """Number of deployments."""
    share: float
    """Share of all deployments."""


class HealthSummary(Struct, frozen=True):
    """Response of `GET /admin/health`."""

    health: HealthState
    """Health of the gateway: unhealthy if a model in use has no deployment left, or no deployment in use is healthy."""
    reasons: list[str]
    """Reasons why it is not healthy, the worst first."""
    deployments: dict[HealthState, Counted]
    """Deployments by health."""
    unhealthy: list[str]
    """Labels of the unhealthy deployments."""
    degraded: list[str]
    """Labels of the degraded deployments."""
    degraded_models: list[str]
    """Models in degraded mode, which send fallback responses early."""
    failed: list[str]
    """Labels of deployments with an engine that was given up."""
