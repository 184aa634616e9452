from __future__ import annotations

from math import inf

import pytest

from llm_guard.resilience.capacity.gate import CapacitySettings, Ending, Gate, Slot, Ticket
from llm_guard.resilience.capacity.pacing import LOOK_S, RetryAfterEvidence, RetryAfterHold


def probing(now: float = 10.0) -> tuple[Gate, Slot]:
    """Returns a gate at the end of a pause, and the slot of the trial call."""
    gate = Gate(CapacitySettings(), 0.0)
    gate.pause_until(now)
    slot = gate.try_enter(now)
    assert slot is not None
    return gate, slot


def test_shorter_hold_does_not_cut_a_longer_one_short() -> None:
    hold = RetryAfterHold()
    hold.begin(10.0, 0.0)
    hold.begin(5.0, 1.0)
    assert (hold.opens_at(), hold.until, hold.since) == (10.0, 10.0, 0.0)


def test_one_call_probes_after_a_hold_and_the_others_get_a_short_wait() -> None:
    gate, _ = probing()
    assert gate.try_enter(10.0) is None
    assert gate.wait_s(10.0) == LOOK_S
    seen = gate.snapshot(10.0)
    assert (seen.held_until, seen.held_since, seen.is_probing) == (None, 0.0, True)


@pytest.mark.parametrize("outcome", ["ok", "failed", "overloaded"])
def test_any_answer_but_a_429_opens_the_gate(outcome: Ending) -> None:
    gate, slot = probing()
    gate.exit(slot, 10.5, outcome, 0.5)
    assert gate.wait_s(10.5) == 0.0
    assert gate.snapshot(10.5).held_since is None


def test_429_with_a_hint_holds_again_and_its_beginning_stays() -> None:
    gate, slot = probing()
    gate.exit(slot, 10.5, "rate_limited", None)
    gate.pause_until(20.0)
    assert gate.wait_s(10.5) == 9.5
    assert gate.snapshot(10.5).held_since == 0.0


def test_429_without_a_hint_has_another_call_probe_a_second_later() -> None:
    gate, slot = probing()
    gate.exit(slot, 10.5, "rate_limited", None)
    assert gate.try_enter(11.4) is None
    assert gate.try_enter(11.5) is not None
    assert gate.try_enter(11.5) is None


def test_ignored_probe_is_followed_by_another_at_once() -> None:
    gate, slot = probing()
    gate.exit(slot, 10.5, "ignored", None)
    assert gate.try_enter(10.5) is not None
    assert gate.try_enter(10.5) is None


def test_unused_probe_is_followed_by_another_at_once() -> None:
    gate = Gate(CapacitySettings(), 0.0)
    gate.pause_until(10.0)
    told: list[str] = []
    first = gate.enqueue(1, lambda: told.append("first"))
    gate.enqueue(1, lambda: told.append("second"))
    assert first is not None
    assert gate.dispatch(10.0) == 10.0 + LOOK_S
    assert told == ["first"]
    gate.dequeue(first, 10.1)
    gate.dispatch(10.1)
    assert told == ["first", "second"]


def test_probe_that_does_not_come_back_opens_the_gate() -> None:
    """An answer may take minutes, and the other calls do not wait for it."""
    gate, first = probing()
    assert gate.try_enter(10.0 + LOOK_S - 0.1) is None
    assert gate.try_enter(10.0 + LOOK_S) is not None
    assert gate.try_enter(10.0 + LOOK_S) is not None
    assert gate.snapshot(15.0).held_since is None
    gate.exit(first, 310.0, "ok", 300.0)
    assert gate.try_enter(310.0) is not None


def test_wait_that_a_light_probe_ends_is_followed_by_one_probe() -> None:
    gate = Gate(CapacitySettings(), 0.0)
    gate.end_hold(1.0)
    assert gate.snapshot(1.0).held_since is None
    gate.pause_until(60.0)
    gate.end_hold(10.0)
    assert gate.try_enter(10.0) is not None
    assert gate.try_enter(10.0) is None
    gate.end_hold(11.0)
    assert gate.try_enter(11.0) is None


