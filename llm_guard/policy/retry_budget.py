"""How many retries a stream of calls may cost, so that an outage is not multiplied by retrying.

Owns the tokens. Does not own who retries, nor when (`policy.next_step`, `policy.backoff`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llm_guard.policy.units import Rate, Ratio

MEMORY_S = 10.0
"""How long saved-up tokens last, as in finagle's `RetryBudget` (ttl 10 s)."""

# A refill computed in floats may end a hair below the whole token that it is.
_ONE = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """`ratio`: retries per call, 0 to 1. `min_per_second`: retries a second that are free even so, >= 0."""

    ratio: Ratio = 0.2
    min_per_second: Rate = 10.0


@dataclass(frozen=True, slots=True)
class RetryBudgetSnapshot:
    tokens: float
    """Retries that could be made at once."""
    calls: int
    spent: int
    """Counts since the start."""


class RetryBudget:
    """A token bucket after finagle's `RetryBudget`: a call brings `ratio` tokens, a retry takes one.

    `min_per_second` is a floor, not a surcharge: it flows when calls bring less than that, so 10,000 failing
    calls cost 2,000 retries and the reserve, however long they take. The floor fills up to a reserve of ten
    seconds of itself; what calls bring beyond the reserve fades with a time constant of ten seconds. Finagle
    keeps ten slots and drops the oldest; the fading needs one number and refills evenly. `settings` may be
    replaced at any moment.
    """

    __slots__ = ("_calls", "_floor_since_call", "_spent", "_tokens", "_updated_at", "settings")

    def __init__(self, settings: BudgetSettings, now: float) -> None:
        self.settings = settings
        self._tokens = self._reserve()
        self._updated_at = now
        self._floor_since_call = 0.0
        self._calls = 0
        self._spent = 0

    def deposit(self, now: float) -> None:
        """A call began."""
        self._update(now)
        self._tokens += max(0.0, self.settings.ratio - self._floor_since_call)
        self._floor_since_call = 0.0
        self._calls += 1

    def can_spend(self, now: float) -> bool:
        """Whether `try_spend` would succeed."""
        self._update(now)
        return self._tokens >= _ONE

    def try_spend(self, now: float) -> bool:
        """Takes the token of one retry, if there is one."""
        if not self.can_spend(now):
            return False
        self._tokens = max(0.0, self._tokens - 1.0)
        self._spent += 1
        return True

    def snapshot(self, now: float) -> RetryBudgetSnapshot:
        self._update(now)
        return RetryBudgetSnapshot(self._tokens, self._calls, self._spent)

    def _reserve(self) -> float:
        """A floor below one retry in ten seconds still saves up for a whole one."""
        floor = self.settings.min_per_second
        return max(1.0, floor * MEMORY_S) if floor > 0 else 0.0

    def _update(self, now: float) -> None:
        passed_s = now - self._updated_at
        self._updated_at = now
        above = self._tokens - self._reserve()
        if above > 0:
            self._tokens -= above * -math.expm1(-passed_s / MEMORY_S)
        else:
            refill = min(-above, self.settings.min_per_second * passed_s)
            self._tokens += refill
            self._floor_since_call += refill
