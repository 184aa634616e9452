from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import pytest

from llm_guard.resilience.capacity.fair_queue import Caller
from llm_guard.resilience.capacity.gate import CapacitySettings, Ending, Gate, Slot, Ticket
from llm_guard.resilience.capacity.rate_limit_headers import RateHint, RateLimitWindow
from tests.unit.resilience.capacity.gate_world import Provider, World, at_random, evenly


def gate(**changes: object) -> Gate:
    return Gate(replace(CapacitySettings(), **changes), 0.0)  # type: ignore[arg-type]  # each test's own names


def enter(of: Gate, now: float = 0.0, priority: int = 1) -> Slot:
    slot = of.try_enter(now, priority)
    assert slot is not None
    return slot


def limit(of: Gate, now: float) -> None:
    """Reports a 429 for thirty calls during the half second before `now`."""
    slots = [enter(of, now - 0.6) for _ in range(30)]
    for i, slot in enumerate(slots):
        of.exit(slot, now if i == len(slots) - 1 else now - 0.5, "rate_limited", 0.05)


class GrantLog:
    """Tickets by name, and the order in which they were granted."""

    def __init__(self, of: Gate) -> None:
        self.gate = of
        self.tickets: dict[str, Ticket] = {}
        self.order: list[str] = []

    def join(self, name: str, priority: int = 1, now: float = 0.0) -> bool:
        ticket = self.gate.enqueue(priority, lambda: self.order.append(name))
        if ticket is not None:
            self.tickets[name] = ticket
        return ticket is not None

    def slot(self, name: str) -> Slot:
        slot = self.tickets[name].slot
        assert slot is not None
        return slot


def test_by_default_every_call_enters_at_once() -> None:
    free = gate()
    slots = [enter(free) for _ in range(2000)]
    assert free.snapshot(0.0).in_flight == 2000
    assert free.wait_s(0.0) == 0.0
    for slot in slots:
        free.exit(slot, 1.0, "ok", 1.0)
    seen = free.snapshot(1.0)
    assert (seen.limit, seen.in_flight, seen.waiting, seen.rate, seen.held_until) == (None, 0, {}, None, None)


def test_full_gate_admits_no_call_until_another_leaves() -> None:
    full = gate(concurrency=2)
    first = enter(full)
    enter(full)
    assert full.try_enter(0.0) is None
    full.exit(first, 1.0, "ok", 1.0)
    assert full.try_enter(1.0) is not None
    assert full.try_enter(1.0) is None


def test_slot_is_released_once() -> None:
    of = gate(concurrency=2)
    slot = enter(of)
    enter(of)
    of.exit(slot, 1.0, "ok", 1.0)
    of.exit(slot, 1.0, "ok", 1.0)
    assert of.snapshot(1.0).in_flight == 1


@pytest.mark.parametrize("outcome", ["ok", "overloaded", "rate_limited", "failed", "ignored"])
def test_every_outcome_releases_the_slot(outcome: Ending) -> None:
    of = gate(concurrency=1)
    of.exit(enter(of), 1.0, outcome, None)
    assert of.snapshot(1.0).in_flight == 0


def test_client_that_left_changes_nothing_else() -> None:
    of = gate(concurrency="adaptive", latency_threshold=1.0)
    before = of.snapshot(9.0)
    for _ in range(10):
        of.exit(enter(of), 9.0, "ignored", 9.0)
    assert of.snapshot(9.0) == before
    for _ in range(20):
        enter(of, 9.0)
    assert of.wait_s(9.0) == 1.0 / 20


def test_queue_is_served_by_priority_and_then_in_order() -> None:
    of = gate(concurrency=1)
    told = GrantLog(of)
    slot = enter(of)
    for name, priority in (("a", 1), ("b", 2), ("c", 0), ("d", 1), ("e", 0)):
        assert told.join(name, priority)
    for name in "ceabd":  # after three turns of higher priorities the lowest one gets a turn
        of.exit(slot, 1.0, "ok", 1.0)
        assert of.dispatch(1.0) is None
        assert told.order[-1] == name
        slot = told.slot(name)
    assert told.order == list("ceabd")
    assert of.snapshot(1.0).waiting == {}


