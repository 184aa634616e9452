"""Schemas of a restriction: what refuses or delays calls now, and how to lift it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from llm_guard.outcome import Category

Resettable = Literal["breaker", "host_breaker", "cooldown", "credential_cooldown", "pace", "throttle", "slow_start"]
"""Restrictions that the gateway sets by itself, and that POST /admin/deployments/reset lifts."""

RestrictionKind = Literal[
    "breaker", "host_breaker", "forced_breaker", "cooldown", "credential_cooldown", "pace", "provider_pause",
    "throttle", "slow_start", "concurrency", "hold", "degraded_mode", "deadline", "deferred_queue", "drain",
    "client_limit", "spool", "connections", "caller_breaker", "tls_handshakes", "probe_down", "engine_down",
    "injected_fault",
]  # fmt: skip


LiftBody = dict[str, str | list[str] | None]


class Lift(Struct, frozen=True):
    """Request that lifts a restriction; its body also needs a `reason`."""

    method: Literal["POST"]
    path: str
    body: LiftBody
    """The whole body but `reason`."""
    effect: str
    """Effect of the request, also beyond this restriction."""


class ProviderErrorView(Struct, frozen=True):
    """One failed attempt on a deployment."""

    at: str
    """When it failed."""
    call: str
    """Id of the call, for `GET /admin/calls/{id}`."""
    kind: str
    """Kind of the failure, as in metrics."""
    category: Category
    """Category of the kind."""
    status: int | None
    """HTTP status; null: there was no response."""
    code: str | None
    """The provider's machine-readable code or type; null: it sent none."""
    request_id: str | None
    """The provider's id of the request; null: it sent none."""
    message: str | None
    """First words of the provider's message, which may quote the request: null for viewers, and if there is none."""


class Restriction(Struct, frozen=True):
    """One entry of `GET /admin/restrictions`."""

    kind: RestrictionKind
    """pace: fewer calls per second, because of rate limits; throttle: fewer, because calls fail at a higher rate;
    provider_pause: the provider has named a wait for all calls; cooldown: of one model; credential_cooldown: of every
    model of a credential; hold: drained or cordoned by an operator; drain: shutdown of the gateway; client_limit: calls
    of the client key that `cause` names; spool: large bodies that the disk has no room for; connections: new
    connections, because all that are allowed have a call; caller_breaker: calls of one caller, because only that
    caller's fail; tls_handshakes: connections with a failed TLS handshake; probe_down and engine_down: none, but the
    deployments are tried last; injected_fault: a share of the attempts fails or is slow on an operator's request."""
    deployment: str | None
    """Label of the deployment; null: the restriction is not of one deployment."""
    model: str | None
    """Name under the deployment's pattern; without a deployment, a key of `models`."""
    upstream: str | None
    """Upstream of the restricted deployments; null: several upstreams."""
    cause: str
    """Cause, in a sentence."""
    since: str | None
    """When it began; null: not known."""
    until: str | None
    """When it ends by itself; null: no known instant, see `ends`."""
    ends: str
    """How it ends by itself, in a sentence."""
    waiting: int
    """Calls that wait for it now."""
    is_caller_specific: bool
    """It applies to keys or accounts of callers, not to the upstream's own key."""
    lift: Lift | None
    """null: no request lifts it, see `no_lift_reason`."""
    no_lift_reason: str | None
    rule: str = ""
    """The condition that set it, with its figures, e.g. `5 failures in a row`."""
    refused: int = 0
    """Calls that were not sent because of it, since it began."""
    models: list[str] = []
    """Keys of `models` with a deployment that it concerns."""
    errors: list[ProviderErrorView] = []
    """The provider's last errors behind it, at most three, the newest first."""
    remedy: str = ""
    """The action for an operator, in a sentence."""
