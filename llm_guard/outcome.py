"""How an attempt or a call can end: failure kinds (one table), their source, and refusals.

Owns the vocabulary. Does not own how evidence becomes a kind (`policy.classify`) nor what is done about it
(`policy.next_step`).
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
error; `drain`: the gateway goes away; `hold`: an operator holds all that are left."""

GATEWAYS_DOING: tuple[RefusedBy, ...] = ("breaker", "limit", "cooldown", "hold", "deadline")
"""Refusals that no other request would have avoided; the rest are callers' mistakes, and the gateway's shutdown."""


class Signal(Enum):
    """What an outcome tells a breaker."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    NO_EVIDENCE = "no_evidence"


class Source(Enum):
    """Whose doing a failure is. Only UPSTREAM counts against a breaker."""

    UPSTREAM = "upstream"
    CLIENT = "client"
    GATEWAY = "gateway"


class Scope(Enum):
    """Whom a failure concerns."""

    CALL = "call"
    DEPLOYMENT = "deployment"
    HOST = "host"
    CREDENTIAL = "credential"


Category = Literal[
    "rate_limit", "quota_exhausted", "overloaded", "server_error", "timeout", "network", "model_loading", "gpu_oom",
    "auth", "permission", "model_not_found", "not_found", "conflict", "context_length", "content_policy",
    "payload_too_large", "invalid_request", "client_cancelled",
]  # fmt: skip
"""What a failure is called in reports: several kinds that are handled differently share one."""


class FailureKind(Enum):
    """What a failure means. One row each: a new kind is one row and its tests.

    `is_retriable`: the unchanged request, sent again to the same deployment, may succeed.
    `can_fall_back`: another deployment may succeed with it.
    `signal`: what the breaker hears. `scope`: whom it concerns. `source`: whose doing it is.
    """

    #               label, category                            retry  fall back  signal to the breaker  concerns  source
    TIMEOUT = ("timeout", "timeout", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    CONNECT_TIMEOUT = ("connect_timeout", "timeout", True, True, Signal.UNHEALTHY, Scope.HOST, Source.UPSTREAM)
    NETWORK = ("network", "network", True, True, Signal.UNHEALTHY, Scope.HOST, Source.UPSTREAM)
    TRUNCATED = ("truncated", "network", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    # A connection that the other side had finished with: its next one is as good as new.
    RETIRED = ("retired", "network", True, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    # Valid again when somebody renews or repairs it, not in two minutes.
    CERTIFICATE = ("certificate", "network", False, True, Signal.UNHEALTHY, Scope.HOST, Source.UPSTREAM)
    EGRESS = ("egress", "network", True, True, Signal.NO_EVIDENCE, Scope.HOST, Source.GATEWAY)
    MALFORMED = ("malformed", "server_error", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    SERVER_ERROR = ("server_error", "server_error", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    EDGE_ERROR = ("edge_error", "server_error", True, True, Signal.UNHEALTHY, Scope.HOST, Source.UPSTREAM)
    # The model wrote something that its own server could not use: the next sample may do.
    BAD_SAMPLE = ("bad_sample", "server_error", True, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    # It began anew where another's stream had died, and says something else: a third may say the same.
    DIVERGED = ("diverged", "server_error", False, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    # What the request points at could not be fetched just now.
    FETCH_FAILED = ("fetch_failed", "timeout", True, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    # The upstream itself says that a second try is worth it, under a status that says the contrary.
    TRANSIENT = ("transient", "server_error", True, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    TOO_EARLY = ("too_early", "server_error", True, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    OVERLOADED = ("overloaded", "overloaded", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    # It made room for a call of higher priority.
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
    # From zero replicas, which takes minutes (Fireworks: 3.5 to 10).
    SCALING_UP = ("scaling_up", "model_loading", False, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM)
    RATE_LIMIT = ("rate_limit", "rate_limit", True, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM)
    # One request that is larger than the whole window: no wait helps (OpenAI, "Request too large for ... TPM").
    OVER_LIMIT = ("over_limit", "rate_limit", False, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    QUOTA_EXHAUSTED = (
        "quota_exhausted", "quota_exhausted", False, True, Signal.NO_EVIDENCE, Scope.CREDENTIAL, Source.UPSTREAM,
    )  # fmt: skip
    # A day's or a month's window of one model; the account's other models go on.
    WINDOW_EXHAUSTED = (
        "window_exhausted", "quota_exhausted", False, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM,
    )  # fmt: skip
    # The account's tier has none for this model: no wait helps, though one is offered (Gemini, `limit: 0`).
    NO_QUOTA = ("no_quota", "quota_exhausted", False, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM)
    AUTH = ("auth", "auth", False, True, Signal.NO_EVIDENCE, Scope.CREDENTIAL, Source.UPSTREAM)
    ACCOUNT_BLOCKED = (
        "account_blocked", "permission", False, True, Signal.NO_EVIDENCE, Scope.CREDENTIAL, Source.UPSTREAM,
    )  # fmt: skip
    # Of this model or feature: a caller can provoke it, so it must not bench the credential for everyone.
    PERMISSION = ("permission", "permission", False, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM)
    # A firewall, a region block, a bot challenge: the key is fine, this way in is not.
    BLOCKED = ("blocked", "permission", False, True, Signal.NO_EVIDENCE, Scope.HOST, Source.UPSTREAM)
    MODEL_NOT_FOUND = (
        "model_not_found", "model_not_found", False, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM,
    )  # fmt: skip
    NOT_FOUND = ("not_found", "not_found", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    # Not what this server can answer, by its path, its method or the state it refers to; another may.
    WRONG_PATH = ("wrong_path", "not_found", False, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    MISROUTED = ("misrouted", "invalid_request", False, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    CONFLICT = ("conflict", "conflict", True, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    CONTEXT_LENGTH = ("context_length", "context_length", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    # The window is a setting of this server: the same model may run with a larger one elsewhere.
    DEPLOYMENT_CONTEXT = (
        "deployment_context", "context_length", False, True, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM,
    )  # fmt: skip
    CONTENT_POLICY = ("content_policy", "content_policy", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    PAYLOAD_TOO_LARGE = (
        "payload_too_large", "payload_too_large", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM,
    )  # fmt: skip
    # More than this tier's or this proxy's limit, not more than any would take.
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
        """No further attempt can change it, here or on another deployment."""
        return not self.is_retriable and not self.can_fall_back


@dataclass(frozen=True, slots=True)
class Answer:
    """An upstream's own complete answer, kept so that it can be given to the client unmodified."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """One attempt that did not answer well."""

    kind: FailureKind
    detail: str
    """One human sentence, without bodies or keys: it is logged and may reach the client."""
    retry_after_s: float | None = None
    """The upstream's own hint, > 0, or None."""
    limit: Limit | None = None
    """The limit that was exceeded, when kind is TIMEOUT."""
    answer: Answer | None = None
    """What the upstream said, when it said something complete."""
    is_before_sending: bool = False
    """Nothing was sent: there was no connection. The upstream's host is at fault, and nothing was executed."""
    is_incomplete: bool = False
    """It came before the request had been sent as a whole: no server executes a part of one (RFC 9112, section 8)."""
    is_clients_delay: bool = False
    """The provider gave up a request of which the client had sent no more for a while: that is no evidence."""
    is_early: bool = False
    """It was cut off before its own limit, for the sake of the call's deadline: that is no evidence."""
    is_shape_only: bool = False
    """Only the form of the answer is wrong: no evidence about the health of the deployment."""
    is_after_head: bool = False
    """It came inside an answer that began as a success: whatever it says, the call was executed."""

    @property
    def signal(self) -> Signal:
        """What it tells of the deployment's health."""
        return Signal.NO_EVIDENCE if self.is_shape_only else self.kind.signal


