"""What an operator sees of models and deployments at one moment, as it is sent.

Owns the shapes. Does not own how they come about (`ops.overview`). Seconds, shares from 0 to 1, instants in ISO 8601;
null where something is not known.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from llm_guard.policy.health import HealthState
from llm_guard.policy.transition import BreakerState

__all__ = [
    "BreakerView",
    "BudgetView",
    "Counted",
    "DeploymentView",
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
    """Seconds, of the last minutes."""

    p50_s: float | None
    p95_s: float | None
    p99_s: float | None


class Traffic(Struct, frozen=True):
    """Calls of clients."""

    calls: int
    """Since the start, refused ones included."""
    success_rate: float | None
    """Of the last 100; refusals that are the client's own doing do not count."""
    calls_per_second: float
    """Of the last minute, as is all that follows."""
    retries_per_call: float | None
    attempts_per_call: float | None
    timeout_rate: float | None
    """Attempts that ran into a limit, per attempt."""
    in_flight: int
    """Now."""
    duration: Quantiles
    time_to_first_token: Quantiles


class ModelView(Struct, frozen=True):
    """The calls with one `model` label."""

    model: str
    traffic: Traffic
    outcomes: dict[str, int]
    """Since the start."""


class BreakerView(Struct, frozen=True):
    """Where several breakers have one label (names under a pattern), the worst of them."""

    state: BreakerState
    is_forced: bool
    reason: str | None
    """Of an operator who forced it."""
    until: str | None
    """When an operator's word ends by itself."""
    failure_share: float
    calls: int
    """Both within its window."""
    next_probe_s: float | None
    """Seconds until the next call is let through; null unless it is open."""
    breakers: int
    """How many have the label."""


class LabelledBreaker(BreakerView, frozen=True):
    """One of `GET /admin/breakers`."""

    deployment: str


class GateView(Struct, frozen=True):
    """Of all accounts together."""

    in_flight: int
    limit: int | None
    """Attempts at once; null: no limit."""
    waiting: int
    """Calls in the queue."""
    rate: float | None
    """Attempts a second that it is held to; null: not limited."""


class BudgetView(Struct, frozen=True):
    """Of retries."""

    tokens: float
    ratio: float
    """Retries per call, as it is now."""


class DeploymentView(Struct, frozen=True):
    """One `deployment` label."""

    deployment: str
    upstream: str
    dialect: str
    model: str | None
    """null: whatever is asked for, or several names."""
    health: HealthState
    why: list[str]
    """What makes it less than healthy."""
    attempts: int
    """Since the start."""
    outcomes: dict[str, int]
    """Since the start."""
    success_rate: float | None
    """Of the last minute's attempts."""
    timeout_rate: float | None
    duration: Quantiles
    time_to_first_token: Quantiles
    last_success: str | None
    connection_attempts: int
    """Of its upstream, since the start."""
    breaker: BreakerView
    host: BreakerState
    """Its upstream's own breaker."""
    gate: GateView
    budget: BudgetView
    hold: HoldView | None
    """An operator's word that it is not to be asked."""


class HoldView(Struct, frozen=True):
    """A deployment that an operator took out of service."""

    kind: Literal["drained", "benched"]
    reason: str
    since: str
    until: str | None
    """null: until it is returned."""
    who: str


class Snapshot(Struct, frozen=True):
    """`GET /admin/metrics`."""

    at: str
    version: str
    uptime_s: float
    is_draining: bool
    health: HealthState
    why: list[str]
    total: Traffic
    models: list[ModelView]
    deployments: list[DeploymentView]
    credentials_benched: int
    connections: int
    """Of clients, open now."""
    max_connections: int
    loop_lag_s: float
    """The longest of the last minute."""


class Counted(Struct, frozen=True):
    """How many deployments are in a state."""

    count: int
    share: float


class HealthSummary(Struct, frozen=True):
    """`GET /admin/health`."""

    health: HealthState
    why: list[str]
    deployments: dict[HealthState, Counted]
    unhealthy: list[str]
    degraded: list[str]


class Series(Struct, frozen=True):
    """One line for each name; all lists are as long as `History.at`, null where nothing is known."""

    calls_per_second: list[float | None]
    success_rate: list[float | None]
    duration_p50_s: list[float | None]
    duration_p95_s: list[float | None]
    first_token_p50_s: list[float | None]
    first_token_p95_s: list[float | None]


class History(Struct, frozen=True):
    """`GET /admin/history`: the last quarter of an hour."""

    step_s: float
    at: list[float]
    """Ends of the steps, in seconds since the epoch, oldest first."""
    total: Series
    models: dict[str, Series]
    """Of the busiest; all others together stand under `(others)`."""


class Hello(Struct, frozen=True, tag_field="kind", tag="hello"):
    """The first message of `GET /admin/events`, and of its WebSocket."""

    version: str
    boot: str
    """Of this process; it stands before the number in every id."""
    last_id: int
    """The last event so far."""


class Missed(Struct, frozen=True, tag_field="kind", tag="missed"):
    """What came after the event that was asked for is not known as a whole; what is known of it follows."""

    after: str
    why: Literal["too long ago", "another process"]
