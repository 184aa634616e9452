"""What a gate (`resilience.capacity.gate`) shows of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llm_guard.resilience.capacity.pacing import Cause
from llm_guard.resilience.throttling.adaptive_throttle import ThrottleSnapshot


@dataclass(frozen=True, slots=True)
class GateSnapshot:
    limit: int | None
    """Calls that may be in flight now; None: no limit."""
    in_flight: int
    waiting: Mapping[int, int]
    """Waiting calls by priority."""
    rate: float | None
    """Calls a second; None: no limit is known."""
    held_until: float | None
    """No call passes before this instant; None: not held."""
    rate_cause: Cause | None
    """Source of the rate; None: there is no rate."""
    rate_since: float | None
    """When calls began to be paced for that cause; None: there is no rate."""
    held_since: float | None
    """When the hold began, or the first of several in a row; None: neither held nor probing."""
    is_probing: bool
    """True if single calls probe whether the provider takes calls again."""
    throttle: ThrottleSnapshot
    limited_callers: tuple[str, ...] | None = None
    """The only callers that the rate and the hold apply to; None: they apply to all."""
    share: int | None = None
    """This gateway's share of a limit that all gateways of a fleet have together; None: the limit is its own."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast for a new call."""

    is_free: bool
    wait_s: float
    """Estimated wait, if it waits."""
    has_place: bool
    """True if one more call may wait."""