def test_newcomer_does_not_overtake_waiting_calls() -> None:
    of = gate(concurrency=1)
    told = GrantLog(of)
    slot = enter(of)
    told.join("waiting", 1)
    of.exit(slot, 1.0, "ok", 1.0)
    assert of.try_enter(1.0, 1) is None
    assert of.try_enter(1.0, 2) is None
    assert of.try_enter(1.0, 0) is not None


def test_newcomers_of_high_priority_pass_a_lower_one_three_times_in_a_row() -> None:
    of = gate(concurrency=8)
    told = GrantLog(of)
    slots = [enter(of) for _ in range(8)]
    told.join("waiting", 1)
    for slot in slots:
        of.exit(slot, 1.0, "ok", 1.0)
    assert [of.try_enter(1.0, 0) is not None for _ in range(4)] == [True, True, True, False]
    of.dispatch(1.0)
    assert told.order == ["waiting"]


def test_full_queue_takes_no_call_of_the_same_priority() -> None:
    of = gate(concurrency=1, max_queue=2)
    enter(of)
    told = GrantLog(of)
    assert [told.join(name) for name in "abc"] == [True, True, False]
    assert of.wait_s(0.0) is None
    assert of.wait_s(0.0, 0) is not None
    assert told.order == []


def test_full_queue_evicts_the_newest_of_the_lowest_priority() -> None:
    of = gate(concurrency=1, max_queue=4)
    enter(of)
    told = GrantLog(of)
    for name, priority in (("a", 2), ("b", 3), ("c", 3), ("d", 1)):
        told.join(name, priority)
    assert told.join("e", 2)
    assert told.order == ["c"]
    assert told.tickets["c"].is_evicted
    assert told.tickets["c"].slot is None
    assert [name for name, ticket in told.tickets.items() if ticket.is_evicted] == ["c"]
    assert of.snapshot(0.0).waiting == {1: 1, 2: 2, 3: 1}


def test_evicted_ticket_may_still_leave() -> None:
    of = gate(concurrency=1, max_queue=1)
    enter(of)
    told = GrantLog(of)
    told.join("a", 2)
    told.join("b", 1)
    of.dequeue(told.tickets["a"], 0.0)
    assert of.snapshot(0.0).waiting == {1: 1}
    assert of.snapshot(0.0).in_flight == 1


def test_call_that_leaves_the_queue_is_not_granted_a_slot() -> None:
    of = gate(concurrency=1)
    slot = enter(of)
    told = GrantLog(of)
    told.join("a")
    told.join("b")
    of.dequeue(told.tickets["a"], 0.0)
    of.dequeue(told.tickets["a"], 0.0)
    of.exit(slot, 1.0, "ok", 1.0)
    of.dispatch(1.0)
    assert told.order == ["b"]


def test_call_that_leaves_with_a_grant_returns_it_unused() -> None:
    of = gate(concurrency=1)
    slot = enter(of)
    told = GrantLog(of)
    told.join("a")
    of.exit(slot, 1.0, "ok", 1.0)
    of.dispatch(1.0)
    assert of.snapshot(1.0).in_flight == 1
    of.dequeue(told.tickets["a"], 1.0)
    of.dequeue(told.tickets["a"], 1.0)
    of.exit(told.slot("a"), 1.0, "overloaded", None)
    assert of.snapshot(1.0).in_flight == 0


def test_unused_turn_goes_to_the_next() -> None:
    of = gate()
    of.note_hint(RateHint((RateLimitWindow("x", False, 60.0, 0.0, 0.5),)), 0.0, 0.0)
    enter(of)
    told = GrantLog(of)
    told.join("a")
    told.join("b")
    turn_at = of.dispatch(0.0) or 0.0
    assert (of.dispatch(turn_at) or 0.0) > turn_at + 1
    assert told.order == ["a"]
    of.dequeue(told.tickets["a"], turn_at)
    assert of.dispatch(turn_at) is None
    assert told.order == ["a", "b"]


def test_leave_after_the_exit_does_nothing() -> None:
    of = gate(concurrency=1)
    slot = enter(of)
    told = GrantLog(of)
    told.join("a")
    of.exit(slot, 1.0, "ok", 1.0)
    of.dispatch(1.0)
    of.exit(told.slot("a"), 2.0, "ok", 1.0)
    of.dequeue(told.tickets["a"], 2.0)
    assert of.snapshot(2.0).in_flight == 0