@dataclass(slots=True)
class Beyond:
    """What became of a call that was not just asked and answered: for its headers, its log line and the counters."""

    cache: Literal["", "hit", "stale", "stale_if_error", "miss", "coalesced"] = ""
    """Of a route that has one. coalesced: it got what another call was asking for already."""
    age_s: float | None = None
    """Of the answer that it got from there."""
    cache_key: bytes = b""
    """Under which there may be one; empty: it wants none."""
    letter: str = ""
    """The id under which it is kept, having failed."""
    promise: str = ""
    """The id under which its answer can be fetched."""
    lesser: Literal["", "static"] = ""
    """What it got in place of an answer."""
    hurried_by: float = float("inf")
    """The instant at which it gets something lesser, because its route is degraded."""
    is_cut_short: bool = False
    """It has failed at that instant: nobody knows what would have become of it."""
    errand: Literal["", "refresh", "later", "requeue", "fetch"] = ""
    """It is no client's call to a model, and not counted as one: why it is there. fetch: a client looks what has become
    of what it was promised."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The gateway's own answer, given in place of an upstream's; the dialect writes its body."""

    status: int
    code: str
    """Machine-readable, snake_case, e.g. `model_not_found`."""
    message: str
    by: RefusedBy | None
    """None: nobody refused, the upstreams failed without an answer that could be passed on."""
    retry_after_s: float | None = None
    should_retry: bool = False
    """Value of `x-should-retry`, which both official SDKs obey before the status."""
    param: str | None = None
    """The request field at fault, where there is one."""
    headers: tuple[tuple[str, str], ...] = ()
    """More headers of the answer."""


@dataclass(slots=True)
class GaveUp:
    """The attempt loop's other end."""

    failure: Failure | None
    """The last failure, preferring one in which the upstream said something; None when nothing was sent."""
    refusal: Refusal | None
    """The gateway's own answer, where there is no upstream's to give."""
    why: str
    is_cooldown: bool = False
    """A cooldown refused the call: `failure` is the one that began it."""

    @property
    def refused_by(self) -> RefusedBy | None:
        """What in the gateway refused the call; None if its upstreams failed it."""
        if self.refusal is not None:
            return self.refusal.by
        if self.is_cooldown:
            return "cooldown"
        return "deadline" if self.failure is not None and self.failure.limit == "total" else None
