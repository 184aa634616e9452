"""Schemas of the subsystems: probes, engines, degraded modes, the response cache, stored calls.

Durations in seconds, instants in ISO 8601; null where a value is not known or does not apply.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from llm_guard.resilience.health.engine_state import EngineCommand, EngineState
from llm_guard.resilience.health.probe_policy import ProbeKind, ProbeOutcome, ProbeState


class ProbedView(Struct, frozen=True):
    """A probed upstream, or a deployment with probes of its own: one entry of `GET /admin/probes`."""

    upstream: str
    deployment: str | None
    """null: the upstream as a whole."""
    kind: ProbeKind
    state: ProbeState
    """down: it is tried after all others."""
    last_result: ProbeOutcome | None
    """Result of the last probe; null: there was none yet. answered: reachable, but the probe was rejected. unclear: the
    probe could not be sent."""
    reason: str | None
    """Problem that the last probe found."""
    failures: int
    """Failed probes in a row."""
    last_ok: str | None
    """When a probe last succeeded."""
    last_probe: str | None
    """When the last probe ended."""
    duration_s: float | None
    """Duration of the last probe that got a response."""
    interval_s: float
    timeout_s: float
    max_failures: int
    engine_given_up: str | None
    """Why its engine was given up; null: it was not."""


class EngineView(Struct, frozen=True):
    """One entry of `GET /admin/engines`."""

    engine: str
    kind: Literal["command", "docker", "podman", "systemd"]
    target: str
    """Command, container or unit that is started."""
    upstreams: list[str]
    """Upstreams that it serves."""
    state: EngineState
    since: str
    reason: str | None
    """The last problem, until the engine runs again."""
    operation: EngineCommand | None
    """Operation in progress; null: none."""
    attempts: int
    """Automatic restarts in a row."""
    max_attempts: int
    next_attempt_s: float | None
    """Seconds until the next attempt; null: none is planned."""
    start_timeout_left_s: float | None
    """Seconds left of its start timeout; null: it is not starting."""
    restarts_ok: int
    restarts_failed: int
    """Failed restarts since the start of the gateway; `restarts_ok` counts from then, too."""
    availability: float | None
    """Share of the time since the gateway's start in which it ran, of that in which it was meant to run; null: it never
    was."""
    average_start_s: float | None
    """Average time from the order to start to the first good probe; null: it has not been started."""
    is_standby: bool
    """It is started only on request, see /admin/admit."""
    auto_provision: Literal["never", "on_post", "on_get"]
    """Which requests to /admin/admit start it."""
    output: list[str]
    """Last lines of its output; while it runs, those of a container or a unit are about 5 s old."""


class ModeView(Struct, frozen=True):
    """A degraded mode, in which fallback responses are sent early."""

    is_degraded: bool
    by: Literal["rule", "operator", "gateway"] | None
    """gateway: the whole gateway is degraded; null: not degraded, and no override."""
    reason: str | None
    since: str | None
    until: str | None
    """When an operator's override ends by itself."""
    operator: str | None
    """Name of the operator, as claimed."""


class RouteModeView(ModeView, frozen=True):
    """Mode of the calls with one `model` label, for models in use that have `degraded` in their rules."""

    model: str
    calls: int
    """Calls that count, within the rule's window and since the mode last changed."""
    failed: int
    """Those of them that failed."""
    fallback_responses: dict[str, int]
    """Fallback responses since the start, by kind: static, stale, deferred."""


class DegradedView(Struct, frozen=True):
    """Response of `GET /admin/degraded`."""

    gateway: ModeView
    models: list[RouteModeView]


class RouteCache(Struct, frozen=True):
    """Cache of a route: a key of `models`, or `none` for calls that name no model."""

    route: str
    is_enabled: bool
    """The route has `cache` in its rules."""
    entries: int
    bytes: int
    hit: int
    """Calls served from the cache since the start; the counts below also begin then."""
    stale: int
    stale_if_error: int
    miss: int
    coalesced: int
    """Calls that got the response of an identical call in progress."""


class CacheView(Struct, frozen=True):
    """Response of `GET /admin/cache`."""

    kind: Literal["memory", "sqlite", "redis"]
    entries: int
    bytes: int
    max_bytes: int
    evictions: int
    """Responses evicted since the start."""
    failures: dict[str, int]
    """Operations of the cache's file that failed or timed out since the start."""
    requests_in_flight: int
    """Upstream requests in progress for cached routes, each for one or more calls."""
    routes: list[RouteCache]


class StoredCallsView(Struct, frozen=True):
    """Stored calls: dead letters and deferred calls."""

    count: dict[str, int]
    """Number by purpose and state: `dead_letter/dead`, ... This and the next two are as of some seconds ago."""
    bytes: int
    oldest: str | None
    """When the oldest stored call was received."""
    lost: dict[str, int]
    """Calls that should have become dead letters but were lost since the start, by reason."""


class ReplicaView(Struct, frozen=True):
    """A gateway of the fleet."""

    id: str
    """Host and number of the process, and a random part."""
    is_this: bool
    """The gateway that responds."""
    version: str
    config: str
    """Digest of its config, without secrets."""
    has_same_config: bool
    """As the gateway that responds."""
    has_same_token: bool
    """The operator token from which the names of what gateways share are derived; without it nothing is shared."""
    up_s: float
    """Seconds since its start."""
    in_flight: int
    """Calls running now, as of the last second."""
    calls: int
    """Calls since its start."""
    open_breakers: int
    """Breakers that are not closed."""
    is_draining: bool
    age_s: float
    """Seconds since it published this."""
    kept_paces: int
    """Deployments and keys whose pace it decides for all gateways, because a provider limits their calls."""


class FleetView(Struct, frozen=True):
    """Response of `GET /admin/replicas`."""

    name: str
    is_connected: bool
    """The store answers; otherwise this gateway works alone."""
    problem: str | None
    """Why it does not: the kind of error."""
    replicas: list[ReplicaView]
    """The gateway that responds, then the others by id."""
