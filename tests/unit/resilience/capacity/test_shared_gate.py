"""A gate whose calls wait for grants of a keeper: what it reports, and what it does with and without grants."""

from __future__ import annotations

from functools import partial

import pytest

from llm_guard.resilience.capacity.fair_queue import Caller
from llm_guard.resilience.capacity.gate import CapacitySettings, Slot, Ticket
from llm_guard.resilience.capacity.granted_pace import GRANT_S, GrantedPaces
from llm_guard.resilience.capacity.pace_report import (
    Membership,
    PaceDecision,
    PaceEvent,
    PaceGrant,
    PaceState,
    WaitingCalls,
)
from llm_guard.resilience.capacity.rate_limit_headers import RateHint, RateLimitWindow
from llm_guard.resilience.capacity.shared_gate import SharedGate
from llm_guard.resilience.capacity.wait_queue import WaitQueue

LIMITED = PaceState(10.0, "rate_limits", 1.0)
HINT = RateHint((RateLimitWindow("remaining-requests", False, 100.0, 1.0, 1.0, 50.0),))


class Calls:
    """Calls at one gate."""

    def __init__(self, settings: CapacitySettings | None = None) -> None:
        self.gate = SharedGate(settings or CapacitySettings(), 0.0)
        self.let_in: list[str] = []
        self.tickets: list[Ticket] = []

    def wait(self, name: str = "", source: str = "", priority: int = 1, weight: float = 1.0) -> Ticket:
        caller = Caller(source, weight)
        ticket = self.gate.enqueue(priority, lambda: self.let_in.append(name), caller, source=source)
        assert ticket is not None
        self.tickets.append(ticket)
        return ticket

    def follow(self, now: float, *granted_at: float, first: int = 0, read: int = 0, **decision: object) -> float | None:
        """Follows a decision that was published now, and returns when the gate has to be called again."""
        grants = tuple(PaceGrant(1, "", at) for at in granted_at)
        settled = {"term": 1, "keeper": "k", "at": now, "free": LIMITED} | decision
        members = {"me": Membership(read, first, grants)}
        self.gate.follow(PaceDecision(members=members, **settled), "me", 0.0, now)  # type: ignore[arg-type]
        return self.gate.dispatch(now)

    def kinds(self, now: float) -> list[str]:
        return [event.kind for event in self.gate.report(now).events]


@pytest.fixture
def calls() -> Calls:
    return Calls()


def enter(calls: Calls, now: float, source: str = "") -> Slot:
    slot = calls.gate.try_enter(now, source=source)
    assert slot is not None
    return slot


def test_nothing_is_noted_before_the_first_report(calls: Calls) -> None:
    calls.gate.exit(enter(calls, 1.0), 2.0, "ok", 1.0)
    assert calls.gate.report(3.0).events == ()
    assert not calls.gate.report(3.0).is_active


def test_calls_and_their_ends_are_reported_until_the_keeper_has_read_them(calls: Calls) -> None:
    calls.gate.report(0.0)
    calls.gate.exit(enter(calls, 1.0), 1.5, "rate_limited", None)
    calls.gate.note_retry_after(9.5, 1.5)
    report = calls.gate.report(2.0)
    assert report.events == (
        PaceEvent("entered"), PaceEvent("rate_limited", "", 0.5), PaceEvent("retry_after", "", 8.0),
    )  # fmt: skip
    assert report.is_active
    calls.follow(2.0, read=2)
    report = calls.gate.report(2.1)
    assert (report.first, [event.kind for event in report.events]) == (2, ["retry_after"])


def test_429_is_told_for_a_minute(calls: Calls) -> None:
    calls.gate.exit(enter(calls, 1.0), 1.5, "rate_limited", None)
    assert calls.gate.is_active(61.0)
    assert not calls.gate.is_active(61.6)


def test_gate_that_does_not_pace_has_nothing_to_tell() -> None:
    calls = Calls(CapacitySettings(pacing=False))
    calls.gate.exit(enter(calls, 1.0), 1.5, "rate_limited", None)
    assert not calls.gate.is_active(2.0)


def test_calls_wait_for_grants_which_are_due_as_evenly_as_they_were_given(calls: Calls) -> None:
    assert calls.follow(1.0) is None
    assert calls.gate.try_enter(1.0) is None
    calls.wait("a")
    calls.wait("b")
    next_at = calls.follow(1.1, 1.0, 1.1)
    assert next_at == pytest.approx(1.0 + GRANT_S)
    next_at = calls.gate.dispatch(1.0 + GRANT_S + 0.001)
    assert calls.let_in == ["a"]
    assert next_at == pytest.approx(1.1 + GRANT_S)


