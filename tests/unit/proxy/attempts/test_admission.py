"""The wait queue of a deployment that takes one call at a time, and every way in which a wait can end."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from llm_guard.outcome import Failure, FailureKind, Signal
from llm_guard.proxy.attempts.admission import AdmissionControl, AtCapacity, QueueGrant, settle
from llm_guard.proxy.call import Call
from llm_guard.resilience.capacity.gate import CapacitySettings, Gate
from llm_guard.resilience.capacity.rate_limit_headers import RateHint, RateLimitWindow
from llm_guard.resilience.circuit_breaker.breaker import BreakerSettings
from llm_guard.resilience.circuit_breaker.cooldown import Cooldowns
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.routing.lease import Lease
from llm_guard.routing.route_table import Target
from tests.fakes.clock import SteppedClock, let_run
from tests.fakes.script import NETWORK_ERROR, OK, SERVER_ERROR, Hang, Outcome, Slow, new_call, new_target, open_stream
from tests.unit.proxy.attempts.plays import Stage, learn, open_breaker, open_this

AUTH = Failure(FailureKind.AUTH, "answered 401 (status 401)")
ONCE = RetrySettings(jitter=0.0, adaptive=False, max_attempts=1)


def narrow(label: str = "a/x", *, retry: RetrySettings | None = None, **capacity: Any) -> Target:
    """Returns a target that takes one call at a time."""
    return new_target(label, retry=retry, capacity=CapacitySettings(pacing=False, **{"concurrency": 1, **capacity}))


def gate_of(target: Target, now: float = 1000.0) -> Gate:
    return target.deployment.gates.of("", now)


def requests_left(count: float) -> RateHint:
    """Returns rate-limit headers that leave so many of 100 calls, with one more each second."""
    return RateHint((RateLimitWindow("x-ratelimit-remaining-requests", False, 100.0, count, 1.0),))


def refused(stage: Stage, call: Call) -> tuple[int, str | None, float | None]:
    """Returns the status, the reason (`by`) and the Retry-After of the refusal."""
    result = stage.gave_up(call)
    assert result.failure is None
    assert result.refusal is not None
    return result.refusal.status, result.refusal.by, result.refusal.retry_after_s


# order


async def test_call_waits_until_the_one_before_it_has_ended() -> None:
    stage = Stage(narrow(), a=[Slow(2.0, OK), OK])
    await stage.start()
    second = await stage.start()
    assert gate_of(stage.targets[0]).snapshot(1000.0).waiting == {1: 1}
    await stage.pass_s(1.9)
    assert stage.is_running(second)
    await stage.pass_s(0.1)
    attempt = stage.served(second).attempt
    assert (attempt.started_at, attempt.waited_s, attempt.waited_for) == (1002.0, 2.0, "queue")
    assert stage.script.transcript == ["0 asked a/x", "2 asked a/x"]
    stage.assert_nothing_is_held()


async def test_calls_are_served_in_order_of_arrival() -> None:
    stage = Stage(narrow(), a=[Slow(1.0, OK) for _ in range(4)])
    calls = [await stage.start() for _ in range(4)]
    await stage.pass_s(4.0)
    assert [stage.served(call).attempt.started_at for call in calls] == [1000.0, 1001.0, 1002.0, 1003.0]


async def test_higher_priority_is_served_first() -> None:
    stage = Stage(narrow(), a=[Slow(1.0, OK) for _ in range(5)])
    await stage.start()
    low, normal, high, also_normal = [await stage.start(priority=priority) for priority in (2, 1, 0, 1)]
    await stage.pass_s(5.0)
    order = [stage.served(call).attempt.started_at for call in (high, normal, also_normal, low)]
    assert order == [1001.0, 1002.0, 1003.0, 1004.0]


async def test_newcomer_does_not_overtake_a_call_whose_turn_has_come() -> None:
    stage = Stage(narrow(), a=[Slow(1.0, OK), Slow(1.0, OK), OK])
    first, second = await stage.start(), await stage.start()
    await stage.pass_s(1.0)
    third = await stage.start()
    await stage.pass_s(1.0)
    starts = [stage.served(call).attempt.started_at for call in (first, second, third)]
    assert starts == [1000.0, 1001.0, 1002.0]


async def test_rate_limit_headers_of_an_answer_set_the_pace() -> None:
    spent = replace(OK, rate=requests_left(0.0))
    stage = Stage(new_target("a/x", capacity=CapacitySettings()), a=[spent])
    await stage.start()
    (gate,) = stage.targets[0].deployment.gates.all()
    seen = gate.snapshot(1000.0)
    assert seen.rate_cause == "headers"
    assert seen.rate == pytest.approx(1.0, rel=0.2)


async def test_headers_of_a_stream_that_allow_more_admit_waiting_calls_at_once() -> None:
    stream = replace(open_stream(), rate=requests_left(100.0))
    stage = Stage(new_target("a/x", capacity=CapacitySettings()), a=[Slow(0.1, stream), OK, OK])
    await stage.start()
    (gate,) = stage.targets[0].deployment.gates.all()
    gate.note_hint(requests_left(0.0), 1000.0, 1000.0)
    await stage.start()
    waiting = await stage.start()
    assert stage.is_running(waiting)
    await stage.pass_s(0.1)
    assert stage.served(waiting).attempt.started_at == 1000.1
    stage.end_streams()
    stage.assert_nothing_is_held()


async def test_gate_that_is_held_opens_by_itself_at_its_instant() -> None:
    stage = Stage(new_target("a/x"), a=[OK, OK])
    gate_of_caller = stage.targets[0].deployment.gates.of(" ", 1000.0)
    gate_of_caller.pause_until(1005.0)
    calls = [await stage.start(), await stage.start()]
    await stage.pass_s(4.9)
    assert stage.script.transcript == []
    await stage.pass_s(0.1)
    assert [stage.served(call).attempt.waited_s for call in calls] == [5.0, 5.0]
    stage.assert_nothing_is_held()


async def test_hold_that_is_longer_than_expected_is_waited_for_again() -> None:
    stage = Stage(new_target("a/x"), a=[OK])
    gate = stage.targets[0].deployment.gates.of(" ", 1000.0)
    gate.pause_until(1005.0)
    call = await stage.start()
    await stage.pass_s(1.0)
    gate.pause_until(1009.0)
    await stage.pass_s(6.0)
    assert stage.is_running(call)
    await stage.pass_s(2.0)
    assert stage.served(call).attempt.started_at == 1009.0


async def test_settings_that_allow_more_admit_waiting_calls_at_once() -> None:
    stage = Stage(narrow(), a=[Hang(), OK])
    running, waiting = await stage.start(), await stage.start()
    deployment = stage.targets[0].deployment
    deployment.gates.adopt(CapacitySettings(pacing=False, concurrency=2))
    stage.loop.adopt([deployment])
    await stage.pass_s(0.0)
    assert stage.served(waiting).attempt.started_at == 1000.0
    stage.cancel(running)
    await stage.pass_s(0.0)
    stage.assert_nothing_is_held()


@pytest.mark.parametrize(("before", "after"), [(None, 1), (1, None)])
async def test_slot_returns_to_its_own_gate_after_a_reload_moves_others(before: int | None, after: int | None) -> None:
    stage = Stage(narrow(concurrency=before), a=[Slow(1.0, OK), OK])
    gates = stage.targets[0].deployment.gates
    gates.of(" ", 1000.0).pause_until(1005.0)
    call = await stage.start()
    gates.adopt(CapacitySettings(pacing=False, concurrency=after))
    gates.of(" ", 1000.0)
    await stage.pass_s(5.0)
    assert sorted(gate.snapshot(1005.0).in_flight for gate in gates.all()) == [0, 1]
    await stage.pass_s(1.0)
    assert stage.served(call).attempt.ended_at == 1006.0
    stage.assert_nothing_is_held()


async def test_forgotten_gate_still_admits_its_callers() -> None:
    stage = Stage(new_target("a/x"), a=[OK])
    gates = stage.targets[0].deployment.gates
    gates.of("mallory ", 1000.0).pause_until(1005.0)
    call = await stage.start(key_digest="mallory")
    for number in range(1024):
        gates.of(f"{number} ", 1000.0)
    await stage.pass_s(5.0)
    assert stage.served(call).attempt.started_at == 1005.0
    stage.assert_nothing_is_held()


# limits


async def test_full_queue_refuses_at_once_with_retry_after() -> None:
    stage = Stage(narrow(max_queue=1), a=[Hang()])
    await stage.start()
    await stage.start()
    third = await stage.start()
    assert refused(stage, third) == (429, "limit", 2.0)
    assert [skipped.why for skipped in third.skipped] == ["wait queue full"]


async def test_wait_that_is_sure_to_be_longer_than_allowed_is_not_begun() -> None:
    stage = Stage(narrow(queue_timeout=0.9), a=[Hang()])
    await stage.start()
    second = await stage.start()
    assert refused(stage, second) == (429, "limit", 1.0)
    assert [skipped.why for skipped in second.skipped] == ["wait queue too slow"]
    assert gate_of(stage.targets[0]).snapshot(1000.0).waiting == {}


@pytest.mark.parametrize("patience", ["deadline_at", "client_deadline"])
async def test_wait_that_is_sure_to_outlast_the_call_is_not_begun(patience: str) -> None:
    stage = Stage(narrow(), a=[Hang()])
    await stage.start()
    assert refused(stage, await stage.start(**{patience: 1000.9}))[:2] == (429, "limit")


async def test_wait_ends_when_it_has_lasted_as_long_as_allowed() -> None:
    stage = Stage(narrow(queue_timeout=1.5), a=[Hang()])
    await stage.start()
    second = await stage.start()
    await stage.pass_s(1.4)
    assert stage.is_running(second)
    await stage.pass_s(0.1)
    assert refused(stage, second) == (429, "limit", 1.0)
    assert gate_of(stage.targets[0]).snapshot(1001.5).waiting == {}


async def test_wait_ends_with_the_call() -> None:
    stage = Stage(narrow(), a=[Hang()])
    await stage.start()
    second = await stage.start(deadline_at=1002.0)
    await stage.pass_s(2.0)
    assert refused(stage, second)[:2] == (429, "limit")


async def test_wait_in_vain_reports_the_current_estimate() -> None:
    """The Retry-After is estimated when the wait ends, not when it began."""
    stage = Stage(narrow(queue_timeout=3.0), a=[Hang()])
    await stage.start()
    second = await stage.start()
    await stage.pass_s(1.0)
    for _ in range(3):
        await stage.start(priority=0)
    await stage.pass_s(2.0)
    assert refused(stage, second) == (429, "limit", 4.0)


async def test_low_priority_call_is_displaced_by_a_higher_one() -> None:
    stage = Stage(narrow(max_queue=1), a=[Slow(2.0, OK), OK])
    await stage.start()
    low = await stage.start(priority=2)
    high = await stage.start(priority=0)
    await stage.pass_s(0.0)
    assert refused(stage, low)[:2] == (429, "limit")
    assert [skipped.why for skipped in low.skipped] == ["wait queue full"]
    await stage.pass_s(2.0)
    assert stage.served(high).attempt.started_at == 1002.0
    stage.assert_nothing_is_held()


# other deployments with room


async def test_deployment_with_room_is_preferred_to_a_wait() -> None:
    stage = Stage(narrow("a/x"), narrow("b/y"), a=[Hang()], b=[OK])
    await stage.start()
    second = await stage.start()
    assert stage.served(second).attempt.target is stage.targets[1]
    assert stage.served(second).attempt.waited_s == 0.0


async def test_retry_whose_slot_is_taken_goes_to_a_deployment_with_room() -> None:
    stage = Stage(narrow("a/x"), narrow("b/y"), a=[Slow(1.0, NETWORK_ERROR), Hang()], b=[OK])
    first = await stage.start()
    await stage.pass_s(0.5)
    second = await stage.start(is_sticky=True)
    await stage.pass_s(0.7)
    assert stage.served(first).attempt.target is stage.targets[1]
    assert stage.is_running(second)
    assert stage.script.transcript == ["0 asked a/x", "1 asked b/y", "1 asked a/x"]


async def test_shorter_of_two_waits_is_chosen() -> None:
    stage = Stage(narrow("a/x"), narrow("b/y", concurrency=2), a=[Hang()], b=[Slow(0.4, OK), Hang(), OK])
    for _ in range(3):
        await stage.start()
    last = await stage.start()
    await stage.pass_s(0.4)
    assert stage.served(last).attempt.target is stage.targets[1]


async def test_attempt_without_enough_time_at_its_turn_is_not_started() -> None:
    stage = Stage(narrow("a/x"), narrow("b/y"), a=[AUTH, AUTH], b=[Slow(4.0, OK)])
    learn(stage.targets[1].deployment.latency, 2.0)
    await stage.start()
    call = await stage.start(deadline_at=1005.0)
    await stage.pass_s(4.0)
    assert stage.gave_up(call).failure is AUTH
    assert [skipped.why for skipped in call.skipped] == ["deadline"]
    assert stage.script.transcript == ["0 asked a/x", "0 asked b/y", "0 asked a/x"]
    stage.assert_nothing_is_held()


# return of slots


@pytest.mark.parametrize("outcome", [OK, AUTH, RuntimeError("a bug")], ids=["ok", "failure", "bug"])
async def test_slot_is_released_on_response_failure_and_bug(outcome: Outcome) -> None:
    stage = Stage(narrow(), a=[Slow(1.0, OK), outcome, OK])
    calls = [await stage.start() for _ in range(3)]
    await stage.pass_s(1.0)
    assert stage.served(calls[2]).attempt.started_at == 1001.0
    if isinstance(outcome, RuntimeError):
        with pytest.raises(RuntimeError, match="a bug"):
            stage.served(calls[1])
    stage.assert_nothing_is_held()


async def test_slot_is_released_when_the_client_disconnects() -> None:
    stage = Stage(narrow(), a=[Hang(), OK])
    first, second = await stage.start(), await stage.start()
    stage.cancel(first)
    await stage.pass_s(0.0)
    assert stage.was_cancelled(first)
    stage.served(second)
    stage.assert_nothing_is_held()


async def test_slot_of_a_stream_is_released_once_at_its_end() -> None:
    stage = Stage(narrow(), a=[open_stream(), OK])
    stream = stage.served(await stage.start())
    second = await stage.start()
    assert stage.is_running(second)
    for _ in range(2):
        settle(stream.attempt, stream.lease, Signal.HEALTHY, stage.clock)
    await stage.pass_s(0.0)
    stage.served(second)
    stage.assert_nothing_is_held()


async def test_slot_is_free_while_its_call_waits_for_a_retry() -> None:
    stage = Stage(narrow(), a=[SERVER_ERROR, OK, OK])
    first = await stage.start()
    second = await stage.start()
    assert stage.served(second).attempt.started_at == 1000.0
    await stage.pass_s(0.2)
    assert stage.served(first).attempt.started_at == 1000.2
    stage.assert_nothing_is_held()


async def test_turn_granted_after_the_breaker_opened_is_returned() -> None:
    breaker = BreakerSettings(consecutive_failures=1, early_probes=False)
    capacity = CapacitySettings(pacing=False, concurrency=1)
    stage = Stage(new_target("a/x", retry=ONCE, breaker=breaker, capacity=capacity), a=[Slow(1.0, SERVER_ERROR)])
    await stage.start()
    waiting = [await stage.start() for _ in range(3)]
    await stage.pass_s(1.0)
    assert [refused(stage, call)[:2] for call in waiting] == [(503, "breaker")] * 3
    assert [[skipped.why for skipped in call.skipped] for call in waiting] == [["breaker open"]] * 3
    stage.assert_nothing_is_held()


async def test_returned_turns_consume_no_pace() -> None:
    """Otherwise waiting calls would be refused one by one, at the pace, after the breaker has opened."""
    target = new_target("a/x", capacity=CapacitySettings())
    stage = Stage(target)
    gate = target.deployment.gates.of(" ", 1000.0)
    gate.note_hint(requests_left(0.0), 1000.0, 1000.0)
    while (slot := gate.try_enter(1000.0)) is not None:
        gate.exit(slot, 1000.0, "ignored", None)
    waiting = [await stage.start() for _ in range(5)]
    assert all(stage.is_running(call) for call in waiting)
    target.deployment.breaker.force("forced_open", 1000.0)
    await stage.pass_s(1.1)
    assert [refused(stage, call)[:2] for call in waiting] == [(503, "breaker")] * 5
    stage.assert_nothing_is_held()


async def test_client_that_leaves_the_queue_frees_its_slot() -> None:
    stage = Stage(narrow(), a=[Slow(1.0, OK), OK])
    await stage.start()
    second, third = await stage.start(), await stage.start()
    stage.cancel(second)
    await stage.pass_s(1.0)
    assert stage.was_cancelled(second)
    assert (second.attempts, second.skipped) == ([], [])
    assert stage.served(third).attempt.started_at == 1001.0
    stage.assert_nothing_is_held()


class Waiting:
    """One call in the queue of a gate with a single slot, which is taken."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.target = narrow()
        self.admission = AdmissionControl(Cooldowns(), self.clock)
        self.gate = gate_of(self.target)
        slot = self.gate.try_enter(1000.0)
        assert slot is not None
        self._slot = slot
        self.task: asyncio.Task[QueueGrant | AtCapacity] = asyncio.ensure_future(
            self.admission.wait_turn(new_call(), self.target, 1010.0)
        )

    def let_in(self) -> None:
        self.gate.exit(self._slot, self.clock.now(), "ignored", None)
        self.admission.advance(self.gate)
        assert self.gate.snapshot(self.clock.now()).in_flight == 1

    def assert_free(self) -> None:
        seen = self.gate.snapshot(self.clock.now())
        assert (seen.in_flight, seen.waiting) == (0, {})


