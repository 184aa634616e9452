"""The dry run of a call predicts where the call goes, and changes no state.

Three deployments are in random states; first a dry run, then the same call for real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_guard.outcome import Failure, FailureKind, Signal
from llm_guard.proxy.attempts.admission import AdmissionControl, AtCapacity, credential_of, gate_of
from llm_guard.proxy.attempts.candidate_selection import CandidateSelector
from llm_guard.proxy.call import Call
from llm_guard.proxy.dry_run import PredictedCandidate, obstacle_of, predict
from llm_guard.resilience.capacity.gate import CapacitySettings, Gate
from llm_guard.resilience.capacity.rate_limit_headers import RateHint, RateLimitWindow
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings
from llm_guard.resilience.circuit_breaker.cooldown import Cooldowns, deployment_key
from llm_guard.resilience.routing.candidates import Balance
from llm_guard.routing.deployment import Deployment, MaintenanceHold
from llm_guard.routing.lease import Lease
from llm_guard.routing.route_table import Target
from tests.effort import repeated
from tests.fakes.clock import ManualClock
from tests.fakes.script import new_call, new_route, new_target

REFUSED_KEY = Failure(FailureKind.AUTH, "answered 401")
SOON = Failure(FailureKind.RATE_LIMIT, "answered 429", 20.0)
LATER = replace(SOON, retry_after_s=40.0)
NEARLY_USED_UP = RateHint((RateLimitWindow("requests", is_tokens=False, limit=100, remaining=1, refill_per_s=0.5),))
BREAKER = BreakerSettings(consecutive_failures=2, early_probes=False)
HOLDS = {
    "": None,
    "drained": MaintenanceHold(kind="drained", reason="why", who="who", since=0.0, until=None),
    "cordoned": MaintenanceHold(kind="cordoned", reason="why", who="who", since=0.0, until=1060.0),
}  # fmt: skip


@dataclass(frozen=True)
class State:
    """State of one deployment."""

    concurrency: int | None
    queue: int
    queue_wait: float
    breaker: str
    host: str
    in_flight: int
    waiting: tuple[int, ...]
    rest: str
    hold: str
    held_s: float
    pace: str


STATES = st.builds(
    State,
    concurrency=st.sampled_from([None, None, 1, 2]),
    queue=st.integers(1, 2),
    queue_wait=st.sampled_from([0.1, 1.5, 30.0]),
    breaker=st.sampled_from(["closed", "closed", "open", "ripe", "probing", "forced_open"]),
    host=st.sampled_from(["closed", "closed", "closed", "open"]),
    in_flight=st.integers(0, 3),
    waiting=st.lists(st.integers(0, 2), max_size=3).map(tuple),
    rest=st.sampled_from(["", "", "", "credential", "soon", "later"]),
    hold=st.sampled_from(["", "", "", "drained", "cordoned"]),
    held_s=st.sampled_from([0.0, 0.0, 3.0]),
    pace=st.sampled_from(["", "", "hinted", "learned"]),
)


class World:
    """A route over deployments in these states."""

    def __init__(self, states: list[State], balance: Balance, priority: int) -> None:
        self.clock = ManualClock()
        self.cooldowns = Cooldowns()
        self.targets = [self._target(f"u{at}/m", state) for at, state in enumerate(states)]
        self.route = replace(new_route(*self.targets), balance=balance)
        self.call = new_call(*self.targets)
        self.call.route = self.route
        self.call.priority = priority
        self.call.deadline_at = self.clock.now() + 20.0
        for target, state in zip(self.targets, states, strict=True):
            self._fill(target, state)
        self.clock.advance(0.05)

    def _target(self, label: str, state: State) -> Target:
        capacity = CapacitySettings(
            concurrency=state.concurrency, max_queue=state.queue, queue_timeout=state.queue_wait
        )
        return new_target(label, api_key="k", breaker=BREAKER, capacity=capacity)

    def _fill(self, target: Target, state: State) -> None:
        now, deployment = self.clock.now(), target.deployment
        gate = gate_of(self.call, target, None, now - 10.0)
        if state.pace == "learned":
            learn_pace(gate, now)
        for _ in range(state.in_flight):
            gate.try_enter(now)
        for priority in state.waiting:
            gate.enqueue(priority, lambda: None)
        if state.pace == "hinted":
            gate.note_hint(NEARLY_USED_UP, now, now)
            gate.try_enter(now)
        if state.held_s:
            gate.pause_until(now + state.held_s)
        deployment.hold = HOLDS[state.hold]
        self._break(deployment, state, now)
        self._rest(target, state, now)

    def _break(self, deployment: Deployment, state: State, now: float) -> None:
        began_at = now - (100.0 if state.breaker in ("ripe", "probing") else 0.0)
        if state.breaker == "forced_open":
            deployment.breaker.force("forced_open", now)
        elif state.breaker != "closed":
            open_breaker(deployment.breaker, began_at)
        if state.breaker == "probing":
            deployment.breaker.try_acquire(now)
        if state.host == "open":
            open_breaker(deployment.host, now)

    def _rest(self, target: Target, state: State, now: float) -> None:
        credential = credential_of(self.call, target, None)
        if state.rest == "credential":
            self.cooldowns.note_refusal(credential, "m", REFUSED_KEY, now)
            self.cooldowns.note_refusal(credential, "m", REFUSED_KEY, now)
        elif state.rest:
            rest = SOON if state.rest == "soon" else LATER
            self.cooldowns.note_wait(deployment_key(credential, "m"), rest, 60.0, now)

    def look(self, draw: Callable[[], float]) -> list[PredictedCandidate]:
        return predict(self.call, self.route, self.cooldowns, self.clock, draw)

    def snapshots(self) -> object:
        now = self.clock.now()
        return (
            [
                (
                    target.deployment.breaker.snapshot(now),
                    target.deployment.host.snapshot(now),
                    target.deployment.budget.snapshot(now),
                    target.deployment.gates.in_flight,
                    [(gate, gate.snapshot(now)) for gate in target.deployment.gates.all()],
                    target.deployment.latency.snapshot(now),
                )
                for target in self.targets
            ],
            self.cooldowns.snapshot(now),
            list(self.cooldowns._entries),
            self.route.budget.snapshot(now),
        )


def learn_pace(gate: Gate, now: float) -> None:
    """Answers every request with a 429 for the five seconds before `now`."""
    for tenth in range(50):
        at = now - 5.0 + tenth / 10
        if (slot := gate.try_enter(at)) is not None:
            gate.exit(slot, at, "rate_limited", None)


def open_breaker(breaker: Breaker, at: float) -> None:
    for _ in range(2):
        permit = breaker.try_acquire(at)
        assert permit is not None
        breaker.settle(permit, Signal.UNHEALTHY, at)


WORLDS = st.builds(
    World,
    st.lists(STATES, min_size=1, max_size=3),
    balance=st.sampled_from(["order", "weighted", "least_loaded"]),
    priority=st.integers(0, 2),
)


@settings(max_examples=repeated(300))
@given(WORLDS)
def test_dry_run_changes_nothing(world: World) -> None:
    before = world.snapshots()
    world.look(lambda: 0.3)
    assert world.snapshots() == before


@settings(max_examples=repeated(300))
@given(WORLDS, st.sampled_from([0.0, 5.0, 30.0]))
def test_obstacle_is_the_one_that_the_entrance_finds(world: World, hint_patience_s: float) -> None:
    target = world.targets[0]
    foreseen = obstacle_of(world.call, target, world.cooldowns, world.clock.now(), hint_patience_s)
    found = AdmissionControl(world.cooldowns, world.clock).try_enter(
        world.call, target, hint_patience_s=hint_patience_s
    )
    assert foreseen == (None if isinstance(found, Lease) else found)


@settings(max_examples=repeated(300))
@given(WORLDS)
def test_call_goes_where_the_dry_run_predicted(world: World) -> None:
    foreseen = world.look(lambda: 0.3)
    waited_for = []

    class Watched(AdmissionControl):
        async def wait_turn(self, call: Call, target: Target, until: float) -> AtCapacity:
            waited_for.append(target)
            raise asyncio.CancelledError

    selector = CandidateSelector(
        world.call, world.route, Watched(world.cooldowns, world.clock), world.clock, lambda: 0.3
    )
    try:
        entered = asyncio.run(selector.next())
    except asyncio.CancelledError:
        entered = None
    asked = [selector.target(entered[0])] if entered is not None else []
    assert [candidate.target for candidate in foreseen if candidate.decision == "selected"] == asked
    assert [candidate.target for candidate in foreseen if candidate.decision == "queued"] == waited_for
    gone = [candidate.target.deployment.label for candidate in foreseen if candidate.decision == "skipped"]
    said = [skipped.deployment for skipped in world.call.skipped if skipped.why != "at capacity"]
    assert gone[: len(said)] == said


def test_states_reach_every_answer() -> None:
    """A walk that never meets an open breaker proves nothing."""
    seen = set()
    paced = set()

    @settings(max_examples=repeated(1000), database=None, derandomize=True)
    @given(WORLDS)
    def look(world: World) -> None:
        for candidate in world.look(lambda: 0.3):
            seen.add((candidate.decision, getattr(candidate.obstacle, "why", "")))
            for gate in candidate.target.deployment.gates.all():
                pace = gate._paces.free._pacer.snapshot(world.clock.now())
                paced.add((pace.rate is not None, pace.next_at > world.clock.now()))

    look()
    assert (True, True) in paced
    assert {turn for turn, _ in seen} == {"selected", "queued", "backup", "skipped"}
    assert {why for _, why in seen} >= {
        "", "in cooldown", "host breaker open", "breaker open", "breaker half_open", "breaker forced_open",
        "wait queue too slow", "wait queue full", "drained by an operator", "cordoned by an operator",
    }  # fmt: skip


def test_dry_run_lets_no_pace_grow() -> None:
    """A real attempt counts as demand, and demand above the pace lets it grow."""
    gate, now = Gate(CapacitySettings(), 990.0), 1000.0
    learn_pace(gate, now)
    while gate.try_enter(now) is None:
        now += 0.1
    before = gate._paces.free._pacer._learned._growth.counted_until
    assert not gate.forecast(now + 0.01).is_free
    assert gate._paces.free._pacer._learned._growth.counted_until == before
    assert gate.try_enter(now + 0.01) is None
    assert gate._paces.free._pacer._learned._growth.counted_until > before