def test_grants_that_were_received_before_are_not_used_again(calls: Calls) -> None:
    for name in "abc":
        calls.wait(name)
    calls.follow(1.0, 0.5)
    calls.follow(1.1, 0.5, 0.6)
    assert calls.let_in == ["a", "b"]
    assert calls.gate.report(1.1).received == 2


def test_outcome_names_the_grant_that_was_used(calls: Calls) -> None:
    calls.gate.report(0.0)
    ticket = calls.wait("a")
    calls.follow(1.0, 0.5)
    assert ticket.slot is not None
    calls.gate.exit(ticket.slot, 1.2, "ok", 0.2)
    (_, ended) = calls.gate.report(1.2).events
    assert (ended.kind, ended.granted_at) == ("ok", 0.5)
    assert ended.seconds == pytest.approx(0.2)


def test_grant_of_another_keeper_is_not_named(calls: Calls) -> None:
    calls.gate.report(0.0)
    ticket = calls.wait("a")
    calls.follow(1.0, 0.5)
    assert ticket.slot is not None
    calls.follow(1.1, 1.05, term=2)
    calls.gate.exit(ticket.slot, 1.2, "ok", 0.2)
    assert calls.gate.report(1.2).events[-1].granted_at != 0.5 or calls.kinds(1.2)[-1] == "returned"
    assert all(event.granted_at is None for event in calls.gate.report(1.2).events if event.kind == "ok")
    assert calls.gate.report(1.2).received == 1


def test_grant_without_a_waiting_call_goes_back(calls: Calls) -> None:
    calls.gate.report(0.0)
    ticket = calls.wait("a")
    calls.follow(1.0, 0.95)
    calls.gate.dequeue(ticket, 1.05)
    assert calls.gate.report(1.1).events[-1] == PaceEvent("returned", "", 0.0, 0.95)
    assert calls.gate.try_enter(2.0) is None


def test_grant_that_no_slot_is_free_for_goes_back_after_a_second() -> None:
    calls = Calls(CapacitySettings(concurrency=1))
    calls.gate.report(0.0)
    enter(calls, 0.5)
    calls.wait("a")
    calls.follow(1.0, 0.5)
    assert calls.kinds(1.5) == ["entered"]
    assert calls.kinds(2.0) == ["entered", "returned"]
    assert calls.let_in == []


def test_call_that_does_not_go_after_all_is_told(calls: Calls) -> None:
    calls.gate.report(0.0)
    ticket = calls.wait("a")
    calls.follow(1.0, 0.5)
    calls.gate.dequeue(ticket, 1.1)
    calls.gate.dequeue(ticket, 1.1)
    assert calls.kinds(1.2) == ["entered", "unused"]


def test_new_calls_need_no_grant_while_nothing_is_limited(calls: Calls) -> None:
    calls.follow(1.0, free=PaceState())
    enter(calls, 1.0)
    calls.wait("a")
    assert calls.gate.dispatch(1.0) is None
    assert calls.let_in == []  # a call that waits needs one
    calls.follow(1.1, 0.5, free=PaceState())
    assert calls.let_in == ["a"]


def test_waiting_calls_are_counted_by_priority_and_source(calls: Calls) -> None:
    calls.wait(source="app")
    calls.wait(source="app", priority=2)
    calls.wait(priority=2)
    calls.wait(source="heavy", weight=3.0)
    assert set(calls.gate.report(1.0).waiting) == {
        WaitingCalls(1, "app", 1), WaitingCalls(2, "app", 1), WaitingCalls(2, "", 1), WaitingCalls(1, "heavy", 1, 3.0),
    }  # fmt: skip


def test_no_more_calls_ask_than_there_are_slots() -> None:
    calls = Calls(CapacitySettings(concurrency=3))
    enter(calls, 0.5)
    for _ in range(5):
        calls.wait()
    assert calls.gate.report(1.0).waiting == (WaitingCalls(1, "", 2),)