async def test_client_that_disconnects_at_its_turn_returns_it() -> None:
    this = Waiting()
    await let_run()
    this.let_in()
    this.task.cancel()
    await let_run()
    assert this.task.cancelled()
    this.assert_free()


@pytest.mark.parametrize("comes_first", [True, False])
async def test_turn_granted_just_as_the_wait_ends_is_not_lost(comes_first: bool) -> None:
    this = Waiting()
    await let_run()
    if comes_first:
        this.let_in()
    this.clock.limits[-1].fire()
    if not comes_first:
        this.let_in()
    await let_run()
    result = this.task.result()
    if isinstance(result, QueueGrant):
        this.admission.give_back(result)
    this.assert_free()


async def test_returned_turn_goes_to_the_next_in_the_queue() -> None:
    this = Waiting()
    await let_run()
    following = asyncio.ensure_future(this.admission.wait_turn(new_call(), this.target, 1010.0))
    await let_run()
    this.let_in()
    this.task.cancel()
    await let_run()
    turn = following.result()
    assert isinstance(turn, QueueGrant)
    this.admission.give_back(turn)
    this.assert_free()


async def test_call_that_finds_the_queue_full_does_not_wait() -> None:
    clock, target = SteppedClock(), narrow(max_queue=1)
    admission, gate = AdmissionControl(Cooldowns(), clock), gate_of(target)
    assert gate.try_enter(1000.0) is not None
    assert gate.enqueue(1, lambda: None) is not None
    assert await admission.wait_turn(new_call(), target, 1010.0) == AtCapacity(2.0, has_place=False)


