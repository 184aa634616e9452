"""Requests that a breaker admits when everything fails, when some calls fail by chance, and when a provider is
overloaded.

Also measures how retries of several layers multiply. The breaker is the gateway's own; the naive one beside it opens
when half of the last n calls failed.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass

from benchmarks.storm.row import Row, promised, reference
from benchmarks.storm.simulate import Timeline
from llm_guard.outcome import FailureKind, Signal
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings, Permit
from llm_guard.resilience.circuit_breaker.history import Transition
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.retry.limits import RetryBudget

CALLS = 100_000
NAIVE_WINDOWS = (10, 20, 100)
FAILURE_RATES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.45)
CALLS_PER_S = (1, 10, 100)
_EXPECTED_TRIPS = {10: {0.1: 43, 0.2: 834, 0.3: 2868}, 20: {0.1: 1, 0.2: 62, 0.3: 698}, 100: {0.1: 0, 0.2: 0, 0.3: 1}}
_WINDOWS_PER_TRIP = 500
_SDK_ATTEMPTS, _GATEWAY_ATTEMPTS = 3, 4


@dataclass(frozen=True, slots=True)
class Trips:
    """How often a breaker opened in 100,000 calls that failed independently at `failure_rate`."""

    name: str
    is_ours: bool
    failure_rate: float
    trips: int


def false_opens(seed: int = 7, calls: int = CALLS, rates: tuple[float, ...] = FAILURE_RATES) -> list[Trips]:
    """A12, with the same random draws: naive windows, and the gateway's breaker at three call rates."""
    found = []
    for rate in rates:
        dice = random.Random(seed)
        failures = [dice.random() < rate for _ in range(calls)]
        found += [Trips(naive(n), False, rate, _naive_trips(failures, n)) for n in NAIVE_WINDOWS]
        found += [Trips(ours(per_s), True, rate, _our_trips(failures, per_s)) for per_s in CALLS_PER_S]
    return found


def naive(window: int) -> str:
    """Name in results."""
    return f"half of the last {window}"


def ours(calls_per_s: int) -> str:
    """Name in results."""
    return f"llm_guard at {calls_per_s}/s"


def rows(found: list[Trips]) -> list[Row]:
    """Rows A05, A11, A12, A13, A17."""
    return [*refusing(), *load_protection(), *_false_open_rows(found), rate_limited(), *stacked()]


def load_protection() -> list[Row]:
    """A11: 100 calls a second for 60 s, all fail after 50 ms.

    The scenario counts 10 failures until it opens. At 100/s, that many in a row are no outage: with 60 % random
    failures they occur every few seconds. 20 are one, and 5 more calls are in flight by then."""
    fixed = _requests(
        BreakerSettings(open_for=5.0, max_open_for=5.0, min_calls=10, half_open_calls=3, early_probes=False)
    )
    default = _requests(BreakerSettings())
    return [
        promised("A11", "100 % failure, 100/s, 60 s; no early probes, open_for 5 s, 3 probes: requests of 6,000",
                 "11 probes at least, ≤ 61 requests (20 + 5 + 36 probes)", f"{fixed}", 11 <= fixed <= 61),
        promised("A11", "the same, defaults: early probes, 1 at a time",
                 "≤ 115 requests (20 + 5 + 1.5 probes a second)", f"{default}", default <= 115),
    ]  # fmt: skip


def refusing() -> list[Row]:
    """A05: nothing is admitted for open_for, then exactly the allowed number of probes."""
    breaker = Breaker(BreakerSettings(open_for=5.0, half_open_calls=3, early_probes=False))
    while breaker.snapshot(0.0).state == "closed":
        _call(breaker, Signal.UNHEALTHY, 0.0)  # twenty at the same time
    opening_s = breaker.retry_after_s(0.0)
    early = [opening_s * 0.98 * place / 1000 for place in range(1000)]
    passed = sum(breaker.try_acquire(now) is not None for now in early)
    is_exact = all(abs(breaker.retry_after_s(now) - (opening_s - now)) < 1e-6 for now in early)
    probes = sum(breaker.try_acquire(opening_s + 0.01) is not None for _ in range(50))
    return [
        promised("A05", "open for 5 s: of 1,000 calls pass", "0, each told the seconds left",
                 f"{passed}, {'each' if is_exact else 'not each'} told", passed == 0 and is_exact),
        promised("A05", "then, of 50 at once with 3 probes: pass", "3", f"{probes}", probes == 3),
    ]  # fmt: skip


def rate_limited() -> Row:
    """A13: 30 s of 429, 100 a second."""
    breaker = Breaker(BreakerSettings())
    for number in range(3000):
        _call(breaker, FailureKind.RATE_LIMIT.signal, number / 100)
    state = breaker.snapshot(30.0).state
    return promised("A13", "30 s of nothing but 429", "closed: the deployment rests, its breaker does not open",
                    state.replace("_", "-"), state == "closed")  # fmt: skip


