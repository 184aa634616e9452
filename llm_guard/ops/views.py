"""What an operator sees of models and deployments at one moment, as it is sent.

Owns the shapes, and with each field's docstring what it says in the API description (`ops.openapi`). Does not own how
they come about (`ops.overview`), nor those of what outlives a call (`ops.lasting_views`). Seconds, shares from 0 to 1,
instants in ISO 8601; null where something is not known.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from llm_guard.ops.client_pages import ClientView
from llm_guard.ops.lasting_views import CacheView, DegradedView, EngineView, KeptView, ProbedView
from llm_guard.policy.health import HealthState
from llm_guard.policy.transition import BreakerState

__all__ = [
    "BreakerView",
    "BudgetView",
    "Counted",
    "DeploymentView",
    "ForceView",
    "GateView",
    "HealthState",
    "HealthSummary",
    "Hello",
    "History",
    "HoldView",
    "LabelledBreaker",
    "Missed",
    "ModelView",
    "Quantiles",
    "Series",
    "Snapshot",
    "Traffic",
]


class Quantiles(Struct, frozen=True):
    """How long it took."""

    p50_s: float | None
    """Seconds that half of them did not exceed."""
    p95_s: float | None
    """Seconds that 95 % of them did not exceed."""
    p99_s: float | None
    """Seconds that 99 % of them did not exceed."""


class Traffic(Struct, frozen=True):
    """Calls of clients."""

    calls: int
    """Since the start, refused ones included."""
    success_rate: float | None
    """Of the last 100 calls, however long ago they were; what is the client's own doing does not count."""
    calls_per_second: float
    """Of the last minute."""
    retries_per_call: float | None
    """Of the last minute."""
    attempts_per_call: float | None
    """Of the last minute."""
    timeout_rate: float | None
    """Of the last minute: attempts that ran into a limit, per attempt."""
    refused_rate: float | None
    """Of the last minute: calls that the gateway itself refused, by a breaker, a limit, a cooldown, a hold or the
    deadline, per call."""
    in_flight: int
    """Calls that run now."""
    duration: Quantiles
    """Of the last minute's calls, from their arrival to their end."""
    time_to_first_token: Quantiles
    """Of the last minute's streams, from their arrival."""


class ModelView(Struct, frozen=True):
    """The calls with one `model` label."""

    model: str
    """The name, or the pattern that it falls under; `other` for names that nothing fits."""
    traffic: Traffic
    """Of these calls."""
    outcomes: dict[str, int]
    """Calls since the start by how they ended: ok, refused, or the kind of failure."""
    health: HealthState
    """Of the last minute: degraded where the gateway itself refused half of its calls, unhealthy where nearly all."""
    why: list[str]
    """What makes it less than healthy."""


class BreakerView(Struct, frozen=True):
    """Where several breakers have one label (names under a pattern), the worst of them."""

    state: BreakerState
    """Now."""
    is_forced: bool
    """By an operator, or by the config's `state`."""
    reason: str | None
    """Of the operator who forced it; null: nobody did."""
    since: str | None
    """When an operator forced it."""
    until: str | None
    """When an operator's word ends by itself; null: when it is reset."""
    who: str | None
    """Who forced it, as claimed."""
    failure_share: float
    """Of the calls within its window (`breaker.window`)."""
    calls: int
    """Within its window."""
    next_probe_s: float | None
    """Seconds until the next call is let through; null unless it is open."""
    breakers: int
    """How many have the label."""


class LabelledBreaker(BreakerView, frozen=True):
    """One of `GET /admin/breakers`."""

    deployment: str
    """Its label."""


class GateView(Struct, frozen=True):
    """Of all accounts together, now."""

    in_flight: int
    """Attempts that run."""
    limit: int | None
    """Attempts at once; null: no limit."""
    waiting: int
    """Calls in the queue."""
    rate: float | None
    """Attempts a second that it is held to; null: not limited."""


class BudgetView(Struct, frozen=True):
    """Of retries, now."""

    tokens: float
    """Retries that could be made at once."""
    ratio: float
    """Retries that each call brings."""


class DeploymentView(Struct, frozen=True):
    """One `deployment` label."""

    deployment: str
    """Its label: UPSTREAM/MODEL, and the upstream's name alone for what passes through (`/upstreams/NAME/...`)."""
    upstream: str
    """Its name in the config."""
    dialect: str
    """In which it is asked."""
    model: str | None
    """As it is asked for it; null: whatever is asked for, or several names."""
    health: HealthState
    """Now."""
    why: list[str]
    """What makes it less than healthy, the worst first."""
    attempts: int
    """Since the start."""
    outcomes: dict[str, int]
    """Attempts since the start by how they ended: ok, or the kind of failure."""
    success_rate: float | None
    """Of the last minute's attempts."""
    timeout_rate: float | None
    """Of the last minute: attempts that ran into a limit, per attempt."""
    refused_rate: float | None
    """Of the last minute: calls that the gateway itself refused instead of sending them to it, per call."""
    duration: Quantiles
    """Of the last minute's exchanges."""
    time_to_first_token: Quantiles
    """Of the last five minutes' streams, from the request sent."""
    last_success: str | None
    """When an attempt last ended well; null: none has since the start."""
    connection_attempts: int
    """To its upstream, since the start."""
    breaker: BreakerView
    """Its own."""
    host: BreakerState
    """Of its upstream's own breaker, which hears of connections alone."""
    gate: GateView
    """Room and queue before it."""
    budget: BudgetView
    """What is left for retries."""
    hold: HoldView | None
    """An operator's word that it is not to be asked; null: there is none."""
    last_ok: str | None
    """When a probe of its upstream, or of itself, found it well; null where there are none, or none has yet."""