def test_callers_that_are_not_limited_do_not_wait_for_grants(calls: Calls) -> None:
    calls.wait("slow", source="slow")
    calls.follow(1.0, free=PaceState(), apart=LIMITED, callers=("slow",))
    calls.wait("fast", source="fast")
    assert calls.gate.dispatch(1.0) is None
    assert calls.let_in == ["fast"]
    grant = PaceGrant(1, "slow", 0.5)
    decision = PaceDecision(1, "k", 1.1, {"me": Membership(0, 0, (grant,))}, PaceState(), LIMITED, ("slow",))
    calls.gate.follow(decision, "me", 0.0, 1.1)
    calls.gate.dispatch(1.1)
    assert calls.let_in == ["fast", "slow"]


def test_wait_is_estimated_from_the_rate_and_the_calls_elsewhere(calls: Calls) -> None:
    calls.follow(1.0, waiting=4)
    assert calls.gate.estimated_wait_s(1.0) == pytest.approx(0.2)  # one gateway: nobody else waits
    members = {"me": Membership(0), "other": Membership(0)}
    calls.gate.follow(PaceDecision(1, "k", 1.0, members, LIMITED, waiting=4), "me", 0.0, 1.0)
    assert calls.gate.estimated_wait_s(1.0) == pytest.approx(0.2 + 1 / 10)


def test_hold_is_waited_out(calls: Calls) -> None:
    calls.follow(1.0, free=PaceState(held_s=8.0, held_since_s=0.0))
    assert calls.gate.try_enter(1.0) is None
    assert calls.gate.estimated_wait_s(2.0) == pytest.approx(7.2)
    assert calls.gate.snapshot(2.0).held_until == 9.0


def test_without_a_keeper_it_goes_on_with_an_equal_part(calls: Calls) -> None:
    for _ in range(30):
        calls.wait("a")
    calls.follow(1.0)
    calls.gate.work_alone(5, 1.0)
    assert calls.gate.snapshot(1.0).rate == pytest.approx(2.0)
    now = 1.0
    while now < 6.0:
        now = calls.gate.dispatch(now) or 6.0
    assert len(calls.let_in) == pytest.approx(10, abs=1)
    assert calls.gate.report(6.0).rate == pytest.approx(2.0, rel=0.02)


def test_part_of_the_rate_ends_with_the_next_keeper(calls: Calls) -> None:
    calls.follow(1.0)
    calls.gate.work_alone(5, 1.0)
    calls.follow(2.0, term=2)
    assert calls.gate.report(2.0).rate is None
    assert calls.gate.snapshot(2.0).rate == 10.0


def test_callers_that_were_apart_stay_so_without_a_keeper(calls: Calls) -> None:
    calls.follow(1.0, free=PaceState(), apart=LIMITED, callers=("slow",))
    calls.gate.work_alone(2, 1.0)
    enter(calls, 1.0, "fast")
    enter(calls, 1.0, "fast")
    assert calls.gate.try_enter(1.0, source="slow") is None
    report = calls.gate.report(1.0)
    assert (report.rate, report.callers) == (5.0, ("slow",))


def test_headers_are_reported_once_with_their_age(calls: Calls) -> None:
    calls.gate.report(0.0)
    calls.gate.note_hint(HINT, 1.0, 1.5)
    calls.gate.note_hint(HINT, 1.2, 1.6)
    [event] = calls.gate.report(2.0).events
    assert (event.kind, event.hint) == ("hint", HINT)
    assert event.seconds == pytest.approx(0.8)
    assert len(calls.gate.report(3.0).events) == 1


def test_operators_reset_and_a_probe_that_succeeds_are_told(calls: Calls) -> None:
    calls.gate.report(0.0)
    calls.gate.reset_pace(1.0)
    calls.gate.end_hold(1.0)
    assert calls.kinds(1.0) == ["reset", "hold_ended"]


def test_events_that_no_keeper_reads_are_dropped(calls: Calls) -> None:
    calls.gate.report(0.0)
    for number in range(5000):
        enter(calls, number / 1000)
    report = calls.gate.report(5.0)
    assert (len(report.events), report.first) == (4000, 1000)
    calls.gate.end_report()
    assert calls.gate.report(5.0).first == 5000


def test_ends_of_calls_are_noted_by_position_as_compiled_code_does() -> None:
    paces = GrantedPaces(WaitQueue(), 0.0)
    for note in (
        partial(paces.note_rate_limited, "", 1.0, CapacitySettings(), 2.0),
        partial(paces.note_accepted, "", 1.0, CapacitySettings(), 0, 2.0),
    ):
        note(True)
    assert not paces.free.is_limited
