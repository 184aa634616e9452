"""Scripted upstreams, and the calls and targets to run against them.

The transcript records sent requests and sleeps in order, so that a test can compare it as a whole.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from llm_guard.outcome import Failure, FailureKind, UpstreamErrorResponse
from llm_guard.proxy.call import Attempt, Call, Exchange, Opened
from llm_guard.proxy.http_client.interfaces import Inbox, Wire
from llm_guard.resilience.capacity.gate import CapacitySettings
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.retry.limits import BudgetSettings, RetryBudget
from llm_guard.resilience.routing.candidates import TimeoutSettings
from llm_guard.routing.deployment import Deployment, Gates, Upstream
from llm_guard.routing.route_table import Route, Target
from tests.fakes.clock import ManualClock, SteppedClock

OK = Opened(200, "OK", (("content-type", "application/json"),), b"{}", None)
SERVER_ERROR = Failure(FailureKind.SERVER_ERROR, "answered 500 (status 500)")
NETWORK_ERROR = Failure(FailureKind.NETWORK, "connecting failed: refused")
UNAVAILABLE = Failure(
    FailureKind.OVERLOADED, "answered 503 (status 503)", answer=UpstreamErrorResponse(503, "", (), b'{"error": "busy"}')
)


@dataclass(frozen=True)
class Slow:
    """An outcome after some seconds."""

    seconds: float
    outcome: Opened | Failure


class Hang:
    """An exchange that never ends."""


Outcome = Opened | Failure | BaseException | Slow | Hang


class Script:
    """Implements `proxy.attempts.upstream_attempt.Opener`: returns the next outcome for each exchange, or raises it if
    it is an exception. An exchange beyond the last one is an error of the test."""

    def __init__(self, *outcomes: Outcome, is_cancelled_asleep: bool = False) -> None:
        """With `is_cancelled_asleep`, every sleep on the script's clock raises CancelledError."""
        self._outcomes = list(outcomes)
        self.transcript: list[str] = []
        self.asked: list[Target] = []
        self.clock = _NotingClock(self.transcript, is_cancelled_asleep)

    async def open(self, call: Call, attempt: Attempt) -> Opened | Failure:
        target = attempt.target
        self.transcript.append(f"asked {target.deployment.label}")
        self.asked.append(target)
        assert self._outcomes, f"not in the script: {self.transcript}"
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Slow):
            self.clock.advance(outcome.seconds)
            outcome = outcome.outcome
        if isinstance(outcome, Hang):
            await asyncio.Event().wait()
            raise AssertionError("the event is never set")
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class _NotingClock(ManualClock):
    def __init__(self, transcript: list[str], is_cancelled_asleep: bool) -> None:
        super().__init__()
        self._transcript = transcript
        self._is_cancelled_asleep = is_cancelled_asleep

    async def sleep(self, seconds: float) -> None:
        self._transcript.append(f"slept {seconds:g}")
        task = asyncio.current_task()
        if self._is_cancelled_asleep and task is not None:
            task.cancel()
        await super().sleep(seconds)


class TimedScript:
    """A `Script` for concurrent calls on one stepped clock: each deployment has its own outcomes, and slow outcomes
    take time on that clock.

    The transcript records which requests were sent and aborted, and when, in seconds from the beginning.
    """

    def __init__(self, **outcomes: list[Outcome]) -> None:
        """Takes outcomes by deployment name, up to `/`."""
        self._outcomes = {name: list(each) for name, each in outcomes.items()}
        self.transcript: list[str] = []
        self.clock = SteppedClock()
        self._began_at = self.clock.now()

    async def open(self, call: Call, attempt: Attempt) -> Opened | Failure:
        label = attempt.target.deployment.label
        self._note(f"asked {label}")
        outcomes = self._outcomes.get(label.partition("/")[0])
        assert outcomes, f"not in the script: {self.transcript}"
        outcome = outcomes.pop(0)
        try:
            if isinstance(outcome, Hang):
                await asyncio.Event().wait()
            if isinstance(outcome, Slow):
                await self.clock.sleep(outcome.seconds)
                outcome = outcome.outcome
        except asyncio.CancelledError:
            self._note(f"broke off {label}")
            raise
        if isinstance(outcome, BaseException):
            raise outcome
        assert isinstance(outcome, Opened | Failure)
        return outcome

    def _note(self, what: str) -> None:
        self.transcript.append(f"{round(self.clock.now() - self._began_at, 6):g} {what}")


class OpenExchange:
    """Implements `proxy.call.Exchange`: a response of which the rest is never read."""

    def __init__(self) -> None:
        self.is_aborted = False
        self.status = 200
        self.reason = "OK"
        self.headers: tuple[tuple[str, str], ...] = ()

    async def read(self) -> bytes:
        return b""

    def abort(self) -> None:
        self.is_aborted = True

    def take_over(self, inbox: Inbox) -> Wire:
        raise AssertionError("nothing was upgraded")


def open_stream() -> Opened:
    """Returns a stream at its first token."""
    exchange: Exchange = OpenExchange()
    return Opened(200, "OK", (("content-type", "text/event-stream"),), b"data: {}\n\n", exchange)


CHOSEN_TIMEOUTS = TimeoutSettings(first_token=30.0, attempt=120.0)
"""Limits as a config sets them. With the default limits, an exchange that times out is retried at most once."""


def new_target(
    label: str = "openai/gpt-4",
    *,
    retry: RetrySettings | None = None,
    breaker: BreakerSettings | None = None,
    api_key: str | None = None,
    model: str | None = None,
    host: Breaker | None = None,
    alias: str = "gpt-4",
    capacity: CapacitySettings | None = None,
    timeouts: TimeoutSettings | None = None,
    weight: float = 1.0,
    group: int = 0,
) -> Target:
    """Builds a deployment on a `host` of its own unless one is given.

    Defaults: waits have no jitter and do not grow with failures (`retry`), calls do not queue (`capacity`), and an open
    breaker lets no early probe through (`breaker`). `model` defaults to the label's; a label without a model is a
    pass-through deployment.
    """
    upstream = Upstream(label.partition("/")[0], "openai", "http://127.0.0.1:1/v1", api_key, "bearer")
    retry = retry or RetrySettings(max_attempts=3, jitter=0.0, adaptive=False)
    model = model or label.partition("/")[2] or None
    budget = RetryBudget(retry.budget, ManualClock().now())
    capacity = capacity or CapacitySettings(pacing=False)
    breaker = breaker or BreakerSettings(early_probes=False)
    deployment = Deployment(label, upstream, model, Breaker(breaker), budget, host or Breaker(breaker), Gates(capacity))
    return Target(
        deployment, alias, model, timeouts or CHOSEN_TIMEOUTS, retry, capacity.queue_timeout, weight=weight, group=group
    )


def new_route(*targets: Target, alias: str = "gpt-4", **facts: Any) -> Route:
    """Builds a route over `targets` with a retry budget of its own that does not run out."""
    plenty = RetryBudget(BudgetSettings(min_per_second=1000.0), ManualClock().now())
    return Route(alias, targets[0].timeouts, targets, plenty, **facts)


def new_call(*targets: Target, deadline_at: float = float("inf"), alias: str = "gpt-4", **facts: Any) -> Call:
    """Builds a call received at the manual clock's start, with a route over `targets` if there are any; `facts` set
    other fields."""
    route = new_route(*targets, alias=alias) if targets else None
    return Call(
        "lg-1", "openai", "POST", "/v1/chat/completions", "", (), 1000.0,
        model="gpt-4", route=route, deadline_at=deadline_at, **facts,
    )  # fmt: skip