async def test_call_evicted_by_a_higher_priority_waits_no_longer() -> None:
    clock, target = SteppedClock(), narrow(max_queue=1)
    admission, gate = AdmissionControl(Cooldowns(), clock), gate_of(target)
    assert gate.try_enter(1000.0) is not None
    waiting = asyncio.ensure_future(admission.wait_turn(new_call(priority=2), target, 1010.0))
    await let_run()
    hurried = gate.enqueue(0, lambda: None)
    assert hurried is not None
    await let_run()
    assert waiting.result() == AtCapacity(2.0, has_place=False)
    assert gate.snapshot(1000.0).waiting == {0: 1}


async def test_probe_that_finds_no_room_leaves_the_breaker_to_the_next() -> None:
    stage = Stage(narrow(), a=[Hang()])
    await stage.start()
    deployment = stage.targets[0].deployment
    open_breaker(stage.targets[0])
    await stage.pass_s(30.0)
    waiting = await stage.start()
    assert stage.is_running(waiting)
    seen = [breaker.snapshot(stage.clock.now()) for breaker in (deployment.breaker, deployment.host)]
    assert [(breaker_snapshot.state, breaker_snapshot.leases) for breaker_snapshot in seen] == [
        ("half_open", 0),
        ("closed", 0),
    ]


