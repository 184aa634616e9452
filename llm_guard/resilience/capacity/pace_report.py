"""Reports of the gateways of a fleet to one another, about the pace of one deployment.

One gateway, the keeper, decides for all (`resilience.capacity.pace_keeper`). The others report what became of their
calls and how many wait, and get grants (`resilience.capacity.shared_gate`). Durations and ages in seconds; instants are
by the keeper's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from llm_guard.resilience.capacity.pacing import Cause
from llm_guard.resilience.capacity.rate_limit_headers import RateHint

PaceEventKind = Literal[
    "entered", "ok", "accepted", "rate_limited", "retry_after", "unused", "ignored", "hint", "reset", "hold_ended",
    "returned", "denied",
]  # fmt: skip
"""`entered`: a call went, with or without a grant. `ok`, `accepted`, `rate_limited`, `ignored`: how it ended
(`accepted`: any response but a 429). `unused`: it did not go after all. `returned`: a grant was not needed.
`denied`: calls could not go at once, whether they wait or not."""


@dataclass(frozen=True, slots=True)
class PaceEvent:
    """Something that the keeper must know, in order."""

    kind: PaceEventKind
    source: str = ""
    """The caller that a refusal is attributed to."""
    seconds: float = 0.0
    """How long ago the call entered; of `retry_after`: the wait that the provider requests; of `hint`: its age."""
    granted_at: float | None = None
    """When the keeper granted the call; None: it went without a grant, or with that of another keeper."""
    hint: RateHint | None = None
    count: int = 1
    """Number of calls, for `denied`."""


@dataclass(frozen=True, slots=True)
class WaitingCalls:
    """Calls of one priority and source that wait for grants."""

    priority: int
    source: str
    count: int
    weight: float = 1.0
    """The caller's share of the grants within its priority."""


@dataclass(frozen=True, slots=True)
class PaceGrant:
    """Permission for one call."""

    priority: int
    source: str
    granted_at: float


@dataclass(frozen=True, slots=True)
class Membership:
    """The state of one gateway at the keeper."""

    read: int
    """Number of the first event that it has not read."""
    first: int = 0
    """Number of the first of `grants`."""
    grants: tuple[PaceGrant, ...] = ()
    """Grants that the gateway has not acknowledged."""


@dataclass(frozen=True, slots=True)
class PaceState:
    """A pace, as of the time at which it was published."""

    rate: float | None = None
    """Calls a second; None: no limit is known."""
    cause: Cause | None = None
    since_s: float | None = None
    """Seconds since calls began to be paced; None: there is no rate."""
    held_s: float | None = None
    """Seconds for which no call passes; None: not held."""
    held_since_s: float | None = None
    """Seconds since the hold began; None: neither held nor probing."""
    is_probing: bool = False

    @property
    def is_limited(self) -> bool:
        """True if calls wait for grants."""
        return self.rate is not None or self.held_since_s is not None


@dataclass(frozen=True, slots=True)
class PaceDecision:
    """The keeper's decision for all gateways."""

    term: int
    """Each keeper has a higher one than those of which it knows."""
    keeper: str = ""
    """Its id."""
    at: float = 0.0
    """When it was made."""
    members: Mapping[str, Membership] = field(default_factory=dict)
    """The gateways that it has heard of, by id."""
    free: PaceState = PaceState()
    """The pace of all callers that are not apart."""
    apart: PaceState | None = None
    callers: tuple[str, ...] = ()
    """The callers with the pace `apart`."""
    has_all: bool = False
    """True if all callers have it."""
    waiting: int = 0
    """Calls that wait at all gateways."""

    @property
    def is_limited(self) -> bool:
        """True if calls of any caller wait for grants."""
        return self.free.is_limited or (self.apart is not None and self.apart.is_limited)


@dataclass(frozen=True, slots=True)
class PaceReport:
    """The part of a gateway's content that is about one deployment."""

    is_active: bool = False
    """True if the provider has limited its calls lately, or calls wait."""
    term: int = 0
    keeper: str = ""
    """The keeper that it follows, or has followed last, and its term."""
    received: int = 0
    """Number of that keeper's grants that it has received."""
    first: int = 0
    """Number of the first of `events`."""
    events: tuple[PaceEvent, ...] = ()
    """Those that the keeper has not read yet."""
    waiting: tuple[WaitingCalls, ...] = ()
    in_flight: int = 0
    rate: float | None = None
    """Calls a second that it has kept of a fleet's rate while it worked alone; None: it follows, or has none."""
    callers: tuple[str, ...] = ()
    """The only callers that this rate applies to; none: it applies to all."""
    decision: PaceDecision | None = None
    """Set by the keeper."""
