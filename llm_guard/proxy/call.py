"""The data of one request, from its receipt to its log record: Call, Attempt, Opened, Delivered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from llm_guard.dialects import DialectName
from llm_guard.dialects.resume.transcript import ResumeMode
from llm_guard.dialects.sse import StreamObserver, Usage
from llm_guard.outcome import Disposition, Exhausted, Failure, Refusal, RefusedBy
from llm_guard.proxy.http_client.http1 import RequestHeaders
from llm_guard.proxy.http_client.interfaces import Inbox, Wire
from llm_guard.proxy.request_body.interfaces import BufferedBody
from llm_guard.proxy.translation.interfaces import AttemptTranslator, CallTranslator
from llm_guard.resilience.capacity.rate_limit_headers import RateHint
from llm_guard.resilience.capacity.response_memory import MemoryLease
from llm_guard.resilience.circuit_breaker.history import BreakerState
from llm_guard.resilience.client_keys.limits import Reservation
from llm_guard.resilience.client_keys.scope import KeyScope
from llm_guard.resilience.retry.limits import RetryBudget
from llm_guard.resilience.routing.candidates import WaitedFor
from llm_guard.routing.api_keys import ApiKey
from llm_guard.routing.deployment import Upstream
from llm_guard.routing.lease import Lease
from llm_guard.routing.route_table import Route, Target
from llm_guard.trace_context import TraceContext

Headers = tuple[tuple[str, str], ...]
SentHeaders = tuple[Upstream, ApiKey | None, int, RequestHeaders]
"""What decides about headers for an upstream beside the client's (`proxy.headers.to_upstream`), and the result."""

_NO_USAGE = Usage()


class StreamDecoder(Protocol):
    """Decodes an event stream as it is relayed: see `proxy.streams.decoder`."""

    @property
    def watch(self) -> StreamObserver: ...
    @property
    def takes_events(self) -> bool:
        """True if the gateway can add events of its own to the stream."""

    @property
    def is_compressed(self) -> bool:
        """True if the stream is passed on compressed, so that nothing can be left out of it."""

    @property
    def is_closed(self) -> bool:
        """True if no more of the stream may be passed on."""

    @property
    def failure(self) -> Failure | None:
        """A failure found in the stream before its end; None if there is none."""

    @property
    def has_ended(self) -> bool:
        """True if the client's terminal event has been passed on."""

    @property
    def suppressed(self) -> bytes:
        """An error event and all after it, not passed on because another stream may continue this one."""

    @property
    def missing_end(self) -> bytes:
        """Events that the client still lacks of a stream that has shown its end; to be read once, at the end."""

    def feed(self, chunk: bytes) -> bytes: ...
    def trailing_bytes(self) -> bytes: ...


class Exchange(Protocol):
    """One open HTTP exchange with an upstream, after the response head: the interface of the HTTP client."""

    status: int
    reason: str
    headers: Headers

    async def read(self) -> bytes:
        """Returns the bytes that have arrived; b"" at a clean end. Raises UpstreamError if the exchange broke."""

    def abort(self) -> None:
        """Closes the connection now. Does nothing after a clean end: the connection is back in the pool."""

    def take_over(self, inbox: Inbox) -> Wire:
        """Sends all further bytes to `inbox`, after an upgrade. Raises UpstreamError if the connection is gone."""


class StreamResumer(Protocol):
    """Resumes a call after its stream has died: see `proxy.streams.resume`."""

    @property
    def tokens(self) -> tuple[Usage, int]:
        """Usage of all streams so far, and the tokens of it that the client did not get."""

    def adopt(self, served: Delivered) -> bool:
        """Makes this stream the one that the client gets; returns False if that is not possible."""

    def may_go_on(self, served: Delivered, failure: Failure) -> bool:
        """Returns True if any target could continue what the client has."""

    def resume_mode(self, target: Target) -> ResumeMode | None:
        """Returns the resume mode for a target; None if it cannot continue the stream."""

    def body(self, target: Target, resume_mode: ResumeMode) -> bytes:
        """Returns the request body that makes the target continue the stream."""

    def is_refused(self, attempt: Attempt, failure: Failure) -> bool:
        """Returns True if only the resume mode was refused and another mode is left."""