async def test_probe_of_a_host_that_finds_no_room_leaves_the_host_to_the_next() -> None:
    stage = Stage(narrow(), a=[Hang()])
    await stage.start()
    host = stage.targets[0].deployment.host
    open_this(host)
    await stage.pass_s(30.0)
    assert stage.is_running(await stage.start())
    seen = host.snapshot(stage.clock.now())
    assert (seen.state, seen.leases) == ("half_open", 0)


async def test_one_alarm_is_set_for_all_calls_that_wait_at_a_gate() -> None:
    stage = Stage(new_target("a/x"), a=[OK] * 50)
    stage.targets[0].deployment.gates.of(" ", 1000.0).pause_until(1005.0)
    for _ in range(50):
        await stage.start()
    assert [alarm.at for alarm in stage.clock.alarms if not alarm.is_cancelled].count(1005.0) == 1
    await stage.pass_s(5.0)
    stage.assert_nothing_is_held()


async def test_last_to_leave_a_queue_cancels_its_alarm() -> None:
    stage = Stage(new_target("a/x"))
    stage.targets[0].deployment.gates.of(" ", 1000.0).pause_until(1005.0)
    for call in [await stage.start() for _ in range(3)]:
        stage.cancel(call)
    await stage.pass_s(0.0)
    stage.assert_nothing_is_held()


