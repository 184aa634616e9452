"""Costs and benefits of retries: success against upstream requests per call, by share of failing attempts.

Simulates in virtual time with the real `resilience.retry.backoff` and `resilience.retry.limits`, and two throttles of
others for comparison.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from llm_guard.outcome import FailureKind
from llm_guard.resilience.retry.backoff import RetrySettings, delay_s
from llm_guard.resilience.retry.limits import BudgetSettings, RetryBudget

FAILURE_RATES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
CALLS_PER_S = 100.0
RETRY = RetrySettings(max_attempts=4)


@dataclass(frozen=True, slots=True)
class Point:
    scheme: str
    failure_rate: float
    """Share of attempts that fail, each independently; 0 to 1."""
    success: float
    """Share of calls, 0 to 1."""
    requests_per_call: float
    """Upstream requests, the first attempt included."""


class Throttle(Protocol):
    """Decides whether a call may be retried."""

    def begin(self, now: float, /) -> None:
        """A call began."""

    def succeed(self, retries: int, now: float, /) -> None:
        """An attempt succeeded, after `retries` retries of its call."""

    def fail(self, retries: int, now: float, /) -> None:
        """An attempt failed, after `retries` retries of its call."""

    def try_retry(self, now: float, /) -> bool:
        """Takes permission for one retry; False if there is none."""


def run(seed: int = 7, calls: int = 20_000) -> list[Point]:
    """Measures every scheme at every failure rate, with four attempts at 100 calls/s."""
    return [
        measure(scheme, make(), rate, seed=seed, calls=calls)
        for scheme, make in SCHEMES.items()
        for rate in FAILURE_RATES
    ]


def measure(
    scheme: str,
    throttle: Throttle,
    failure_rate: float,
    *,
    seed: int,
    calls: int,
    calls_per_s: float = CALLS_PER_S,
    max_attempts: int = RETRY.max_attempts,
) -> Point:
    """Measures one point. Attempts take no time, waits do; retries due between two calls are sent before the second."""
    dice = random.Random(seed)
    made = served = 0
    waiting: list[tuple[float, int, int, float]] = []  # due time, call, earlier retries, wait

    def attempt(now: float, call: int, retries: int, waited_s: float) -> None:
        nonlocal made, served
        made += 1
        if dice.random() >= failure_rate:
            served += 1
            throttle.succeed(retries, now)
            return
        throttle.fail(retries, now)
        if retries + 1 < max_attempts and throttle.try_retry(now):
            wait_s = _wait_s(retries + 1, waited_s if retries else None, dice.random())
            heapq.heappush(waiting, (now + wait_s, call, retries + 1, wait_s))

    for call in range(calls):
        now = call / calls_per_s
        while waiting and waiting[0][0] <= now:
            attempt(*heapq.heappop(waiting))
        throttle.begin(now)
        attempt(now, call, 0, 0.0)
    while waiting:
        attempt(*heapq.heappop(waiting))
    return Point(scheme, failure_rate, served / calls, made / calls)


def _wait_s(retry: int, previous_s: float | None, u: float) -> float:
    kind = FailureKind.SERVER_ERROR
    return delay_s(RETRY, retry=retry, kind=kind, retry_after_s=None, previous_s=previous_s, u=u)


class NoBudget:
    """Grants every retry."""

    def begin(self, _now: float, /) -> None:
        pass

    def succeed(self, _retries: int, _now: float, /) -> None:
        pass

    def fail(self, _retries: int, _now: float, /) -> None:
        pass

    def try_retry(self, _now: float, /) -> bool:
        return True


class OwnBudget:
    """The gateway's `RetryBudget`."""

    def __init__(self, settings: BudgetSettings) -> None:
        self._budget = RetryBudget(settings, 0.0)

    def begin(self, now: float, /) -> None:
        self._budget.deposit(now)

    def succeed(self, retries: int, now: float, /) -> None:
        self._budget.note(False, now, is_retry=retries > 0)

    def fail(self, retries: int, now: float, /) -> None:
        self._budget.note(True, now, is_retry=retries > 0)

    def try_retry(self, now: float, /) -> bool:
        return self._budget.try_spend(now)


class AwsQuota(NoBudget):
    """The retry quota of the AWS SDKs' standard mode (botocore, `retries/standard.py` and `quota.py`).

    A retry costs 5 of 500 (10 after a timeout; in the newer mode 14, or 5 after throttling). A call that succeeds
    returns the cost of its last retry, or 1 if it had none."""

    CAPACITY = 500

    def __init__(self, cost: int = 5) -> None:
        self._cost = cost
        self._left = self.CAPACITY

    def succeed(self, retries: int, _now: float, /) -> None:
        self._left = min(self.CAPACITY, self._left + (self._cost if retries else 1))

    def try_retry(self, _now: float, /) -> bool:
        if self._cost > self._left:
            return False
        self._left -= self._cost
        return True


class GrpcThrottle(NoBudget):
    """gRPC's retry throttling (proposal A6): a failure takes 1 of `max_tokens`, a success adds `token_ratio`, and
    nothing is retried while half of them or fewer are left."""

    def __init__(self, max_tokens: float = 10, token_ratio: float = 0.1) -> None:
        self._max_tokens = max_tokens
        self._token_ratio = token_ratio
        self._tokens = max_tokens

    def succeed(self, _retries: int, _now: float, /) -> None:
        self._tokens = min(self._max_tokens, self._tokens + self._token_ratio)

    def fail(self, _retries: int, _now: float, /) -> None:
        self._tokens = max(0.0, self._tokens - 1)

    def try_retry(self, _now: float, /) -> bool:
        return self._tokens > self._max_tokens / 2


SCHEMES: dict[str, Callable[[], Throttle]] = {
    "no budget": NoBudget,
    "fixed 20 %": lambda: OwnBudget(BudgetSettings(adaptive=False)),
    "AWS quota": AwsQuota,
    "gRPC throttle": GrpcThrottle,
    "adaptive": lambda: OwnBudget(BudgetSettings()),
}
