"""How an attempt or a call can end: failure kinds (one table), their source, and refusals.

`resilience.classification.classify` maps a provider's errors to kinds, `resilience.retry.decision` decides what follows
from one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Limit = Literal["connect", "first_token", "idle", "stall", "attempt", "total"]
"""The six timeouts; each names itself in `llm_guard_timeouts_total` and in error messages."""

RefusedBy = Literal[
    "breaker", "limit", "client_limit", "cooldown", "deadline", "auth", "scope", "drain", "hold", "request", "route"
]
"""Value of the `x-llm-guard-refused-by` header. `scope`: the client's key may not make this call; `client_limit`: it
has used up what it may; `cooldown`: the provider named a wait or refused the credential, and the answer is its stored
error; `drain`: the gateway is shutting down; `hold`: all deployments that are left are under a maintenance hold."""

GATEWAYS_DOING: tuple[RefusedBy, ...] = ("breaker", "limit", "cooldown", "hold", "deadline")
"""Refusals that the caller could not have avoided; the others are callers' mistakes and the gateway's shutdown."""


class Signal(Enum):
    """How a breaker counts an outcome."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    NO_EVIDENCE = "no_evidence"


class Source(Enum):
    """The party that caused a failure. Only UPSTREAM counts against a breaker."""

    UPSTREAM = "upstream"
    CLIENT = "client"
    GATEWAY = "gateway"


class Scope(Enum):
    """How far a failure reaches: this call, or all calls to a deployment, to a host, or with a credential."""

    CALL = "call"
    DEPLOYMENT = "deployment"
    HOST = "host"
    CREDENTIAL = "credential"


Category = Literal[
    "rate_limit", "quota_exhausted", "overloaded", "server_error", "timeout", "network", "model_loading", "gpu_oom",
    "auth", "permission", "model_not_found", "not_found", "conflict", "context_length", "content_policy",
    "payload_too_large", "invalid_request", "client_cancelled",
]  # fmt: skip
"""Names of failures in reports: several kinds that are handled differently share one category."""


