"""A walk through a gate: arrivals, priorities, departures, exits, 429s, holds, ramps, reloads, time."""

from __future__ import annotations

from collections import Counter
from math import exp
from typing import ClassVar, get_args

from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from llm_guard.resilience.capacity.fair_queue import Caller
from llm_guard.resilience.capacity.gate import CapacitySettings, Ending, Gate, Slot, Ticket
from llm_guard.resilience.capacity.gate_snapshot import GateSnapshot
from llm_guard.resilience.capacity.wait_queue import MOST_PASSED
from tests.effort import repeated

picks = st.integers(0, 10**6)
priorities = st.integers(0, 2)
callers = st.sampled_from([Caller("a"), Caller("b"), Caller("heavy", 3.0)])
endings = st.sampled_from(get_args(Ending))
capacity_settings = st.builds(
    CapacitySettings,
    concurrency=st.sampled_from([None, 1, 2, 4, 5, "adaptive"]),
    min_concurrency=st.integers(1, 3),
    max_concurrency=st.integers(1, 6),
    latency_threshold=st.sampled_from([None, 0.5]),
    pacing=st.booleans(),
    max_queue=st.integers(1, 3),
)


class GateWalk(RuleBasedStateMachine):
    met: ClassVar[Counter[str]] = Counter()

    @initialize(chosen=capacity_settings)
    def begin(self, chosen: CapacitySettings) -> None:
        self.now = 1000.0
        self.gate = Gate(chosen, self.now)
        self.line: list[Ticket] = []
        self.out: list[Slot] = []
        self.unused: list[Ticket] = []
        self.gone: list[Slot] = []
        self.told: list[Ticket] = []
        self.passed: Counter[int] = Counter()
        """Grants to other priorities since the last one of each priority, or since it was first seen."""
        self.again_at: float | None = None
        self.uses: list[tuple[int, float, float]] = []
        """Priority, begin and end of each use of a slot while calls were waiting."""

    def seen(self) -> GateSnapshot:
        return self.gate.snapshot(self.now)

    def advance(self) -> float | None:
        before = self.seen()
        self.told.clear()
        again_at = self.gate.dispatch(self.now)
        for ticket in list(self.told):
            assert ticket.priority in self.next_priorities()
            mine = [one for one in self.line if (one.priority, one.caller) == (ticket.priority, ticket.caller)]
            assert ticket is mine[0], "the calls of one caller are served in their order"
            self.note_turn(ticket.priority)
            assert ticket.slot is not None
            assert not ticket.is_evicted
            self.line.remove(ticket)
            self.unused.append(ticket)
            self.met["granted"] += 1
        after = self.seen()
        assert not self.told or before.limit is None or after.in_flight <= before.limit
        assert not self.told or after.held_until is None
        self.check_that_no_call_waits_in_vain(again_at, after)
        self.again_at = again_at
        return again_at

    def next_priorities(self) -> set[int]:
        waiting = {ticket.priority for ticket in self.line}
        if len(waiting) < 2:
            return waiting
        return {min(waiting) if overdue is None else overdue for overdue in self.overdue(waiting)}

    def overdue(self, waiting: set[int]) -> set[int | None]:
        """Returns the lower priority that comes next, or None. If slots are short this depends on the slots each
        priority holds, or with one to three slots on the time it has used them. Returns two answers if rounding
        decides."""
        slots, used = self.seen().limit, self.used()
        is_short = slots is not None and len(used) + 1 >= slots
        if slots is not None and slots > MOST_PASSED and is_short:
            held = Counter(slot.holder.priority for slot in used if slot.holder is not None)
            fewest = min(waiting, key=lambda priority: (held[priority], priority), default=None)
            self.met["slots are short"] += 1
            return {fewest if fewest is not None and held[fewest] < slots / (MOST_PASSED + 1) else None}
        if not is_short:
            return {self.most_passed({priority for priority in waiting if self.passed[priority] >= MOST_PASSED})}
        self.met["few slots are short"] += 1
        return {
            self.most_passed({priority for priority in waiting if self.is_behind(priority, rounding)})
            for rounding in (-1e-6, 1e-6)
        }

    def most_passed(self, overdue: set[int]) -> int | None:
        return max(sorted(overdue), key=self.passed.__getitem__) if overdue else None

    def is_behind(self, priority: int, rounding: float) -> bool:
        spare_s = sum(self.used_s(each) for each in range(-1, 3)) - 4 * self.used_s(priority) + rounding
        typical_s: float | None = None
        for of, began_at, ended_at in self.uses:
            if of == priority:
                typical_s = ended_at - began_at if typical_s is None else 0.9 * typical_s + 0.1 * (ended_at - began_at)
        is_clear = typical_s is not None and spare_s >= 3 * max(typical_s, 0.001)
        return is_clear or (spare_s >= -0.001 and self.passed[priority] >= MOST_PASSED)

    def used(self) -> list[Slot]:
        return self.out + [ticket.slot for ticket in self.unused if ticket.slot is not None]

    def used_s(self, priority: int) -> float:
        """Seconds of slot use: counted in full while the use lasts, then fading."""
        ended = (
            (ended_at - began_at) * exp((ended_at - self.now) / 60)
            for of, began_at, ended_at in self.uses
            if of == priority
        )
        holders = [slot.holder for slot in self.used() if slot.holder is not None]
        return sum(ended) + sum(self.now - holder.since for holder in holders if holder.priority == priority)

    def note_end(self, slot: Slot) -> None:
        if slot.holder is not None:
            self.uses.append((slot.holder.priority, slot.holder.since, self.now))

    def note_turn(self, turn: int) -> None:
        for priority in self.passed:
            self.passed[priority] += 1
        self.passed[turn] = 0

    def check_that_no_call_waits_in_vain(self, again_at: float | None, after: GateSnapshot) -> None:
        is_full = after.limit is not None and after.in_flight >= after.limit
        if not self.line:
            assert again_at is None
        elif again_at is None:
            assert is_full
            self.met["full"] += 1
        else:
            assert again_at > self.now
            assert is_full or after.rate is not None or after.held_since is not None
            self.met["paced or ramping"] += 1

    @rule(passed_s=st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0, 5.0, 70.0]))
    def time_passes(self, passed_s: float) -> None:
        self.now += passed_s
        self.advance()

    @precondition(lambda self: self.again_at is not None)
    @rule(priority=priorities, caller=callers)
    def a_call_arrives_just_before_the_queue_opens(self, priority: int, caller: Caller) -> None:
        assert self.again_at is not None
        self.now = self.again_at
        self.a_call_arrives(priority, caller)

    @rule(arrivals=st.lists(st.tuples(priorities, callers), min_size=2, max_size=4))
    def some_arrive_at_once(self, arrivals: list[tuple[int, Caller]]) -> None:
        for priority, caller in arrivals:
            self.a_call_arrives(priority, caller)

    @rule(priority=priorities, caller=callers)
    def a_call_arrives(self, priority: int, caller: Caller) -> None:
        before, wait_s = self.seen(), self.gate.wait_s(self.now, priority, caller)
        waiting = {ticket.priority for ticket in self.line}
        overdue = self.overdue(waiting)
        slot = self.gate.try_enter(self.now, priority)
        if slot is not None:
            assert wait_s == 0.0
            assert all(priority < other for other in waiting)
            assert None in overdue
        elif wait_s == 0.0:
            assert overdue != {None} or any(priority >= other for other in waiting)
        if slot is not None:
            if self.line:
                self.note_turn(priority)
                self.met["passed"] += 1
            assert before.limit is None or before.in_flight < before.limit
            assert before.held_until is None
            self.out.append(slot)
            self.advance()
            return
        self.join(priority, caller, wait_s)

    def join(self, priority: int, caller: Caller, wait_s: float | None) -> None:
        tickets: list[Ticket] = []
        is_full = len(self.line) >= self.gate.settings.max_queue
        self.told.clear()
        ticket = self.gate.enqueue(priority, lambda: self.told.append(tickets[0]), caller)
        assert (ticket is None) == (wait_s is None)
        if ticket is None:
            assert is_full
            self.check_that_it_has_its_share(priority, caller)
            self.met["turned away"] += 1
            return
        tickets.append(ticket)
        self.passed.setdefault(priority, 0)
        if is_full:
            self.note_eviction(priority, caller)
        assert self.told == [] or is_full
        self.line.append(ticket)
        self.advance()

    def reserved(self) -> int:
        return 1 if self.gate.settings.max_queue >= 3 else 0

    def waiting_of(self, priority: int) -> int:
        return sum(ticket.priority == priority for ticket in self.line)

    def check_that_it_has_its_share(self, priority: int, caller: Caller) -> None:
        """Checks that ahead of a rejected call there are no more calls of a lower priority than their share, and not
        many more calls of another caller than of its own."""
        for lower in range(priority + 1, 3):
            assert self.waiting_of(lower) <= self.reserved()
        calls = Counter(ticket.caller for ticket in self.line if ticket.priority == priority)
        assert calls.total() >= self.reserved()
        most = max((count / owner.weight for owner, count in calls.items()), default=0.0)
        assert most <= (calls[caller] + 1) / caller.weight + 2, "virtual time is exact to a unit of each"

    def note_eviction(self, priority: int, caller: Caller) -> None:
        (evicted,) = self.told
        same = [one for one in self.line if (one.priority, one.caller) == (evicted.priority, evicted.caller)]
        assert evicted is same[-1], "the newest of its caller"
        if evicted.priority > priority:
            assert self.waiting_of(evicted.priority) > self.reserved()
        elif evicted.priority == priority:
            assert evicted.caller != caller
        else:
            assert self.waiting_of(priority) < self.reserved() < self.waiting_of(evicted.priority)
        assert evicted.is_evicted
        assert evicted.slot is None
        self.line.remove(evicted)
        self.gate.dequeue(evicted, self.now)
        self.met["evicted"] += 1
        self.met["gave way to a caller with less"] += evicted.priority == priority
        self.met["gave way to a lower priority"] += evicted.priority < priority

    @precondition(lambda self: self.unused)
    @rule(pick=picks)
    def a_granted_slot_is_used(self, pick: int) -> None:
        slot = self.unused.pop(pick % len(self.unused)).slot
        assert slot is not None
        self.out.append(slot)

    @precondition(lambda self: self.unused)
    @rule(pick=picks)
    def a_granted_slot_is_not_used(self, pick: int) -> None:
        ticket = self.unused.pop(pick % len(self.unused))
        for _ in range(2):
            self.gate.dequeue(ticket, self.now)
        assert ticket.slot is not None
        self.gone.append(ticket.slot)
        self.note_end(ticket.slot)
        self.met["unused"] += 1
        self.advance()

    @precondition(lambda self: self.line)
    @rule(pick=picks)
    def a_call_leaves_the_queue(self, pick: int) -> None:
        ticket = self.line.pop(pick % len(self.line))
        for _ in range(2):
            self.gate.dequeue(ticket, self.now)
        self.advance()

    @precondition(lambda self: self.out)
    @rule(pick=picks, ending=endings)
    def a_call_ends(self, pick: int, ending: Ending) -> None:
        slot = self.out.pop(pick % len(self.out))
        self.gate.exit(slot, self.now, ending, self.now - slot.entered_at)
        self.gone.append(slot)
        self.note_end(slot)
        self.advance()

    @precondition(lambda self: self.gone)
    @rule(pick=picks, ending=endings)
    def a_slot_is_given_back_twice(self, pick: int, ending: Ending) -> None:
        before = self.seen()
        self.gate.exit(self.gone[pick % len(self.gone)], self.now, ending, 1.0)
        assert self.seen() == before

    @rule(seconds=st.sampled_from([0.2, 3.0]))
    def all_calls_are_paused(self, seconds: float) -> None:
        self.gate.pause_until(self.now + seconds)
        assert self.gate.try_enter(self.now, -1) is None
        self.advance()

    @rule(seconds=st.sampled_from([1.0, 20.0]))
    def the_breaker_has_closed(self, seconds: float) -> None:
        self.gate.ramp(self.now, seconds)
        self.advance()

    @rule(chosen=capacity_settings)
    def the_config_is_reloaded(self, chosen: CapacitySettings) -> None:
        waiting = self.seen().waiting
        self.gate.settings = chosen
        assert self.seen().waiting == waiting
        self.advance()

    @precondition(lambda self: self.line)
    @rule()
    def every_waiting_call_has_a_turn(self) -> None:
        for _ in range(500):
            for slot in self.used():
                self.gate.exit(slot, self.now, "ok", 0.1)
                self.note_end(slot)
            self.out.clear()
            self.unused.clear()
            again_at = self.advance()
            if not self.line:
                self.met["drained"] += 1
                return
            self.now = self.now if again_at is None else again_at
        raise AssertionError("somebody waits for ever")

    @invariant()
    def gate_agrees_with_the_model(self) -> None:
        seen = self.seen()
        assert seen.in_flight == len(self.out) + len(self.unused)
        assert dict(seen.waiting) == Counter(ticket.priority for ticket in self.line)
        settings = self.gate.settings
        if settings.concurrency == "adaptive":
            assert seen.limit is not None
            assert 1 <= seen.limit <= settings.max_concurrency

    def teardown(self) -> None:
        for slot in self.out:
            self.gate.exit(slot, self.now, "ignored", None)
        for ticket in self.line + self.unused:
            self.gate.dequeue(ticket, self.now)
        assert self.seen().in_flight == 0
        assert not self.seen().waiting


EVENTS = (
    "granted", "full", "paced or ramping", "turned away", "evicted", "unused", "drained", "passed", "slots are short",
    "few slots are short", "gave way to a caller with less", "gave way to a lower priority",
)  # fmt: skip


def test_gate_holds_on_every_walk() -> None:
    walks = settings(derandomize=True, deadline=None, max_examples=repeated(200, least=50), stateful_step_count=40)
    run_state_machine_as_test(GateWalk, settings=walks)
    # Walks that never get far prove nothing: more walks, if these have not met every event.
    for more in range(4):
        if min(GateWalk.met[event] for event in EVENTS) > repeated(3):
            break
        run_state_machine_as_test(seed(more)(GateWalk), settings=walks)
    for event in EVENTS:
        assert GateWalk.met[event] > repeated(3), event
