"""A restriction as it is sent: what refuses or delays calls now, and how to lift it.

Owns the shapes. Does not own where restrictions are found (`ops.restrictions`), nor how they are reset
(`ops.restriction_pages`).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Resettable = Literal["breaker", "host_breaker", "cooldown", "credential_cooldown", "pace", "throttle", "slow_start"]
"""Restrictions that the gateway sets by itself, and that POST /admin/deployments/reset lifts."""

Kind = Literal[
    "breaker", "host_breaker", "forced_breaker", "cooldown", "credential_cooldown", "pace", "provider_pause",
    "throttle", "slow_start", "concurrency", "hold", "degraded_mode", "deadline", "deferred_queue", "drain",
    "client_limit", "spool", "connections", "caller_breaker", "tls_handshakes",
]  # fmt: skip


LiftBody = dict[str, str | list[str] | None]


class Lift(Struct, frozen=True):
    """The request that lifts a restriction; its body needs a `reason`, too."""

    method: Literal["POST"]
    path: str
    body: LiftBody
    """All of the body but `reason`."""
    effect: str
    """What the request does, and what it affects beyond this restriction."""


class Restriction(Struct, frozen=True):
    """One of `GET /admin/restrictions`."""

    kind: Kind
    """pace: fewer calls a second, because of rate limits; throttle: fewer, because they fail at a higher rate;
    provider_pause: its provider has named a wait for all calls; cooldown: of one model;
    credential_cooldown: of every model of a credential; hold: drained or benched by an operator; drain: of the gateway
    as a whole; client_limit: of the calls of one client key, which `cause` names; spool: of large bodies, for which the
    disk has no room; connections: of new connections, because all that are allowed have a call; caller_breaker: of the
    calls of one caller, whose calls alone fail; tls_handshakes: of connections whose TLS handshake failed."""
    deployment: str | None
    """Its label; null: it is not restricted alone."""
    model: str | None
    """The name under the deployment's pattern; without a deployment a key of `models`."""
    upstream: str | None
    """Whose deployments are restricted; null: those of several upstreams."""
    cause: str
    """What has brought it about, in a sentence."""
    since: str | None
    """When it began; null: that is not known."""
    until: str | None
    """When it ends by itself; null: at no instant that is known, see `end`."""
    end: str
    """How it ends by itself."""
    waiting: int
    """Calls that wait for it now."""
    is_callers: bool
    """It is of keys or accounts that callers bring, not of the upstream's own key."""
    lift: Lift | None
    """null: no request does, see `why_no_lift`."""
    why_no_lift: str | None
