"""Helpers that play calls through the attempt loop over scripted upstreams, and read what the breakers have counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from llm_guard.outcome import Exhausted, Failure, FailureKind, Signal
from llm_guard.proxy.attempts.admission import settle
from llm_guard.proxy.attempts.attempt_loop import AttemptLoop
from llm_guard.proxy.attempts.candidate_selection import CandidateSelector
from llm_guard.proxy.call import Call, Delivered
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings
from llm_guard.resilience.circuit_breaker.cooldown import Cooldowns
from llm_guard.resilience.routing.candidates import ENOUGH, Latency
from llm_guard.routing.route_table import Route, Target
from tests.fakes.script import Outcome, Script, TimedScript, new_call, new_route, new_target


def limited(asked_s: float) -> Failure:
    return Failure(FailureKind.RATE_LIMIT, "answered 429 (status 429)", asked_s)


@dataclass
class Play:
    """One call to these targets. The upstreams answer by script, and every random draw is 0."""

    targets: tuple[Target, ...]
    script: Script
    call: Call = field(init=False)
    deadline_at: float = float("inf")
    cooldowns: Cooldowns = field(default_factory=Cooldowns)
    facts: dict[str, Any] = field(default_factory=dict)
    """Further fields of the call."""
    loop: AttemptLoop = field(init=False)
    selector: CandidateSelector = field(init=False)

    def __post_init__(self) -> None:
        self.call = new_call(*self.targets, deadline_at=self.deadline_at, **self.facts)

    async def run(self) -> Delivered | Exhausted:
        self.loop = AttemptLoop(self.script, self.cooldowns, self.script.clock, lambda: 0.0)
        assert self.call.route is not None
        self.selector = self.loop.begin(self.call, self.call.route)
        return await self.loop.next_response(self.selector)

    async def gives_up(self) -> Exhausted:
        result = await self.run()
        assert isinstance(result, Exhausted)
        return result

    async def serves(self) -> Delivered:
        result = await self.run()
        assert isinstance(result, Delivered)
        return result


def play(
    *outcomes: Outcome,
    targets: tuple[Target, ...] | None = None,
    deadline_at: float = float("inf"),
    cooldowns: Cooldowns | None = None,
    **facts: Any,
) -> Play:
    return Play(targets or (new_target("a/x"),), Script(*outcomes), deadline_at, cooldowns or Cooldowns(), facts)


class Stage:
    """Concurrent calls of one route. The upstreams answer by a timed script, and every random draw is 0."""

    def __init__(
        self,
        *targets: Target,
        draw: Callable[[], float] = lambda: 0.0,
        route: Route | None = None,
        **outcomes: list[Outcome],
    ) -> None:
        """Takes `outcomes` as `TimedScript` does."""
        self.targets = targets
        self.route = route or new_route(*targets)
        self.script = TimedScript(**outcomes)
        self.clock = self.script.clock
        self.cooldowns = Cooldowns()
        self.loop = AttemptLoop(self.script, self.cooldowns, self.clock, draw)
        self._running: dict[str, asyncio.Task[Delivered | Exhausted]] = {}

    async def start(self, **facts: Any) -> Call:
        """Starts a call now and runs it until it waits for something."""
        call = new_call(**facts)
        call.id, call.route, call.started_at = f"lg-{len(self._running)}", self.route, self.clock.now()
        self._running[call.id] = asyncio.ensure_future(self.loop.next_response(self.loop.begin(call, self.route)))
        await self.clock.pass_s(0.0)
        return call

    async def pass_s(self, seconds: float) -> None:
        await self.clock.pass_s(seconds)

    def cancel(self, call: Call) -> None:
        """Cancels the call as a disconnecting client does. The call notices when it runs next."""
        self._running[call.id].cancel()

    def is_running(self, call: Call) -> bool:
        return not self._running[call.id].done()

    def was_cancelled(self, call: Call) -> bool:
        return self._running[call.id].cancelled()

    def served(self, call: Call) -> Delivered:
        result = self._running[call.id].result()
        assert isinstance(result, Delivered)
        return result

    def gave_up(self, call: Call) -> Exhausted:
        result = self._running[call.id].result()
        assert isinstance(result, Exhausted)
        return result

    def end_streams(self) -> None:
        """Ends the relays of all responses that were served."""
        for task in self._running.values():
            result = task.result() if task.done() and not task.cancelled() else None
            if isinstance(result, Delivered):
                settle(result.attempt, result.lease, Signal.HEALTHY, self.clock)

    def assert_nothing_is_held(self) -> None:
        """Checks that no slot, queue place, breaker lease or alarm is held."""
        now = self.clock.now()
        for target in self.targets:
            deployment = target.deployment
            assert deployment.gates.in_flight == 0
            for gate in deployment.gates.all():
                seen = gate.snapshot(now)
                assert (seen.in_flight, dict(seen.waiting)) == (0, {})
            assert (deployment.breaker.snapshot(now).leases, deployment.host.snapshot(now).leases) == (0, 0)
        assert [alarm.at for alarm in self.clock.alarms if not alarm.is_cancelled and not alarm.has_rung] == []


def learn(latency: Latency, seconds: float, now: float = 1000.0, count: int = ENOUGH) -> None:
    """Notes `count` exchanges that took this long."""
    for _ in range(count):
        latency.note(seconds, now)


def two(breaker: BreakerSettings | None = None) -> tuple[Target, Target]:
    return new_target("a/x", breaker=breaker), new_target("b/y", breaker=breaker)


def open_breaker(target: Target, now: float = 1000.0) -> None:
    """Fails the target's breaker until it opens."""
    open_this(target.deployment.breaker, now)


def open_this(breaker: Breaker, now: float = 1000.0) -> None:
    while (permit := breaker.try_acquire(now)) is not None:
        breaker.settle(permit, Signal.UNHEALTHY, now)


def skipped(this: Play) -> list[str]:
    """Returns the deployments that were skipped."""
    return [each.deployment for each in this.call.skipped]


def evidence(target: Target, now: float = 1000.0) -> tuple[int, int]:
    """Returns (calls, failures) as counted by the breaker."""
    seen = target.deployment.breaker.snapshot(now)
    return seen.calls, seen.failures