def test_thousand_random_disconnects_leak_no_slot() -> None:
    dice = random.Random(4)
    of = gate(concurrency=10)
    told = GrantLog(of)
    slots: list[Slot] = []
    for i in range(1000):
        slot = of.try_enter(i / 100)
        if slot is None:
            told.join(str(i), dice.randrange(3), i / 100)
        else:
            slots.append(slot)
        if dice.random() < 0.5 and slots:
            of.exit(slots.pop(dice.randrange(len(slots))), i / 100, "ignored", None)
        if dice.random() < 0.5 and told.tickets:
            of.dequeue(told.tickets.pop(dice.choice(list(told.tickets))), i / 100)
        of.dispatch(i / 100)
    for slot in slots:
        of.exit(slot, 20.0, "ignored", None)
    for ticket in told.tickets.values():
        of.dequeue(ticket, 20.0)
    assert of.dispatch(20.0) is None
    seen = of.snapshot(20.0)
    assert (seen.in_flight, seen.waiting) == (0, {})


def test_hold_blocks_the_queue_until_its_end() -> None:
    of = gate()
    of.pause_until(5.0)
    assert of.try_enter(0.0) is None
    assert of.wait_s(0.0) == 5.0
    told = GrantLog(of)
    told.join("a")
    assert of.dispatch(0.0) == 5.0
    assert of.dispatch(4.9) == 5.0
    assert told.order == []
    assert of.dispatch(5.0) is None
    assert told.order == ["a"]


def test_ramp_admits_four_and_reports_its_end() -> None:
    of = gate()
    of.ramp(0.0, 10.0)
    first, *_ = [enter(of) for _ in range(4)]
    assert of.try_enter(0.0) is None
    told = GrantLog(of)
    for name in "abc":
        told.join(name)
    assert of.dispatch(0.0) == 10.0
    of.exit(first, 1.0, "ok", 1.0)
    assert of.dispatch(1.0) == 10.0
    assert told.order == ["a", "b"]
    assert of.dispatch(10.0) is None
    assert told.order == ["a", "b", "c"]


def test_rate_limit_paces_the_queue() -> None:
    of = gate()
    for i in range(19):
        enter(of, i / 20)
    limit(of, 1.0)
    paced = of.snapshot(1.0).rate or 0.0
    assert paced == pytest.approx(0.9 * 20)
    told = GrantLog(of)
    for name in "abcd":
        told.join(name, now=1.0)
    now = 1.0
    instants = []
    while (again_at := of.dispatch(now)) is not None:
        assert again_at > now
        now = again_at
        instants.append(now)
    assert told.order == list("abcd")
    assert instants[-1] - 1.0 == pytest.approx(4 / paced, rel=0.15)


def test_without_pacing_429s_and_headers_are_ignored_but_a_hold_holds() -> None:
    of = gate(pacing=False)
    limit(of, 1.0)
    of.note_hint(RateHint((RateLimitWindow("x", False, 60.0, 0.0, 0.1),)), 1.0, 1.0)
    assert of.snapshot(1.0).rate is None
    of.pause_until(3.0)
    assert of.try_enter(1.0) is None


def test_headers_pace_the_queue_before_a_429() -> None:
    of = gate()
    of.note_hint(RateHint((RateLimitWindow("x", False, 60.0, 0.0, 0.5),)), 0.0, 0.0)
    enter(of)
    assert of.try_enter(0.0) is None
    assert of.wait_s(0.0) == pytest.approx(2.0, abs=0.1)


def test_wait_is_estimated_from_use_limit_and_queue() -> None:
    of = gate(concurrency=2)
    for _ in range(60):
        slot = enter(of, 0.0)
        of.exit(slot, 4.0, "ok", 4.0)
    assert of.wait_s(4.0) == 0.0
    enter(of, 4.0)
    enter(of, 4.0)
    assert of.wait_s(4.0) == pytest.approx(2.0, rel=0.05)
    told = GrantLog(of)
    for name in "abc":
        told.join(name)
    assert of.wait_s(4.0) == pytest.approx(8.0, rel=0.05)
    assert of.wait_s(4.0, 0) == pytest.approx(2.0, rel=0.05)


def test_wait_is_estimated_from_the_rate() -> None:
    of = gate()
    of.note_hint(RateHint((RateLimitWindow("x", False, 60.0, 0.0, 0.5),)), 0.0, 0.0)
    enter(of)
    told = GrantLog(of)
    for name in "abc":
        told.join(name)
    assert of.wait_s(0.0) == pytest.approx(8.0, abs=0.1)