class FailureKind(Enum):
    """The kinds of failure, one row each: a new kind is one row and its tests.

    `is_retriable`: the unchanged request, sent again to the same deployment, may succeed.
    `can_fall_back`: another deployment may succeed with it.
    `signal`: how the breaker counts it. `scope`: how far it reaches. `source`: the party that caused it.
    """

    #               label, category                            retry  fall back  signal to the breaker  concerns  source
    TIMEOUT = ("timeout", "timeout", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    CONNECT_TIMEOUT = ("connect_timeout", "timeout", True, True, Signal.UNHEALTHY, Scope.HOST, Source.UPSTREAM)
    NETWORK = ("network", "network", True, True, Signal.UNHEALTHY, Scope.HOST, Source.UPSTREAM)
    TRUNCATED = ("truncated", "network", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    # The upstream had already closed the kept-alive connection: a new connection works as usual.
    RETIRED = ("retired", "network", True, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    # Stays invalid until it is renewed or repaired, which takes longer than any retry.
    CERTIFICATE = ("certificate", "network", False, True, Signal.UNHEALTHY, Scope.HOST, Source.UPSTREAM)
    EGRESS = ("egress", "network", True, True, Signal.NO_EVIDENCE, Scope.HOST, Source.GATEWAY)
    MALFORMED = ("malformed", "server_error", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    SERVER_ERROR = ("server_error", "server_error", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    EDGE_ERROR = ("edge_error", "server_error", True, True, Signal.UNHEALTHY, Scope.HOST, Source.UPSTREAM)
    # The model generated something that its own server could not parse: the next sample may be good.
    BAD_SAMPLE = ("bad_sample", "server_error", True, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    # It was to continue a stream that died, and its text differs: another deployment's may match.
    DIVERGED = ("diverged", "server_error", False, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    # The provider could not fetch something that the request links to.
    FETCH_FAILED = ("fetch_failed", "timeout", True, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    # The upstream's message says that a retry may help, although its status says otherwise.
    TRANSIENT = ("transient", "server_error", True, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    TOO_EARLY = ("too_early", "server_error", True, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    OVERLOADED = ("overloaded", "overloaded", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    # The upstream ended it in favour of a call with a higher priority.
    PREEMPTED = ("preempted", "overloaded", True, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    GPU_OOM = ("gpu_oom", "gpu_oom", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    MODEL_LOADING = (
        "model_loading",
        "model_loading",
        True,
        True,
        Signal.NO_EVIDENCE,
        Scope.DEPLOYMENT,
        Source.UPSTREAM,
    )
    # The model starts from zero replicas, which takes minutes (Fireworks: 3.5 to 10).
    SCALING_UP = ("scaling_up", "model_loading", False, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM)
    RATE_LIMIT = ("rate_limit", "rate_limit", True, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM)
    # One request that is larger than the whole window: no wait helps (OpenAI, "Request too large for ... TPM").
    OVER_LIMIT = ("over_limit", "rate_limit", False, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    QUOTA_EXHAUSTED = (
        "quota_exhausted", "quota_exhausted", False, True, Signal.NO_EVIDENCE, Scope.CREDENTIAL, Source.UPSTREAM,
    )  # fmt: skip
    # The daily or monthly quota of one model; the account's other models still work.
    WINDOW_EXHAUSTED = (
        "window_exhausted", "quota_exhausted", False, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM,
    )  # fmt: skip
    # The account's tier has no quota for this model: no wait helps, even if the error names one (Gemini, `limit: 0`).
    NO_QUOTA = ("no_quota", "quota_exhausted", False, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM)
    AUTH = ("auth", "auth", False, True, Signal.NO_EVIDENCE, Scope.CREDENTIAL, Source.UPSTREAM)
    ACCOUNT_BLOCKED = (
        "account_blocked", "permission", False, True, Signal.NO_EVIDENCE, Scope.CREDENTIAL, Source.UPSTREAM,
    )  # fmt: skip
    # Permission for this model or feature: a caller can provoke it, so it must not begin a cooldown of the credential.
    PERMISSION = ("permission", "permission", False, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM)
    # A firewall, a region block, a bot challenge: the key is valid, but this host refuses the connection's origin.
    BLOCKED = ("blocked", "permission", False, True, Signal.NO_EVIDENCE, Scope.HOST, Source.UPSTREAM)
    MODEL_NOT_FOUND = (
        "model_not_found", "model_not_found", False, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM,
    )  # fmt: skip
    NOT_FOUND = ("not_found", "not_found", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    # This server does not have the path, the method or the state that the request refers to; another may.
    WRONG_PATH = ("wrong_path", "not_found", False, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    MISROUTED = ("misrouted", "invalid_request", False, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    CONFLICT = ("conflict", "conflict", True, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    CONTEXT_LENGTH = ("context_length", "context_length", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    # The context window is a setting of this server: the same model may run with a larger one elsewhere.
    DEPLOYMENT_CONTEXT = (
        "deployment_context", "context_length", False, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM,
    )  # fmt: skip
    CONTENT_POLICY = ("content_policy", "content_policy", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    PAYLOAD_TOO_LARGE = (
        "payload_too_large", "payload_too_large", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM,
    )  # fmt: skip
    # Above the limit of this tier or of a proxy before it; another deployment may accept it.
    DEPLOYMENT_PAYLOAD = (
        "deployment_payload", "payload_too_large", False, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM,
    )  # fmt: skip
    INVALID_REQUEST = (
        "invalid_request", "invalid_request", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM,
    )  # fmt: skip
    CLIENT_CANCELLED = (
        "client_cancelled", "client_cancelled", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.CLIENT,
    )  # fmt: skip
    # Another attempt of the same call was quicker.
    SUPERSEDED = (
        "superseded", "client_cancelled", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.GATEWAY,
    )  # fmt: skip
    OWN_POOL = ("own_pool", "overloaded", True, False, Signal.NO_EVIDENCE, Scope.CALL, Source.GATEWAY)
    OWN_RESOURCES = ("own_resources", "server_error", True, False, Signal.NO_EVIDENCE, Scope.CALL, Source.GATEWAY)
    INTERNAL = ("internal", "server_error", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.GATEWAY)

    def __init__(
        self,
        label: str,
        category: Category,
        is_retriable: bool,
        can_fall_back: bool,
        signal: Signal,
        scope: Scope,
        source: Source,
    ) -> None:
        self.label = label
        self.category = category
        self.is_retriable = is_retriable
        self.can_fall_back = can_fall_back
        self.signal = signal
        self.scope = scope
        self.source = source

    @property
    def is_final(self) -> bool:
        """True if no further attempt can succeed, here or on another deployment."""
        return not self.is_retriable and not self.can_fall_back


@dataclass(frozen=True, slots=True)
class UpstreamErrorResponse:
    """An upstream's complete error response, kept so that it can be passed to the client unmodified."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of one attempt."""

    kind: FailureKind
    detail: str
    """One sentence for people, without bodies or keys: it is logged and may reach the client."""
    retry_after_s: float | None = None
    """The upstream's Retry-After, > 0, or None."""
    limit: Limit | None = None
    """The limit that was exceeded, when kind is TIMEOUT."""
    answer: UpstreamErrorResponse | None = None
    """The upstream's error response, if it was complete."""
    is_before_sending: bool = False
    """True if there was no connection: the upstream's host is at fault, and nothing was executed."""
    is_incomplete: bool = False
    """True if the request had not been sent completely: no server executes a part of one (RFC 9112, section 8)."""
    is_clients_delay: bool = False
    """True if the provider gave up because the client had stopped sending its body: no evidence against the
    provider."""
    is_early: bool = False
    """True if it was cut off before its own limit, to leave time for another attempt: no evidence either."""
    is_shape_only: bool = False
    """True if only the form of the response is wrong: no evidence about the deployment's health."""
    is_after_head: bool = False
    """True if the response had begun as a success: the call was executed in any case."""

    @property
    def signal(self) -> Signal:
        """The failure as evidence of the deployment's health."""
        return Signal.NO_EVIDENCE if self.is_shape_only else self.kind.signal


@dataclass(slots=True)
class Disposition:
    """How the cache, a deferred call, a dead letter or a fallback response took part in a call: for its headers, its
    log line and the counters."""

    cache: Literal["", "hit", "stale", "stale_if_error", "miss", "coalesced"] = ""
    """Result of the response cache, if the route has one; `coalesced`: it shared the request of another call."""
    age_s: float | None = None
    """Age of the cached response that it got."""
    cache_key: bytes = b""
    """Key in the response cache; empty if the call does not use it."""
    dead_letter_id: str = ""
    """Id of the dead letter as which it is stored."""
    deferred_id: str = ""
    """Id of the deferred call: its result can be fetched by it."""
    fallback: Literal["", "static"] = ""
    """Fallback response that it got, other than a cached one."""
    degraded_deadline: float = float("inf")
    """Instant at which it gets a fallback response, because its route is degraded."""
    was_cut_short: bool = False
    """True if it failed at that instant: it might have succeeded later."""
    background_purpose: Literal["", "refresh", "deferred", "requeue", "fetch"] = ""
    """Purpose of a call that is not counted as a client's call to a model. fetch: a client asks for the status of its
    deferred call."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error response of the gateway's own, in place of an upstream's; the dialect writes its body."""

    status: int
    code: str
    """Machine-readable, snake_case, e.g. `model_not_found`."""
    message: str
    by: RefusedBy | None
    """The part of the gateway that refused; None if upstreams failed without a response that could be passed on."""
    retry_after_s: float | None = None
    should_retry: bool = False
    """Value of `x-should-retry`, which both official SDKs obey before the status."""
    param: str | None = None
    """The request field at fault, where there is one."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further response headers."""


@dataclass(slots=True)
class Exhausted:
    """The attempt loop's failure: no deployment is left, or no time."""

    failure: Failure | None
    """The last failure, preferring one with an upstream's response; None if nothing was sent."""
    refusal: Refusal | None
    """The gateway's own error response, if there is no upstream's to pass on."""
    why: str
    is_cooldown: bool = False
    """True if a cooldown refused the call: `failure` is the one that began it."""

    @property
    def refused_by(self) -> RefusedBy | None:
        """The part of the gateway that refused the call; None if its upstreams failed."""
        if self.refusal is not None:
            return self.refusal.by
        if self.is_cooldown:
            return "cooldown"
        return "deadline" if self.failure is not None and self.failure.limit == "total" else None