def test_answer_of_a_call_from_before_the_hold_shows_nothing() -> None:
    gate = Gate(CapacitySettings(), 0.0)
    before = gate.try_enter(0.0)
    assert before is not None
    gate.pause_until(10.0)
    gate.exit(before, 1.0, "ok", 1.0)
    assert gate.try_enter(9.9) is None


def let_all_in(gate: Gate, probe: Ticket | None, now: float) -> float:
    """Ends a hold with a probe that succeeds after 0.2 s, and returns when the last waiting call has entered."""
    gate.dispatch(now)
    assert probe is not None
    assert probe.slot is not None
    now += 0.2
    gate.exit(probe.slot, now, "ok", 0.2)
    while (next_at := gate.dispatch(now)) is not None:
        now = next_at
    return now


def test_queue_opens_slowly_after_a_hold_when_many_wait() -> None:
    gate = Gate(CapacitySettings(), 0.0)
    gate.pause_until(10.0)
    told: list[float] = []
    tickets = []
    for n in range(500):
        assert gate.try_enter(n / 50) is None
        tickets.append(gate.enqueue(1, lambda: told.append(1.0)))
    now = let_all_in(gate, tickets[0], 10.0)
    assert 17 < now < 20  # they arrived at 50 a second, and are sent a quarter faster
    assert len(told) == 500


def test_calls_that_are_refused_during_a_hold_count_as_arrivals() -> None:
    """Where few calls may wait, those that did used to return at one a second, and most new calls were refused."""
    gate = Gate(CapacitySettings(), 0.0)
    gate.pause_until(30.0)
    for n in range(1500):
        assert gate.try_enter(n / 50) is None
    tickets = [gate.enqueue(1, lambda: None) for _ in range(20)]
    now = let_all_in(gate, tickets[0], 30.0)
    assert now < 33.0


def test_calls_that_entered_at_once_before_a_hold_return_as_fast_as_they_come() -> None:
    """With a concurrency limit that a few calls met, a hold of 2 s at 20 a second cost a third of them."""
    gate = Gate(CapacitySettings(concurrency=1), 0.0)
    for n in range(30):
        slot = gate.try_enter(float(n))
        assert slot is not None
        assert n % 3 or gate.try_enter(n + 0.1) is None
        gate.exit(slot, n + 0.2, "ok", 0.2)
    gate.settings = CapacitySettings()
    gate.pause_until(32.0)
    tickets = []
    for n in range(40):
        assert gate.try_enter(30.0 + n / 20) is None
        tickets.append(gate.enqueue(1, lambda: None))
    now = let_all_in(gate, tickets[0], 32.0)
    assert now < 37.0


def test_call_that_is_sent_again_is_one_arrival() -> None:
    gate = Gate(CapacitySettings(), 0.0)
    at_once = gate.try_enter(0.0)
    assert at_once is not None
    gate.pause_until(10.0)
    for n in range(50):
        assert gate.try_enter(n / 5) is None
    ticket = gate.enqueue(1, lambda: None)
    assert ticket is not None
    came_per_s = gate._paces.free._denied.per_s
    gate.exit(at_once, 10.0, "rate_limited", 10.0)
    assert came_per_s(10.0) == pytest.approx(5.0), "this call has not been counted"
    gate.dispatch(10.0)
    assert ticket.slot is not None
    gate.exit(ticket.slot, 10.0, "rate_limited", 0.1)
    assert came_per_s(10.0) == pytest.approx(4.9), "this one will be counted again"


def test_overflowing_queue_opens_as_fast_as_responses_allow() -> None:
    """The number of arrivals is unknown then."""
    gate = Gate(CapacitySettings(max_queue=100), 0.0)
    gate.pause_until(10.0)
    tickets = [gate.enqueue(1, lambda: None) for _ in range(100)]
    now = let_all_in(gate, tickets[0], 10.0)
    assert now < 15