def stacked() -> list[Row]:
    """A17: 1,000 clients of a dead provider, each with an SDK that tries three times, before a gateway that tries four
    times."""
    clients = 1000
    alone = _stacked(clients, sdk_attempts=1, has_budget=False) / clients
    silent = _stacked(clients, sdk_attempts=_SDK_ATTEMPTS, has_budget=False) / clients
    guarded = _stacked(clients, sdk_attempts=1, has_budget=True) / clients
    return [
        reference("A17", "requests per call, 3 retries", 4, alone, 0.0, "×"),
        reference("A17", "requests per call, an SDK's 2 retries on top", 12, silent, 0.0, "×"),
        promised("A17", "with x-should-retry: false, which the SDKs obey", "4×", f"{alone:.0f}×", alone == 4),
        promised("A17", "and with our budget, all in one second", "≤ 1.31×", f"{guarded:.2f}×", guarded <= 1.31),
    ]


def _false_open_rows(found: list[Trips]) -> list[Row]:
    by = {(each.name, each.failure_rate): each.trips for each in found}
    rates = (0.1, 0.2, 0.3)
    lines = []
    for window, expected in _EXPECTED_TRIPS.items():
        measured = [by[naive(window), rate] for rate in rates]
        agrees = all(
            abs(m - expected[rate]) <= 8 + 0.1 * expected[rate] for m, rate in zip(measured, rates, strict=True)
        )
        lines.append(
            Row("A12", f"opens by chance in 100,000 calls at 10 / 20 / 30 % failures: {naive(window)}",
                " / ".join(str(expected[rate]) for rate in rates), " / ".join(map(str, measured)),
                "reference" if agrees else "broken")
        )  # fmt: skip
    for per_s in CALLS_PER_S:
        measured = [by[ours(per_s), rate] for rate in (*rates, 0.4)]
        bound = int(CALLS / per_s / BreakerSettings().window / _WINDOWS_PER_TRIP)
        lines.append(
            promised("A12", f"the same, and at 40 %: {ours(per_s)}", f"≤ {bound} each: one in 500 windows of 60 s",
                     " / ".join(map(str, measured)), max(measured) <= bound)
        )  # fmt: skip
    return lines


def _naive_trips(failures: list[bool], window: int) -> int:
    """Openings of the naive breaker, which judges a full window, and starts with an empty one after it has opened."""
    last: deque[bool] = deque(maxlen=window)
    failed = trips = 0
    for is_failure in failures:
        if len(last) == window:
            failed -= last[0]
        last.append(is_failure)
        failed += is_failure
        if len(last) == window and failed * 2 >= window:
            trips += 1
            failed = 0
            last.clear()
    return trips


def _our_trips(failures: list[bool], calls_per_s: float) -> int:
    """Openings of the gateway's breaker. After each it is replaced by a new one, so that all calls are made and all
    draws count."""
    breaker = Breaker(BreakerSettings())
    trips, now = 0, 0.0
    for is_failure in failures:
        now += 1 / calls_per_s
        if _call(breaker, Signal.UNHEALTHY if is_failure else Signal.HEALTHY, now) is not None:
            trips += 1
            breaker = Breaker(BreakerSettings())
    return trips


def _requests(settings: BreakerSettings) -> int:
    timeline, breaker, sent = Timeline(), Breaker(settings), 0

    def fail(permit: Permit) -> None:
        breaker.settle(permit, Signal.UNHEALTHY, timeline.now)

    def call() -> None:
        nonlocal sent
        permit = breaker.try_acquire(timeline.now)
        if permit is not None:
            sent += 1
            timeline.after(0.05, lambda: fail(permit))

    for number in range(6000):
        timeline.at(number / 100, call)
    timeline.run()
    return sent


def _stacked(clients: int, sdk_attempts: int, *, has_budget: bool) -> int:
    budget = RetryBudget(RetrySettings().budget, 0.0) if has_budget else None
    requests: Counter[int] = Counter()
    for client in range(clients):
        now = client / clients
        for _ in range(sdk_attempts):
            requests[client] += _through_the_gateway(budget, now)
    return requests.total()


def _through_the_gateway(budget: RetryBudget | None, now: float) -> int:
    if budget is not None:
        budget.deposit(now)
    sent = 0
    while sent < _GATEWAY_ATTEMPTS and (sent == 0 or budget is None or budget.try_spend(now)):
        sent += 1
        if budget is not None:
            budget.recent.note(is_failure=True, now=now)
    return sent


def _call(breaker: Breaker, signal: Signal, now: float) -> Transition | None:
    permit = breaker.try_acquire(now)
    return None if permit is None else breaker.settle(permit, signal, now)
