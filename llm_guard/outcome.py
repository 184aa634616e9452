"""How an attempt or a call can end: failure kinds (one table), their source, and refusals.

`resilience.classification.classify` maps a provider's errors to kinds, `resilience.retry.decision` decides what follows
from one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, Self

Limit = Literal["connect", "first_token", "idle", "stall", "attempt", "total"]
"""The six timeouts; each names itself in `llm_guard_timeouts_total` and in error messages."""

RefusedBy = Literal[
    "breaker", "limit", "client_limit", "cooldown", "deadline", "auth", "scope", "drain", "hold", "request", "route",
    "translation",
]  # fmt: skip
"""Value of the `x-llm-guard-refused-by` header. `scope`: the client's key may not make this call; `client_limit`: it
has used up what it may; `cooldown`: the provider named a wait or refused the credential, and the answer is its stored
error; `drain`: the gateway is shutting down; `hold`: all deployments that are left are under a maintenance hold;
`translation`: no deployment can express the request in its dialect."""

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


@dataclass(frozen=True, slots=True)
class KindTraits:
    """A row of `FailureKind`. The defaults are the most frequent values."""

    label: str
    """The kind in metrics, log lines and configs: its name in lower case."""
    category: Category
    """The kind in reports."""
    is_retriable: bool = False
    """True if the unchanged request, sent again to the same deployment, may succeed."""
    can_fall_back: bool = False
    """True if another deployment may succeed with the request."""
    signal: Signal = Signal.NO_EVIDENCE
    """How a breaker counts it."""
    scope: Scope = Scope.CALL
    """How far it reaches."""
    source: Source = Source.UPSTREAM
    """The party that caused it."""


class FailureKind(Enum):
    """The kinds of failure, one row each: a new kind is one row and its tests.

    A kind has the attributes of its row, as instance attributes because every call reads some. Its value is the label.
    """

    TIMEOUT = KindTraits(
        "timeout", "timeout", is_retriable=True, can_fall_back=True, signal=Signal.UNHEALTHY, scope=Scope.DEPLOYMENT
    )
    CONNECT_TIMEOUT = KindTraits(
        "connect_timeout", "timeout", is_retriable=True, can_fall_back=True, signal=Signal.UNHEALTHY, scope=Scope.HOST
    )
    NETWORK = KindTraits(
        "network", "network", is_retriable=True, can_fall_back=True, signal=Signal.UNHEALTHY, scope=Scope.HOST
    )
    TRUNCATED = KindTraits(
        "truncated", "network", is_retriable=True, can_fall_back=True, signal=Signal.UNHEALTHY, scope=Scope.DEPLOYMENT
    )
    # The upstream had already closed the kept-alive connection: a new connection works as usual.
    RETIRED = KindTraits("retired", "network", is_retriable=True, can_fall_back=True)
    # Stays invalid until it is renewed or repaired, which takes longer than any retry.
    CERTIFICATE = KindTraits("certificate", "network", can_fall_back=True, signal=Signal.UNHEALTHY, scope=Scope.HOST)
    EGRESS = KindTraits(
        "egress", "network", is_retriable=True, can_fall_back=True, scope=Scope.HOST, source=Source.GATEWAY
    )
    MALFORMED = KindTraits(
        "malformed",
        "server_error",
        is_retriable=True,
        can_fall_back=True,
        signal=Signal.UNHEALTHY,
        scope=Scope.DEPLOYMENT,
    )
    SERVER_ERROR = KindTraits(
        "server_error",
        "server_error",
        is_retriable=True,
        can_fall_back=True,
        signal=Signal.UNHEALTHY,
        scope=Scope.DEPLOYMENT,
    )
    EDGE_ERROR = KindTraits(
        "edge_error", "server_error", is_retriable=True, can_fall_back=True, signal=Signal.UNHEALTHY, scope=Scope.HOST
    )
    # The model generated something that its own server could not parse: the next sample may be good.
    BAD_SAMPLE = KindTraits("bad_sample", "server_error", is_retriable=True, can_fall_back=True)
    # It was to continue a stream that died, and its text differs: another deployment's may match.
    DIVERGED = KindTraits("diverged", "server_error", can_fall_back=True)
    # The provider could not fetch something that the request links to.
    FETCH_FAILED = KindTraits("fetch_failed", "timeout", is_retriable=True, can_fall_back=True)
    # The upstream's message says that a retry may help, although its status says otherwise.
    TRANSIENT = KindTraits("transient", "server_error", is_retriable=True, can_fall_back=True)
    TOO_EARLY = KindTraits("too_early", "server_error", is_retriable=True)
    OVERLOADED = KindTraits(
        "overloaded",
        "overloaded",
        is_retriable=True,
        can_fall_back=True,
        signal=Signal.UNHEALTHY,
        scope=Scope.DEPLOYMENT,
    )
    # The upstream ended it in favour of a call with a higher priority.
    PREEMPTED = KindTraits("preempted", "overloaded", is_retriable=True, can_fall_back=True)
    GPU_OOM = KindTraits(
        "gpu_oom", "gpu_oom", is_retriable=True, can_fall_back=True, signal=Signal.UNHEALTHY, scope=Scope.DEPLOYMENT
    )
    MODEL_LOADING = KindTraits(
        "model_loading", "model_loading", is_retriable=True, can_fall_back=True, scope=Scope.DEPLOYMENT
    )
    # The model starts from zero replicas, which takes minutes (Fireworks: 3.5 to 10).
    SCALING_UP = KindTraits("scaling_up", "model_loading", can_fall_back=True, scope=Scope.DEPLOYMENT)
    RATE_LIMIT = KindTraits("rate_limit", "rate_limit", is_retriable=True, can_fall_back=True, scope=Scope.DEPLOYMENT)
    # One request that is larger than the whole window: no wait helps (OpenAI, "Request too large for ... TPM").
    OVER_LIMIT = KindTraits("over_limit", "rate_limit", can_fall_back=True)
    QUOTA_EXHAUSTED = KindTraits("quota_exhausted", "quota_exhausted", can_fall_back=True, scope=Scope.CREDENTIAL)
    # The daily or monthly quota of one model; the account's other models still work.
    WINDOW_EXHAUSTED = KindTraits("window_exhausted", "quota_exhausted", can_fall_back=True, scope=Scope.DEPLOYMENT)
    # The account's tier has no quota for this model: no wait helps, even if the error names one (Gemini, `limit: 0`).
    NO_QUOTA = KindTraits("no_quota", "quota_exhausted", can_fall_back=True, scope=Scope.DEPLOYMENT)
    AUTH = KindTraits("auth", "auth", can_fall_back=True, scope=Scope.CREDENTIAL)
    # Nothing was sent: the gateway has no valid credentials of the upstream's cloud at this time.
    CREDENTIALS = KindTraits("credentials", "auth", can_fall_back=True, scope=Scope.DEPLOYMENT, source=Source.GATEWAY)
    ACCOUNT_BLOCKED = KindTraits("account_blocked", "permission", can_fall_back=True, scope=Scope.CREDENTIAL)
    # Permission for this model or feature: a caller can provoke it, so it must not begin a cooldown of the credential.
    PERMISSION = KindTraits("permission", "permission", can_fall_back=True, scope=Scope.DEPLOYMENT)
    # A firewall, a region block, a bot challenge: the key is valid, but this host refuses the connection's origin.
    BLOCKED = KindTraits("blocked", "permission", can_fall_back=True, scope=Scope.HOST)
    MODEL_NOT_FOUND = KindTraits("model_not_found", "model_not_found", can_fall_back=True, scope=Scope.DEPLOYMENT)
    NOT_FOUND = KindTraits("not_found", "not_found")
    # This server does not have the path, the method or the state that the request refers to; another may.
    WRONG_PATH = KindTraits("wrong_path", "not_found", can_fall_back=True)
    MISROUTED = KindTraits("misrouted", "invalid_request", can_fall_back=True)
    CONFLICT = KindTraits("conflict", "conflict", is_retriable=True)
    CONTEXT_LENGTH = KindTraits("context_length", "context_length")
    # The context window is a setting of this server: the same model may run with a larger one elsewhere.
    DEPLOYMENT_CONTEXT = KindTraits("deployment_context", "context_length", can_fall_back=True)
    CONTENT_POLICY = KindTraits("content_policy", "content_policy")
    PAYLOAD_TOO_LARGE = KindTraits("payload_too_large", "payload_too_large")
    # Above the limit of this tier or of a proxy before it; another deployment may accept it.
    DEPLOYMENT_PAYLOAD = KindTraits("deployment_payload", "payload_too_large", can_fall_back=True)
    INVALID_REQUEST = KindTraits("invalid_request", "invalid_request")
    # The gateway's translation was refused, or its response too large for one: the client's own request may be valid.
    UNTRANSLATED = KindTraits("untranslated", "server_error", can_fall_back=True, source=Source.GATEWAY)
    CLIENT_CANCELLED = KindTraits("client_cancelled", "client_cancelled", source=Source.CLIENT)
    # Another attempt of the same call was quicker.
    SUPERSEDED = KindTraits("superseded", "client_cancelled", source=Source.GATEWAY)
    OWN_POOL = KindTraits("own_pool", "overloaded", is_retriable=True, source=Source.GATEWAY)
    OWN_RESOURCES = KindTraits("own_resources", "server_error", is_retriable=True, source=Source.GATEWAY)
    INTERNAL = KindTraits("internal", "server_error", source=Source.GATEWAY)

    def __new__(cls, traits: KindTraits) -> Self:
        kind = object.__new__(cls)
        kind._value_ = traits.label
        return kind

    def __init__(self, traits: KindTraits) -> None:
        self.label = traits.label
        self.category = traits.category
        self.is_retriable = traits.is_retriable
        self.can_fall_back = traits.can_fall_back
        self.signal = traits.signal
        self.scope = traits.scope
        self.source = traits.source

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
    dialect: str = ""
    """The upstream's dialect, or the form of its requests, in which errors have a format of their own; a client of
    another dialect gets a translation."""


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
    """How the cache, a deferred call, a dead letter, a fallback response or an injected fault took part in a call: for
    its headers, its log line and the counters."""

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
    fallback: Literal["", "static", "estimate"] = ""
    """Fallback response that it got, other than a cached one. `estimate`: of a count of tokens; it is no failure."""
    degraded_deadline: float = float("inf")
    """Instant at which it gets a fallback response, because its route is degraded."""
    was_cut_short: bool = False
    """True if it failed at that instant: it might have succeeded later."""
    background_purpose: Literal["", "refresh", "deferred", "requeue", "fetch", "status"] = ""
    """Purpose of a call that is not counted as a client's call to a model. fetch: a client asks for the status of its
    deferred call; status: of its models."""
    injected_faults: tuple[str, ...] = ()
    """Faults that operators have injected into its attempts, each as `ID: KIND on DEPLOYMENT`."""


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