def test_reset_forgets_a_hold_and_its_probe() -> None:
    gate = Gate(CapacitySettings(), 0.0)
    gate.pause_until(inf)
    gate.reset_pace(1.0)
    assert gate.wait_s(1.0) == 0.0
    gate, _ = probing()
    gate.reset_pace(10.0)
    assert gate.try_enter(10.0) is not None
    assert not gate.snapshot(10.0).is_probing


def test_retry_after_counts_for_all_calls_after_two_429s_in_a_row() -> None:
    evidence = RetryAfterEvidence()
    evidence.note_rate_limited()
    assert not evidence.note_hint(20.0, now=0.0)
    evidence.note_rate_limited()
    assert evidence.note_hint(20.1, now=0.1)


def test_accepted_call_between_two_429s_shows_that_the_first_was_about_one_call() -> None:
    evidence = RetryAfterEvidence()
    evidence.note_rate_limited()
    evidence.note_hint(20.0, now=0.0)
    evidence.note_accepted(-1.0, now=0.1)
    evidence.note_rate_limited()
    assert not evidence.note_hint(20.2, now=0.2)


@pytest.mark.parametrize(
    ("entered_at", "is_contradicted"), [(-0.1, False), (0.0, False), (0.1, True), (19.9, True), (20.0, False)]
)
def test_call_accepted_before_the_hint_ran_out_contradicts_it(entered_at: float, is_contradicted: bool) -> None:
    evidence = RetryAfterEvidence()
    evidence.note_rate_limited()
    evidence.note_hint(20.0, now=0.0)
    evidence.note_accepted(entered_at, now=25.0)
    evidence.note_rate_limited()
    evidence.note_rate_limited()
    assert evidence.note_hint(50.0, now=30.0) is not is_contradicted


def test_contradicted_hint_counts_after_six_429s_in_a_row() -> None:
    evidence = RetryAfterEvidence()
    evidence.note_hint(20.0, now=0.0)
    evidence.note_accepted(1.0, now=2.0)
    found = []
    for _ in range(6):
        evidence.note_rate_limited()
        found.append(evidence.note_hint(30.0, now=10.0))
    assert found == [False] * 5 + [True]


def test_contradiction_is_forgotten_after_a_minute() -> None:
    evidence = RetryAfterEvidence()
    evidence.note_hint(20.0, now=0.0)
    evidence.note_accepted(1.0, now=2.0)
    evidence.note_rate_limited()
    evidence.note_rate_limited()
    assert not evidence.note_hint(81.9, now=61.9)
    assert evidence.note_hint(82.0, now=62.0)


def test_earlier_hint_stays_valid_with_a_later_one() -> None:
    evidence = RetryAfterEvidence()
    evidence.note_hint(20.0, now=0.0)
    evidence.note_hint(10.0, now=5.0)
    evidence.note_accepted(1.0, now=6.0)
    evidence.note_rate_limited()
    evidence.note_rate_limited()
    assert not evidence.note_hint(30.0, now=7.0)


def test_429_of_a_known_quota_counts_alone_unless_its_hint_is_contradicted() -> None:
    evidence = RetryAfterEvidence()
    evidence.note_rate_limited()
    assert evidence.note_hint(20.0, now=0.0, fits_quota=True)
    evidence.note_accepted(1.0, now=2.0)
    evidence.note_rate_limited()
    assert not evidence.note_hint(20.0, now=3.0, fits_quota=True)


@pytest.mark.parametrize(
    ("until", "now", "is_renewal"),
    [(60.0, 2.0, True), (61.0, 2.0, True), (61.1, 30.0, False), (61.0, 1.0, False), (60.0, 0.0, True)],
)
def test_hints_that_end_at_one_instant_name_a_renewal(until: float, now: float, is_renewal: bool) -> None:
    """A constant hint ends the later the later it is given."""
    evidence = RetryAfterEvidence()
    evidence.note_hint(60.0, now=0.0)
    assert not evidence.is_renewal
    evidence.note_hint(until, now=now)
    assert evidence.is_renewal is is_renewal