def test_reload_may_admit_every_call() -> None:
    of = gate(concurrency=1)
    enter(of)
    told = GrantLog(of)
    for name in "abc":
        told.join(name)
    of.settings = CapacitySettings()
    assert of.settings.concurrency is None
    of.dispatch(0.0)
    assert told.order == ["a", "b", "c"]


def test_smaller_queue_evicts_no_call() -> None:
    of = gate(concurrency=1)
    enter(of)
    told = GrantLog(of)
    for name in "abc":
        told.join(name)
    of.settings = CapacitySettings(concurrency=1, max_queue=1)
    of.dispatch(0.0)
    assert of.snapshot(0.0).waiting == {1: 3}
    assert not told.join("d")
    assert told.join("e", 0)
    assert of.snapshot(0.0).waiting == {0: 1, 1: 2}


def test_reload_without_pacing_forgets_the_rate() -> None:
    of = gate()
    limit(of, 1.0)
    assert of.snapshot(1.0).rate is not None
    of.settings = CapacitySettings(pacing=False)
    assert of.snapshot(1.0).rate is None


def test_adaptive_limit_observes_overload_and_success() -> None:
    of = gate(concurrency="adaptive")
    slots = [enter(of) for _ in range(20)]
    of.exit(slots[0], 1.0, "overloaded", None)
    assert of.snapshot(1.0).limit == 19
    for slot in slots[1:10]:
        of.exit(slot, 10.0, "ok", 0.1)
    assert of.snapshot(10.0).limit == 20


def test_overloads_of_calls_that_were_out_together_are_one_signal() -> None:
    of = gate(concurrency="adaptive")
    slots = [enter(of) for _ in range(20)]
    for i, slot in enumerate(slots):
        of.exit(slot, 1.0 + i / 10, "overloaded", None)
    assert of.snapshot(3.0).limit == 19


# simulations on a virtual clock


@pytest.mark.parametrize("seed", [7, 8, 9])
@pytest.mark.parametrize("retry_after_s", [None, 1.0])
def test_provider_of_40_a_second_is_offered_60(retry_after_s: float | None, seed: int) -> None:
    world = World(Provider(40.0), retry_after_s, seed)
    world.offer(at_random(60.0, 0.0, 30.0, seed))
    world.run()
    assert world.served_within(20.0) >= 0.98
    assert world.requests_per_call() <= 1.08
    assert world.utilisation(5.0, 40.0, 40.0) >= 0.95


def test_provider_with_a_small_burst_allowance_is_used_as_well() -> None:
    world = World(Provider(40.0, capacity=8.0))
    world.offer(at_random(60.0, 0.0, 30.0))
    world.run()
    assert world.served_within(20.0) >= 0.95
    assert world.requests_per_call() <= 1.08
    assert world.utilisation(5.0, 40.0, 40.0) >= 0.95


def test_offer_below_the_rate_waits_for_nothing() -> None:
    world = World(Provider(40.0))
    world.offer(evenly(30.0, 0.0, 60.0))
    world.run()
    assert max(call.waited_s for call in world.calls) == 0.0
    assert world.requests_per_call() == 1.0


def test_offer_that_falls_below_the_rate_waits_for_nothing_soon() -> None:
    world = World(Provider(40.0))
    world.offer(at_random(60.0, 0.0, 10.0))
    world.offer(evenly(30.0, 40.0, 60.0))
    world.run()
    late = [call.waited_s for call in world.calls if call.arrived_at >= 40.0]
    assert max(late) < 0.1


@pytest.mark.parametrize(("before", "after"), [(40.0, 80.0), (80.0, 40.0)])
def test_rate_that_changes_is_found_within_ten_seconds(before: float, after: float) -> None:
    world = World(Provider(before))
    world.offer(evenly(120.0, 0.0, 60.0))
    world.at(30.0, lambda: setattr(world.provider, "rate", after))
    world.run(60.0)
    assert world.utilisation(5.0, 30.0, before) >= 0.95
    assert world.utilisation(40.0, 60.0, after) >= 0.95
    assert len(world.refused_at) <= 0.06 * len(world.accepted_at)


