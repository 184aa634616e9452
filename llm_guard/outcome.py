"""How an attempt or a call can end: failure kinds (one table), their source, and refusals.

Owns the vocabulary. Does not own how evidence becomes a kind (`policy.classify`) nor what is done about it
(`policy.next_step`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Limit = Literal["connect", "first_token", "idle", "attempt", "total"]
"""The five timeouts; each names itself in `llm_guard_timeouts_total` and in error messages."""

RefusedBy = Literal["breaker", "limit", "deadline", "auth", "drain", "request", "route"]
"""Value of the `x-llm-guard-refused-by` header."""


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


class FailureKind(Enum):
    """What a failure means. One row each: a new kind is one row and its tests.

    `is_retriable`: the unchanged request, sent again to the same deployment, may succeed.
    `can_fall_back`: another deployment may succeed with it.
    `signal`: what the breaker hears. `scope`: whom it concerns. `source`: whose doing it is.
    """

    #                     retry  fall back  signal to the breaker  concerns          source
    TIMEOUT = ("timeout", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    NETWORK = ("network", True, True, Signal.UNHEALTHY, Scope.HOST, Source.UPSTREAM)
    STALE = ("stale", True, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM)
    TRUNCATED = ("truncated", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    MALFORMED = ("malformed", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    SERVER_ERROR = ("server_error", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    OVERLOADED = ("overloaded", True, True, Signal.UNHEALTHY, Scope.DEPLOYMENT, Source.UPSTREAM)
    MODEL_LOADING = ("model_loading", True, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM)
    RATE_LIMIT = ("rate_limit", True, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM)
    QUOTA_EXHAUSTED = ("quota_exhausted", False, True, Signal.NO_EVIDENCE, Scope.CREDENTIAL, Source.UPSTREAM)
    AUTH = ("auth", False, True, Signal.NO_EVIDENCE, Scope.CREDENTIAL, Source.UPSTREAM)
    PERMISSION = ("permission", False, True, Signal.NO_EVIDENCE, Scope.CREDENTIAL, Source.UPSTREAM)
    MODEL_NOT_FOUND = ("model_not_found", False, True, Signal.NO_EVIDENCE, Scope.DEPLOYMENT, Source.UPSTREAM)
    NOT_FOUND = ("not_found", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    CONFLICT = ("conflict", True, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    CONTEXT_LENGTH = ("context_length", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    CONTENT_POLICY = ("content_policy", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    PAYLOAD_TOO_LARGE = ("payload_too_large", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    INVALID_REQUEST = ("invalid_request", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.UPSTREAM)
    CLIENT_CANCELLED = ("client_cancelled", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.CLIENT)
    INTERNAL = ("internal", False, False, Signal.NO_EVIDENCE, Scope.CALL, Source.GATEWAY)

    def __init__(
        self,
        label: str,
        is_retriable: bool,
        can_fall_back: bool,
        signal: Signal,
        scope: Scope,
        source: Source,
    ) -> None:
        self.label = label
        self.category = label
        self.is_retriable = is_retriable
        self.can_fall_back = can_fall_back
        self.signal = signal
        self.scope = scope
        self.source = source


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
    is_after_head: bool = False
    """It came inside an answer that began as a success: whatever it says, the call was executed."""


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
