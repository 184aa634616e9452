"""Choice among an upstream's keys for an attempt, and which failures lead to another key.

Cooldowns are in `resilience.circuit_breaker.cooldown`, the room of a key in `resilience.capacity.gate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_guard.outcome import Failure, FailureKind, Scope
from llm_guard.resilience.retry.limits import may_have_executed

_SPENT = "quota_exhausted"


@dataclass(frozen=True, slots=True)
class KeyState:
    """State of one key at one instant."""

    has_failed: bool
    """True if the call has already changed from this key to another."""
    rests_until: float
    """End of its cooldown; 0: it is in none."""
    wait_s: float
    """Seconds until its pace and its limit let a call in; infinite: no room to wait."""
    in_flight: int
    last_use: int
    """Sequence number of its last use, among the uses of all keys."""

    @property
    def is_free(self) -> bool:
        return not self.has_failed and self.rests_until == 0 and self.wait_s == 0


def choose(keys: Sequence[KeyState], *, is_ranked: bool) -> int:
    """Returns the index of the key for the next attempt; `keys` has at least one.

    Keys that have not failed in this call come first, then those in no cooldown, then those that have room. Among equal
    ones the least loaded is chosen, and among equally loaded ones the least recently used; if `is_ranked`, the first.
    """

    def order(at: int) -> tuple[bool, float, float, int, int]:
        key = keys[at]
        load = (at, 0) if is_ranked else (key.in_flight, key.last_use)
        return key.has_failed, key.rests_until, key.wait_s, *load

    return min(range(len(keys)), key=order)


def gives_way(failure: Failure, *, is_repeatable: bool) -> bool:
    """Returns whether another key may serve the call: this one is refused, its quota is spent, or it is over its
    rate."""
    kind = failure.kind
    is_of_key = kind.scope is Scope.CREDENTIAL or kind.category == _SPENT or kind is FailureKind.RATE_LIMIT
    return is_of_key and (is_repeatable or not may_have_executed(failure))


def is_free_of_charge(failure: Failure) -> bool:
    """Returns whether the change of keys takes no token of the retry budget. Refusals cost the provider nothing, and
    each key is refused once per call; calls over a rate are load, which the budget bounds."""
    return failure.kind is not FailureKind.RATE_LIMIT