@dataclass(slots=True)
class Attempt:
    """One exchange with one deployment."""

    target: Target
    started_at: float
    call_id: str = ""
    budgets: tuple[RetryBudget, ...] = ()
    """Retry budgets to which its outcome is reported."""
    is_stream: bool = False
    breaker: BreakerState = "closed"
    """State of the breaker when the attempt began."""
    first_token_s: float = 0.0
    """Limit until the first token, configured or learned; 0 if no stream is expected and none has come."""
    must_end_by: float = float("inf")
    """Instant by which it must have an outcome, so that one more attempt still fits."""
    waited_s: float = 0.0
    """Seconds waited before it: for a backoff, or in the wait queue."""
    waited_for: WaitedFor = ""
    is_retry: bool = False
    """True if the call has tried this deployment before."""
    is_fallback: bool = False
    """True if another deployment was first in order, and failed or was skipped."""
    is_hedge: bool = False
    """True if it was started beside another attempt, which was slow."""
    is_superseded: bool = False  # ended because another attempt has answered
    translation: AttemptTranslator | None = None  # None: the upstream has the client's dialect
    key: ApiKey | None = None  # from the upstream's key pool, if it has one
    gave_way: bool = False
    """True if it failed in a way that another key of the pool may mend: this call then uses its key last."""
    resume_mode: ResumeMode | None = None
    """Mode in which it resumes a stream that had died; None if it does not."""
    watch: StreamObserver | None = None
    """Observer of its stream."""
    buffer: MemoryLease | None = None
    """Memory of its response, if that is read whole; released with the call."""
    on_deadline_extended: Callable[[], None] | None = None
    """Called during the attempt when the call's deadline is extended."""
    timed_from: float = field(init=False)
    """Instant from which the provider's time counts: the start, or for a body that is sent while it arrives, when the
    provider last accepted a part of it."""
    answered_at: float | None = None
    """Instant at which the first token, or the whole response, had arrived."""
    ended_at: float | None = None
    span_id: int = 0
    """Trace span; not 0 once the attempt is sent, if the call is traced."""
    failure: Failure | None = None
    wasted: int = 0  # output tokens of a response dropped because another attempt's was first
    status: int | None = None
    next_step: str = ""
    """The decision taken after it failed."""
    budget_left: float | None = None
    """Retries that the budgets would still have allowed at that time."""

    def __post_init__(self) -> None:
        self.timed_from = self.started_at

    @property
    def outcome(self) -> str:
        """`ok`, or the failure kind's label."""
        return self.failure.kind.label if self.failure else "ok"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A deployment that was not tried, and why: a phrase for the log line."""

    deployment: str
    why: str
    failed_calls: tuple[str, ...] = ()  # ids of the failed calls that caused it, the newest first


@dataclass(slots=True)
class Call:
    """One client request."""

    id: str
    dialect: DialectName
    method: str
    path: str
    """Path as the client wrote it, without the query and without a leading `/upstreams/NAME`."""
    query: str
    """Query as the client wrote it, without `?`."""
    headers: Headers
    started_at: float
    body: bytes | BufferedBody = b""
    content_type: str = ""
    content_encoding: str = ""
    inflated_bytes: int = 0  # of a compressed body; 0 for any other
    upstream_name: str | None = None
    """NAME of a call to `/upstreams/NAME/v1/…`."""
    model: str | None = None
    is_model_in_query: bool = False
    is_stream: bool = False
    """True if the client requested a stream; later set by the upstream's actual response."""
    may_stream: bool = False  # `stream` is 1 or "true", which some servers (vLLM) accept as true
    is_upgrade: bool = False
    max_tokens: int = 0  # output limit in the body; 0 if unknown
    choices: int = 1  # for all prompts together; 0 if unknown
    inputs: int = 0  # inputs with a separate result each; 0 if unknown
    response_format: str = ""  # from the body of a form
    route: Route | None = None
    is_repeatable: bool = True
    """True if it may be sent again even if it may already have been executed."""
    is_sticky: bool = False
    """True if it continues state that one upstream stores: no other can serve it."""
    client_retries: int = 0  # how often the client has sent it before
    priority: int = 1
    """Priority in wait queues: 0 goes first, 2 last."""
    weight: float = 1.0
    """Its caller's share of the queue grants within a priority."""
    client_deadline: float = float("inf")
    """Instant until which the client waits for a first byte."""
    key_digest: str = ""
    """Digest of the caller's own key: distinguishes keys without storing them."""
    account_digest: str = ""
    """Digest of the account that the caller chose for its key; empty for the key's default account."""
    client_key: str | None = None
    """Name of the client key that admitted the call; the key itself is not forwarded."""
    scope: KeyScope | None = None
    """The calls that this key may make; None if no client keys are configured."""
    is_screened: bool = False  # the call and its response are checked for what its key may not use or see
    reservation: Reservation | None = None  # against the limits of its client key
    deadline_at: float = float("inf")
    attempts: list[Attempt] = field(default_factory=list, init=False)  # with `init`, Cython imports a module per call
    skipped: list[Skipped] = field(default_factory=list, init=False)
    waited_s: float = 0.0
    """Seconds waited since its last attempt, for a retry or in a queue; moved to the next attempt, if there is one."""
    first_token_at: float | None = None
    sent_status: int | None = None
    usage: Usage = _NO_USAGE
    refusal: Refusal | None = None
    failure: Failure | None = None
    """Failure that ended the call; None if it succeeded or was refused."""
    gave_up: str | None = None
    """The reason for which no further attempt was made after a failure."""
    failed_by: RefusedBy | None = None
    """The gateway's limit that ended a call which has a failure: a cooldown, or the deadline."""
    trace: TraceContext | None = None  # None: not traced
    trace_id: int = 0  # for log lines, even if no spans are exported; 0 without a trace
    is_in_flight: bool = False  # counted as running
    is_draining: bool = False  # the gateway is shutting down and ends this call
    stream_head: Literal["", "plain", "compressed"] = ""
    """Form of the stream that an upstream has begun to send, which shows that it accepted the request."""
    recovery: StreamResumer | None = None
    """Resumes its stream; None if that is not possible."""
    wasted_tokens: int = 0
    """Tokens that were generated for it and not passed on."""
    disposition: Disposition | None = None
    sent_headers: dict[str, SentHeaders] | None = None
    """Headers for upstreams by name, shared by requests of a connection that differ only in their bodies; or None."""
    translation: CallTranslator | None = None  # None: all deployments of its route have its dialect

    @property
    def is_plain_wanted(self) -> bool:
        """True if the response must not be compressed, because the gateway may have to add text of its own to it."""
        if self.sent_status is not None or self.route is None:
            return self.sent_status is not None
        rules = self.route.stream
        if not self.is_stream:
            return rules.keepalive is not None and rules.keepalive.unary
        is_early = rules.keepalive is not None and rules.keepalive.before_headers
        return is_early or rules.recover != "off" or self.stream_head == "plain"

    @property
    def commit_by(self) -> float:
        """Instant by which the client must have the first byte of a response."""
        return self.client_deadline if self.client_deadline < self.deadline_at else self.deadline_at  # noqa: FURB136  # half the price

    def start_time(self, decide_by: float, deadline_at: float) -> None:
        """Sets both deadlines of a call with a body that arrived while attempts were being made."""
        self.client_deadline, self.deadline_at = decide_by, deadline_at
        for attempt in self.attempts:
            if attempt.on_deadline_extended is not None:
                attempt.on_deadline_extended()

    def extend_client_deadline(self, until: float = float("inf")) -> None:
        """Extends the client's deadline to `until`, once it has a first byte: from then on it waits while bytes
        come."""
        self.client_deadline = until
        for attempt in self.attempts:
            if attempt.on_deadline_extended is not None:
                attempt.must_end_by = self.commit_by
                attempt.on_deadline_extended()

    def give_up(self, end: Exhausted) -> None:
        """Records how the call ended without a response."""
        self.failure, self.refusal, self.gave_up = end.failure, end.refusal, end.why
        self.failed_by = end.refused_by

    @property
    def refused_by(self) -> RefusedBy | None:
        """The part of the gateway that refused the call; None if the call was answered, or its upstreams failed."""
        return self.refusal.by if self.refusal is not None else self.failed_by

    @property
    def outcome(self) -> str:
        """`ok`, `refused`, or the label of the failure kind that ended the call."""
        if self.failure is not None:
            return self.failure.kind.label
        return "refused" if self.refusal is not None else "ok"


def endpoint_of(call: Call, attempt: Attempt) -> tuple[DialectName, str]:
    """Returns the dialect and the path with which an attempt is made."""
    translation = attempt.translation
    return (call.dialect, call.path) if translation is None else (translation.dialect, translation.path)


@dataclass(slots=True)
class Opened:
    """A response that is good as far as it has been read: the call may commit."""

    status: int
    reason: str
    headers: Headers
    buffered: bytes
    """Bytes read before commit: a whole unary body, or a stream up to its first useful event."""
    exchange: Exchange | None
    """Source of the remaining bytes; None if `buffered` is the whole body."""
    view: StreamDecoder | None = None
    """Decoder of an event stream; None for any other response."""
    usage: Usage | None = None
    """Usage in a whole unary body."""
    rate: RateHint | None = None
    """The provider's limits, from the response headers."""
    first_token_at: float | None = None
    """Instant of the first token, if the stream was held back after it."""


@dataclass(slots=True)
class Delivered:
    """The attempt loop's success: the response to relay, its attempt, and the lease to release at the relay's end."""

    opened: Opened
    attempt: Attempt
    lease: Lease
