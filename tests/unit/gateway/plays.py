"""A call over scripted upstreams, played through the attempt loop, and what breakers have counted of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llm_guard.call import Call, GaveUp, Served
from llm_guard.gateway.attempt_loop import attempt
from llm_guard.outcome import Failure, FailureKind, Signal
from llm_guard.policy.bench import Bench
from llm_guard.policy.breaker import Breaker, BreakerSettings
from llm_guard.routes import Target
from tests.fakes.script import Outcome, Script, new_call, new_target


def limited(asked_s: float) -> Failure:
    return Failure(FailureKind.RATE_LIMIT, "answered 429 (status 429)", asked_s)


@dataclass
class Play:
    """One call over these targets, its upstreams answering by script; draws are 0."""

    targets: tuple[Target, ...]
    script: Script
    call: Call = field(init=False)
    deadline_at: float = float("inf")
    bench: Bench = field(default_factory=Bench)
    facts: dict[str, Any] = field(default_factory=dict)
    """Other fields of the call."""

    def __post_init__(self) -> None:
        self.call = new_call(*self.targets, deadline_at=self.deadline_at, **self.facts)

    async def run(self) -> Served | GaveUp:
        return await attempt(self.call, self.targets, self.script, self.bench, self.script.clock, lambda: 0.0)

    async def gives_up(self) -> GaveUp:
        result = await self.run()
        assert isinstance(result, GaveUp)
        return result

    async def serves(self) -> Served:
        result = await self.run()
        assert isinstance(result, Served)
        return result


def play(
    *outcomes: Outcome,
    targets: tuple[Target, ...] | None = None,
    deadline_at: float = float("inf"),
    bench: Bench | None = None,
    **facts: Any,
) -> Play:
    return Play(targets or (new_target("a/x"),), Script(*outcomes), deadline_at, bench or Bench(), facts)


def two(breaker: BreakerSettings | None = None) -> tuple[Target, Target]:
    return new_target("a/x", breaker=breaker), new_target("b/y", breaker=breaker)


def open_breaker(target: Target, now: float = 1000.0) -> None:
    """Fails its breaker until it refuses."""
    open_this(target.deployment.breaker, now)


def open_this(breaker: Breaker, now: float = 1000.0) -> None:
    for _ in range(breaker.settings.consecutive_failures):
        permit = breaker.try_acquire(now)
        assert permit is not None
        breaker.settle(permit, Signal.UNHEALTHY, now)
    assert breaker.try_acquire(now) is None


def evidence(target: Target, now: float = 1000.0) -> tuple[int, int]:
    """(calls, failures) that the breaker has counted."""
    seen = target.deployment.breaker.snapshot(now)
    return seen.calls, seen.failures
