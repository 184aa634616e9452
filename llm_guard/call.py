"""The nouns of one request: Call, Attempt, Opened, GaveUp.

Owns the facts of one call, from its receipt to its record. Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from llm_guard.api_keys import ApiKey
from llm_guard.dialect import DialectName
from llm_guard.dialect.continuation import Manner
from llm_guard.dialect.sse import StreamWatch, Usage
from llm_guard.leave import Leave
from llm_guard.outcome import Beyond, Failure, GaveUp, Refusal, RefusedBy
from llm_guard.policy.answer_memory import MemoryLease
from llm_guard.policy.client_limits import Reservation
from llm_guard.policy.itinerary import WaitedFor
from llm_guard.policy.rate_hints import RateHint
from llm_guard.policy.retry_budget import RetryBudget
from llm_guard.policy.scope import Scope
from llm_guard.policy.trace_context import TraceContext
from llm_guard.policy.transition import BreakerState
from llm_guard.request_body import StoredBody
from llm_guard.routes import Route, Target

Headers = tuple[tuple[str, str], ...]

_NO_USAGE = Usage()


class StreamView(Protocol):
    """An event stream as it passes: see `gateway.stream_view`."""

    @property
    def watch(self) -> StreamWatch: ...
    @property
    def takes_events(self) -> bool:
        """Whether events of ours can stand in it."""

    @property
    def is_cut(self) -> bool:
        """No more of it may be passed on."""

    @property
    def failure(self) -> Failure | None:
        """What is wrong with it, though it has not ended."""

    @property
    def withheld(self) -> bytes:
        """What was not passed on because another stream may take its place: an error event, and what followed it."""

    def feed(self, chunk: bytes) -> bytes: ...
    def rest(self) -> bytes: ...


class Exchange(Protocol):
    """One open HTTP exchange with an upstream, after its head. All the gateway asks of an HTTP client."""

    status: int
    reason: str
    headers: Headers

    async def read(self) -> bytes:
        """What has arrived; b"" at a clean end. Raises UpstreamError when the exchange broke."""

    def abort(self) -> None:
        """Closes the connection now. After a clean end it does nothing: the connection is in the pool."""

    def take_over(self, inbox: Inbox) -> Wire:
        """After an upgrade: from now on the bytes go to `inbox`. Raises UpstreamError when the connection is gone."""


class Dialing(Protocol):
    """Follows a request on its way to a connection."""

    def on_dialing(self) -> None:
        """No connection is idle: one is made."""

    def on_connected(self) -> None:
        """A connection is there, and the request about to be sent."""


class Recovery(Protocol):
    """How a call goes on when its stream has died: see `gateway.recovery`."""

    def manner(self, target: Target) -> Manner | None:
        """How this one is asked to go on; None: it cannot be gone on with."""

    def body(self, target: Target, manner: Manner) -> bytes:
        """The request that asks for it."""

    def is_refused(self, attempt: Attempt, failure: Failure) -> bool:
        """Whether only the manner was refused, and there is another."""


class Inbox(Protocol):
    """Where an upgraded connection's bytes go."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]: ...
    def feed_eof(self) -> None: ...


class Wire(Protocol):
    """An upgraded connection's other direction."""

    transport: asyncio.Transport

    async def write(self, data: bytes) -> None:
        """Waits while the upstream takes no more. Raises ConnectionError when it is gone."""


