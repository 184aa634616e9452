"""The lease that an attempt holds while it runs: granted and released by
`proxy.attempts.admission`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llm_guard.resilience.capacity.fair_queue import Slot
from llm_guard.resilience.capacity.gate import Gate
from llm_guard.resilience.circuit_breaker.breaker import Permit
from llm_guard.resilience.circuit_breaker.callers import Suspect
from llm_guard.resilience.circuit_breaker.history import BreakerState
from llm_guard.routing.api_keys import ApiKey


@dataclass(slots=True, eq=False)
class Lease:
    """An attempt's breaker permits and its slot at the gate; released exactly once, however the attempt ends."""

    permit: Permit
    """Permit of the deployment's breaker."""
    host: Permit
    gate: Gate
    slot: Slot
    breaker: BreakerState
    """State of the breaker when it gave the permit."""
    caller: str  # as identified by `proxy.caller_identity`
    own_key: str  # digest of the caller's own key, if that is sent to the provider
    suspect: Suspect | None
    """A caller that is judged separately: its breaker gave the permit, unless the deployment's was not closed."""
    notify_waiters: Callable[[Gate], None]
    """Admits waiting calls; called whenever something has changed at the gate."""
    key: ApiKey | None = None  # from the upstream's key pool, if it has one
    is_begun: bool = False
    """True once a long response has begun: the deployment has been counted as healthy."""
    is_over: bool = False