@pytest.mark.parametrize(("capacity", "utilisation"), [(1.0, 0.85), (12.0, 0.95)])
def test_twelve_calls_a_minute(capacity: float, utilisation: float) -> None:
    world = World(Provider(0.2, capacity))
    world.offer(evenly(0.4, 0.0, 1200.0))
    world.run(1200.0)
    sent = sum(call.attempts for call in world.calls)
    assert sent <= 1.1 * len(world.accepted_at)
    assert world.utilisation(60.0, 1200.0, 0.2) >= utilisation


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("share", [0.01, 0.03, 0.1, 0.2, 0.3, 0.4])
def test_random_429s_delay_no_call(share: float, seed: int) -> None:
    world = World(Provider(inf, tokens=1e12, moody=share, dice=random.Random(seed)), seed=seed)
    world.offer(at_random(100.0, 0.0, 30.0, seed))
    world.run()
    assert world.longest_wait(5.0) <= 1.0
    assert world.mean_wait() <= 0.05
    assert world.served_within(20.0) >= 0.99 - share**4


@pytest.mark.parametrize("share", [0.01, 0.1, 0.2, 0.3])
def test_random_429s_delay_no_call_at_a_quiet_deployment(share: float) -> None:
    world = World(Provider(inf, tokens=1e12, moody=share), seed=3)
    world.offer(at_random(5.0, 0.0, 60.0))
    world.run()
    assert world.longest_wait(0.0) == 0.0


def test_rate_is_found_despite_random_429s() -> None:
    world = World(Provider(40.0, moody=0.05))
    world.offer(at_random(60.0, 0.0, 30.0))
    world.run()
    assert world.utilisation(5.0, 40.0, 40.0) >= 0.9
    assert world.requests_per_call() <= 1.6


def test_provider_without_a_burst_allowance_is_used_better_than_unpaced() -> None:
    world = World(Provider(40.0, capacity=1.0))
    world.offer(at_random(60.0, 0.0, 30.0))
    world.run()
    assert world.utilisation(5.0, 40.0, 40.0) >= 0.4


def test_returned_slot_reports_whether_a_call_waits_for_it() -> None:
    narrow = gate(concurrency=2)
    told, slots = GrantLog(narrow), [enter(narrow) for _ in range(2)]
    assert told.join("a")
    assert narrow.exit(slots[0], 1.0, "ok", 1.0)
    assert narrow.exit(slots[0], 1.0, "ok", 1.0)
    narrow.dispatch(1.0)
    assert told.order == ["a"]
    assert not narrow.exit(slots[1], 1.0, "ignored", None)
    assert not narrow.exit(told.slot("a"), 2.0, "ok", 1.0)


def test_newest_call_is_served_first_while_the_load_is_too_high() -> None:
    """Only once sending less has helped. Until then, and at any other limit, the queue is first in, first out."""
    busy = gate()
    told = GrantLog(busy)
    throttle = busy._throttle
    throttle._try(0.5, 10.0, 0.0)
    enter(busy, 0.0)
    assert [told.join(name) for name in "abc"] == [True] * 3
    busy.dispatch(0.2)
    assert told.order == ["a"]
    assert busy.estimated_wait_s(0.2) > 0.2
    throttle._keep(0.2)
    assert busy.estimated_wait_s(0.2) < 0.2
    for at in (0.4, 0.6):
        busy.dispatch(at)
    assert told.order == ["a", "c", "b"]


def test_calls_that_are_held_for_their_caller_alone_are_not_before_those_of_others() -> None:
    """Calls of other callers go first, even of a caller that has had more turns."""
    of = gate(concurrency=1)
    for now in (0.0, 0.1):
        slot = of.try_enter(now, source="limited")
        assert slot is not None
        of.exit(slot, now, "rate_limited", None)
        of.note_retry_after(300.0, now, "limited")
    slot = of.try_enter(1.0, source="victim")
    assert slot is not None
    for _ in range(100):
        of.enqueue(1, lambda: None, Caller("limited"), "limited")
    for turn in range(50):
        now = 1.5 + turn / 2
        wait_s = of.wait_s(now, 1, Caller("victim"), "victim")
        assert wait_s is not None
        assert 0 < wait_s <= 1.0
        ticket = of.enqueue(1, lambda: None, Caller("victim"), "victim")
        of.exit(slot, now, "ok", 0.5)
        of.dispatch(now)
        assert ticket is not None
        slot = ticket.slot
        assert slot is not None