def whims(dice: random.Random) -> list[Outcome]:
    ends: list[Any] = [OK, SERVER_ERROR, AUTH, open_stream()]
    return [Slow(dice.uniform(0.0, 0.3), dice.choice(ends)) if dice.random() < 0.8 else Hang() for _ in range(1000)]


@pytest.mark.parametrize("seed", range(4))
async def test_thousand_clients_that_disconnect_at_any_moment_leak_nothing(seed: int) -> None:
    dice = random.Random(seed)
    targets = narrow("a/x", concurrency=3, max_queue=20), narrow("b/y", concurrency=2, max_queue=20)
    stage = Stage(*targets, a=whims(dice), b=whims(dice))
    calls: list[Call] = []
    most_waiting = 0
    for _ in range(250):
        calls.append(await stage.start(priority=dice.randrange(3)))
        if dice.random() < 0.7:
            stage.cancel(dice.choice(calls[-10:]))
        if dice.random() < 0.5:
            await stage.pass_s(dice.uniform(0.0, 0.2))
        if dice.random() < 0.2:
            stage.end_streams()
        most_waiting = max(most_waiting, sum(gate_of(targets[0]).snapshot(stage.clock.now()).waiting.values()))
    for call in calls:
        stage.cancel(call)
    await stage.pass_s(0.0)
    stage.end_streams()
    stage.assert_nothing_is_held()
    assert most_waiting > 5


async def test_waits_for_two_deployments_one_after_the_other_count_together() -> None:
    stage = Stage(narrow("a/x", queue_timeout=1.0), narrow("b/y"), a=[Hang()], b=[Slow(3.0, OK), OK])
    busy = [await stage.start(), await stage.start()]
    call = await stage.start()
    await stage.pass_s(3.0)
    attempt = stage.served(call).attempt
    assert (attempt.target.deployment.label, attempt.waited_s, attempt.waited_for) == ("b/y", 3.0, "queue")
    stage.cancel(busy[0])
    await stage.pass_s(0.0)
    stage.assert_nothing_is_held()


def test_accounts_that_callers_name_have_their_own_gates_under_a_shared_key() -> None:
    admission, target = AdmissionControl(Cooldowns(), SteppedClock()), new_target("a/x", api_key="sk-1")
    gates = []
    for account in ("", "p", "q", ""):
        found = admission.try_enter(new_call(account_digest=account), target, hint_patience_s=30.0)
        assert isinstance(found, Lease)
        gates.append(found.gate)
    assert gates[0] is gates[3]
    assert len(set(gates)) == 3