class HoldView(Struct, frozen=True):
    """A deployment that an operator took out of service."""

    kind: Literal["drained", "benched"]
    """Until it is returned, or for a time."""
    reason: str
    """As it was given."""
    since: str
    """When it was taken out."""
    until: str | None
    """null: until it is returned."""
    who: str
    """Who took it out, as claimed."""


class ForceView(Struct, frozen=True):
    """An operator's word on breakers: the part of a `BreakerView` that is his."""

    reason: str
    since: str
    until: str | None
    who: str


class Snapshot(Struct, frozen=True):
    """`GET /admin/metrics`."""

    at: str
    """The moment."""
    version: str
    """Of the gateway."""
    uptime_s: float
    """Seconds since the start of the process."""
    is_draining: bool
    """It goes away: new calls are turned away."""
    health: HealthState
    """Of the whole, now."""
    why: list[str]
    """What makes it less than healthy, the worst first."""
    total: Traffic
    """Of all models."""
    models: list[ModelView]
    """Those of the config first, in its order."""
    deployments: list[DeploymentView]
    """All of the config, those that only pass through included."""
    degraded: DegradedView
    """Where lesser answers are given soon."""
    engines: list[EngineView]
    """Engines of our own."""
    probes: list[ProbedView]
    """Who is looked at beside the calls."""
    cache: CacheView | None
    """Answers from before; null: no model has any."""
    kept: KeptView | None
    """null: no model keeps calls by itself, and none is kept."""
    credentials_benched: int
    """Keys that are not used for a while, for they were refused."""
    connections: int
    """Of clients, open now."""
    max_connections: int
    """As many may be open at once."""
    loop_lag_s: float
    """The longest of the last minute: so late the event loop was."""
    clients: list[ClientView]
    """Client keys, in the order of the config."""


class Counted(Struct, frozen=True):
    """How many deployments are in a state."""

    count: int
    """Deployments."""
    share: float
    """Of all."""


class HealthSummary(Struct, frozen=True):
    """`GET /admin/health`."""

    health: HealthState
    """Of the whole: unhealthy where a model that is in use has nobody left, or no deployment in use is well."""
    why: list[str]
    """What makes it less than healthy, the worst first."""
    deployments: dict[HealthState, Counted]
    """By their state."""
    unhealthy: list[str]
    """Their labels."""
    degraded: list[str]
    """Their labels."""
    degraded_models: list[str]
    """Those that give lesser answers soon."""
    failed: list[str]
    """Labels of those whose engines were given up."""


class Series(Struct, frozen=True):
    """One line for each name; all lists are as long as `History.at`, null where nothing is known."""

    calls_per_second: list[float | None]
    """In each step."""
    success_rate: list[float | None]
    """Of each step's calls; what is the client's own doing does not count."""
    duration_p50_s: list[float | None]
    """Seconds that half of a step's calls did not exceed."""
    duration_p95_s: list[float | None]
    """Seconds that 95 % of a step's calls did not exceed."""
    first_token_p50_s: list[float | None]
    """Seconds to the first token that half of a step's streams did not exceed."""
    first_token_p95_s: list[float | None]
    """Seconds to the first token that 95 % of a step's streams did not exceed."""


class History(Struct, frozen=True):
    """`GET /admin/history`: the last quarter of an hour."""

    step_s: float
    """Seconds from one point to the next."""
    at: list[float]
    """Ends of the steps, in seconds since the epoch for whoever draws them, oldest first."""
    total: Series
    """Of all models."""
    models: dict[str, Series]
    """Of the busiest; all others together stand under `(others)`."""


class Hello(Struct, frozen=True, tag_field="kind", tag="hello"):
    """The first message of `GET /admin/events`, and of its WebSocket."""

    version: str
    """Of the gateway."""
    boot: str
    """Of this process; it stands before the number in every id."""
    last_id: int
    """The last event so far."""


class Missed(Struct, frozen=True, tag_field="kind", tag="missed"):
    """What came after the event that was asked for is not known as a whole; what is known of it follows."""

    after: str
    """The event that was asked for."""
    why: Literal["too long ago", "another process"]
    """What has become of the rest."""