@dataclass(slots=True)
class Attempt:
    """One exchange with one deployment."""

    target: Target
    started_at: float
    call_id: str = ""
    budgets: tuple[RetryBudget, ...] = ()
    """That hear how it ends."""
    is_stream: bool = False
    breaker: BreakerState = "closed"
    """When it began."""
    first_token_s: float = 0.0
    """Its limit, as configured or as learned; 0: no stream is expected, and none has come."""
    ends_by: float = float("inf")
    """It has to be decided by then, so that one more attempt still fits."""
    waited_s: float = 0.0
    """Before it: for a backoff, or for its turn."""
    waited_for: WaitedFor = ""
    is_retry: bool = False
    """This deployment has been asked before."""
    is_fallback: bool = False
    """Another deployment was to be asked before it: it failed, or was skipped."""
    is_hedge: bool = False
    """It ran beside another attempt, which was slow."""
    is_superseded: bool = False
    """It is ended because another attempt has answered."""
    key: ApiKey | None = None  # of the upstream's pool, if it has one
    gave_way: bool = False
    """It failed in a way that another key of the pool may mend: in this call its key comes after the others."""
    manner: Manner | None = None
    """How it was asked to go on with a stream that had died."""
    watch: StreamWatch | None = None
    """What its stream has shown."""
    buffer: MemoryLease | None = None
    """The memory of its answer, where that is read whole; released with the call."""
    on_patience: Callable[[], None] | None = None
    """To be called while it is made, when the call may take longer than was known."""
    timed_from: float = field(init=False)
    """The instant from which the provider's time counts: the start, or where a body is sent while it arrives, when the
    provider last took a part of it."""
    answered_at: float | None = None
    """When its first token, or its whole answer, was there."""
    ended_at: float | None = None
    span_id: int = 0
    """Not 0 once it is sent, where the call is traced."""
    failure: Failure | None = None
    wasted: int = 0  # output tokens of an answer that is dropped because another attempt's was first
    status: int | None = None
    next_step: str = ""
    """What was decided after it failed."""
    budget_left: float | None = None
    """Retries that could still have been made then, as far as budgets go."""

    def __post_init__(self) -> None:
        self.timed_from = self.started_at

    @property
    def outcome(self) -> str:
        """`ok`, or the failure kind's label."""
        return self.failure.kind.label if self.failure else "ok"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A deployment that was not asked, and why: a phrase for the log line."""

    deployment: str
    why: str


@dataclass(slots=True)
class Call:
    """One client request."""

    id: str
    dialect: DialectName
    method: str
    path: str
    """As the client wrote it, without query, and without `/upstreams/NAME` before it."""
    query: str
    """As the client wrote it, without `?`."""
    headers: Headers
    started_at: float
    body: bytes | StoredBody = b""
    content_type: str = ""
    content_encoding: str = ""
    upstream_name: str | None = None
    """Whose path it was: `/upstreams/NAME/v1/…`."""
    model: str | None = None
    is_model_in_query: bool = False
    is_stream: bool = False
    """The client asked for a stream; the upstream's answer has the last word."""
    may_stream: bool = False  # `stream` is 1 or "true", which some servers (vLLM) take for true
    is_upgrade: bool = False
    max_tokens: int = 0  # of output, as the body limits it; 0: not known
    choices: int = 1  # of all prompts together; 0: not known
    inputs: int = 0  # each with a result of its own; 0: not known
    response_format: str = ""  # as a form requests it
    route: Route | None = None
    is_repeatable: bool = True
    """It may be sent again although it may have been executed."""
    is_bound: bool = False
    """It goes on from what one upstream keeps: no other can serve it."""
    client_retries: int = 0
    """How often the client has sent it before."""
    priority: int = 1
    """0 goes first where calls wait for their turn, 2 last."""
    weight: float = 1.0
    """Its caller's share of the turns within a priority."""
    decide_by: float = float("inf")
    """The instant until which the client waits for a first byte."""
    key_digest: str = ""
    """Tells callers' own keys apart without keeping them."""
    account_digest: str = ""
    """Tells apart the accounts that callers choose for one key; empty: the key's own."""
    client_key: str | None = None
    """Name of the client key that admitted the call: a key of ours, which goes no further."""
    scope: Scope | None = None
    """What that key may call; None: no client keys are configured."""
    reservation: Reservation | None = None  # of its client key's limits
    deadline_at: float = float("inf")
    attempts: list[Attempt] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    waited_s: float = 0.0
    """Since its last attempt, for a retry or its turn; the next attempt takes it over, if there is one."""
    first_token_at: float | None = None
    sent_status: int | None = None
    usage: Usage = _NO_USAGE
    refusal: Refusal | None = None
    failure: Failure | None = None
    """Why the call failed; None when it succeeded or was refused."""
    gave_up: str | None = None
    """Why no further attempt was made after a failure."""
    failed_by: RefusedBy | None = None
    """What in the gateway refused the call although it ended with a failure: a cooldown, or the deadline."""
    trace: TraceContext | None = None
    """None: it is not traced."""
    trace_id: int = 0  # for log lines, also where no spans are exported; 0: it is part of no trace
    is_in_flight: bool = False  # counted as running
    is_draining: bool = False
    """The gateway is going away and ends this call."""
    stream_head: Literal["", "plain", "compressed"] = ""
    """What an upstream has begun to answer with: then the request was accepted."""
    recovery: Recovery | None = None
    """Of a stream that may be gone on with."""
    thrown_away: int = 0
    """Tokens that were generated for it and not passed on."""
    beyond: Beyond | None = None

    @property
    def is_plain_wanted(self) -> bool:
        """Words of ours may have to stand in its answer, which therefore must not be compressed."""
        if self.sent_status is not None or self.route is None:
            return self.sent_status is not None
        rules = self.route.stream
        if not self.is_stream:
            return rules.waiting is not None and rules.waiting.unary
        is_early = rules.waiting is not None and rules.waiting.before_head
        return is_early or rules.recover != "off" or self.stream_head == "plain"

    @property
    def commit_by(self) -> float:
        """The instant by which the client must have an answer's first byte."""
        return self.decide_by if self.decide_by < self.deadline_at else self.deadline_at  # noqa: FURB136  # half the price

    def start_time(self, decide_by: float, deadline_at: float) -> None:
        """Sets both limits of a call whose body has arrived while attempts were being made."""
        self.decide_by, self.deadline_at = decide_by, deadline_at
        for attempt in self.attempts:
            if attempt.on_patience is not None:
                attempt.on_patience()

    def lift_patience(self, until: float = float("inf")) -> None:
        """The client has its first byte, and waits on as long as bytes come; the gateway itself waits until `until`."""
        self.decide_by = until
        for attempt in self.attempts:
            if attempt.on_patience is not None:
                attempt.ends_by = self.commit_by
                attempt.on_patience()

    def give_up(self, end: GaveUp) -> None:
        """Notes how the call ended without an answer."""
        self.failure, self.refusal, self.gave_up = end.failure, end.refusal, end.why
        self.failed_by = end.refused_by

    @property
    def refused_by(self) -> RefusedBy | None:
        """What in the gateway refused the call; None if it was answered, or upstreams failed it."""
        return self.refusal.by if self.refusal is not None else self.failed_by

    @property
    def outcome(self) -> str:
        """`ok`, `refused`, or the label of the failure kind that ended the call."""
        if self.failure is not None:
            return self.failure.kind.label
        return "refused" if self.refusal is not None else "ok"


@dataclass(slots=True)
class Opened:
    """An answer known to be good as far as it has been seen: the call may commit."""

    status: int
    reason: str
    headers: Headers
    held: bytes
    """What was read before commit: a whole unary body, or a stream up to its first useful event."""
    exchange: Exchange | None
    """Where the rest comes from; None when `held` is all of it."""
    view: StreamView | None = None
    """Over an event stream; None for anything else."""
    usage: Usage | None = None
    """Counted in a whole unary body."""
    rate: RateHint | None = None
    """What the answer's headers say of the provider's limits."""
    first_token_at: float | None = None
    """Where that was before it was committed."""


@dataclass(slots=True)
class Served:
    """The attempt loop's good end: what to relay, from whom, and what is given back when the relay ends."""

    opened: Opened
    attempt: Attempt
    leave: Leave
    resume: Resume | None = None
    """Asks whom this failure leaves to be asked for another answer; None: the whole answer is
    there, and it was not to go on with another."""


Resume = Callable[[Failure], Awaitable[Served | GaveUp]]
