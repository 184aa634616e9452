"""Which of an upstream's keys an attempt is sent with, and which failures give way to another key.

Owns the decision alone. Does not own cooldowns (`policy.bench`), nor whether a key has room (`policy.gate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_guard.outcome import Failure, FailureKind, Scope
from llm_guard.policy.repeat import may_have_executed

_SPENT = "quota_exhausted"


@dataclass(frozen=True, slots=True)
class KeyState:
    """What is known of one key at one instant."""

    has_failed: bool
    """It has given way to another one in this call."""
    rests_until: float
    """The end of its cooldown; 0: it is in none."""
    wait_s: float
    """Until its pace and its limit let a call in; infinite: no room to wait."""
    in_flight: int
    last_use: int
    """The number of its last use among those of all keys."""

    @property
    def is_free(self) -> bool:
        return not self.has_failed and self.rests_until == 0 and self.wait_s == 0


def choose(keys: Sequence[KeyState], *, is_ranked: bool) -> int:
    """The index of the key for the next attempt; `keys` has at least one.

    Keys that have not failed in this call come first, then those in no cooldown, then those that have room. Of equal
    ones the least loaded is taken, and of equally loaded ones the least recently used; where `is_ranked`, the first.
    """

    def order(at: int) -> tuple[bool, float, float, int, int]:
        key = keys[at]
        load = (at, 0) if is_ranked else (key.in_flight, key.last_use)
        return key.has_failed, key.rests_until, key.wait_s, *load

    return min(range(len(keys)), key=order)


def gives_way(failure: Failure, *, is_repeatable: bool) -> bool:
    """Whether another key may serve the call that this one did not: it is refused, its quota is spent, or it is over
    its rate."""
    kind = failure.kind
    is_of_key = kind.scope is Scope.CREDENTIAL or kind.category == _SPENT or kind is FailureKind.RATE_LIMIT
    return is_of_key and (is_repeatable or not may_have_executed(failure))


def is_free_of_charge(failure: Failure) -> bool:
    """Whether the change of keys takes no token of the retry budget. Refusals cost the provider nothing, and each key
    is refused once per call; calls over a rate are load, which the budget bounds."""
    return failure.kind is not FailureKind.RATE_LIMIT
