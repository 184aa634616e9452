"""What one attempt holds of others while it runs.

Owns nothing but these facts: who gives leave is `gateway.entrance`, who takes it back `gateway.settle`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llm_guard.api_keys import ApiKey
from llm_guard.policy.breaker import Permit
from llm_guard.policy.callers import Suspect
from llm_guard.policy.gate import Gate
from llm_guard.policy.line import Slot
from llm_guard.policy.transition import BreakerState


@dataclass(slots=True, eq=False)
class Leave:
    """What one attempt holds of others; given back once, whatever became of it (`gateway.settle`)."""

    permit: Permit
    """The deployment's breaker's."""
    host: Permit
    gate: Gate
    slot: Slot
    breaker: BreakerState
    """Its state when it gave the permit."""
    caller: str  # as `gateway.caller` has it
    own_key: str  # digest of the caller's own key, if that is sent to the provider
    suspect: Suspect | None
    """Of a caller that is judged by itself: its breaker gave the permit, unless the deployment's was not closed."""
    advance: Callable[[Gate], None]
    """Lets in whose turn it is: to be called whenever something has changed at the gate."""
    key: ApiKey | None = None  # of the upstream's pool, if it has one
    is_begun: bool = False
    """An answer that lasts has begun: the deployment was seen to serve."""
    is_over: bool = False
