"""The keeper of a shared pace: grants for the calls of all gateways, and what it learns from their reports."""

from __future__ import annotations

import pytest

from llm_guard.resilience.capacity.gate import CapacitySettings
from llm_guard.resilience.capacity.pace_keeper import PaceKeeper
from llm_guard.resilience.capacity.pace_report import PaceDecision, PaceEvent, PaceReport, PaceState, WaitingCalls
from llm_guard.resilience.capacity.rate_limit_headers import RateHint, RateLimitWindow

AT_RATE = PaceDecision(1, "old", 0.0, {}, PaceState(10.0, "rate_limits", 1.0))


@pytest.fixture
def keeper() -> PaceKeeper:
    keeper = PaceKeeper(CapacitySettings(), 2, "k", 0.0)
    keeper.begin_at(AT_RATE, 0.0, 0.0)
    return keeper


def waiting(count: int, priority: int = 1, source: str = "", weight: float = 1.0) -> PaceReport:
    return PaceReport(True, 2, "k", waiting=(WaitingCalls(priority, source, count, weight),))


def granted(keeper: PaceKeeper, replica: str, now: float) -> int:
    return len(keeper.decision(now).members[replica].grants)


def run(keeper: PaceKeeper, reports: dict[str, PaceReport], until: float, each_s: float = 0.1) -> None:
    now = 0.0
    while now < until:
        keeper.advance(now)
        for replica, report in reports.items():
            keeper.note(replica, report, now)
        keeper.advance(now)
        now += each_s


def test_grants_follow_the_rate_however_seldom_it_looks(keeper: PaceKeeper) -> None:
    run(keeper, {"a": waiting(100)}, 2.05, each_s=0.4)
    assert granted(keeper, "a", 2.0) == pytest.approx(20, abs=2)


def test_grants_of_half_a_second_at_most_are_made_up_for(keeper: PaceKeeper) -> None:
    keeper.note("a", waiting(100), 0.0)
    keeper.advance(0.0)
    keeper.advance(10.0)
    assert granted(keeper, "a", 10.0) <= 7


def test_gateways_take_turns(keeper: PaceKeeper) -> None:
    run(keeper, {"a": waiting(100), "b": waiting(100), "c": waiting(2)}, 2.0)
    found = {replica: granted(keeper, replica, 2.0) for replica in "abc"}
    assert found["c"] == 2
    assert abs(found["a"] - found["b"]) <= 1


def test_client_takes_turns_with_another_one_however_many_gateways_it_calls(keeper: PaceKeeper) -> None:
    reports = {f"hog {number}": waiting(100, source="hog") for number in range(9)}
    run(keeper, {**reports, "v": waiting(100, source="victim")}, 4.0)
    found = {replica: granted(keeper, replica, 4.0) for replica in (*reports, "v")}
    assert found["v"] == pytest.approx(sum(found.values()) / 2, abs=1)


def test_weights_hold_among_clients_of_several_gateways(keeper: PaceKeeper) -> None:
    light, heavy = waiting(100, source="light"), waiting(100, source="heavy", weight=3.0)
    run(keeper, {"a": light, "b": heavy, "c": light}, 4.0)
    found = {replica: granted(keeper, replica, 4.0) for replica in "abc"}
    assert found["b"] == pytest.approx(0.75 * sum(found.values()), abs=2)


def test_higher_priorities_go_first_at_any_gateway(keeper: PaceKeeper) -> None:
    run(keeper, {"a": waiting(100, priority=2), "b": waiting(100, priority=1)}, 2.0)
    assert granted(keeper, "b", 2.0) == pytest.approx(3 * granted(keeper, "a", 2.0), abs=3)


def test_no_more_grants_than_calls_wait(keeper: PaceKeeper) -> None:
    run(keeper, {"a": waiting(3)}, 2.0)
    assert granted(keeper, "a", 2.0) == 3
    keeper.note("a", PaceReport(True, 2, "k", received=3), 2.0)
    assert granted(keeper, "a", 2.0) == 0


def test_calls_that_no_longer_wait_get_no_grant(keeper: PaceKeeper) -> None:
    keeper.note("a", waiting(50), 0.0)
    keeper.note("a", waiting(0), 0.0)
    keeper.advance(1.0)
    assert granted(keeper, "a", 1.0) == 0
    assert keeper.decision(1.0).waiting == 0


def test_receipt_of_grants_of_another_keeper_says_nothing(keeper: PaceKeeper) -> None:
    run(keeper, {"a": waiting(3)}, 1.0)
    keeper.note("a", PaceReport(True, 2, "other", received=3, waiting=(WaitingCalls(1, "", 3),)), 1.0)
    assert granted(keeper, "a", 1.0) == 3


def test_gateway_that_has_gone_leaves_its_grants_and_turns(keeper: PaceKeeper) -> None:
    run(keeper, {"a": waiting(100), "b": waiting(100)}, 1.0)
    keeper.keep({"b"}, 1.0)
    decision = keeper.decision(1.0)
    assert set(decision.members) == {"b"}
    assert decision.waiting == 100 - len(decision.members["b"].grants)


def test_events_are_read_once(keeper: PaceKeeper) -> None:
    report = PaceReport(True, 2, "k", first=7, events=(PaceEvent("entered"), PaceEvent("ok", "", 0.1)))
    for _ in range(2):
        keeper.note("a", report, 1.0)
    assert keeper.decision(1.0).members["a"].read == 9


def test_429s_of_all_gateways_make_one_rate() -> None:
    keeper = PaceKeeper(CapacitySettings(), 1, "k", 0.0)
    now, first = 0.0, 0
    while now < 3.0 and not keeper.decision(now).is_limited:
        for replica in "abcde":  # each makes four calls a second, of which three are refused
            refused = (PaceEvent("entered"), PaceEvent("rate_limited"))
            events = (PaceEvent("entered"), PaceEvent("ok", "", 0.1), *refused, *refused, *refused)
            keeper.note(replica, PaceReport(True, first=first, events=events), now)
        now, first = now + 1.0, first + 8
    assert keeper.decision(now).free.rate == pytest.approx(5.0, rel=0.3)
    assert now <= 3.0


def test_call_that_was_granted_before_a_cut_is_no_evidence_against_the_new_rate(keeper: PaceKeeper) -> None:
    for number in range(20):
        events = (PaceEvent("entered"), PaceEvent("rate_limited", "", 0.0, 0.0))
        keeper.note("a", PaceReport(True, 2, "k", first=2 * number, events=events), 2.0)
    first_cut = keeper.decision(2.0).free.rate
    for number in range(20, 30):
        events = (PaceEvent("entered"), PaceEvent("rate_limited", "", 0.0, 1.9))
        keeper.note("a", PaceReport(True, 2, "k", first=2 * number, events=events), 2.7)
    assert keeper.decision(2.7).free.rate == first_cut


def test_retry_after_holds_all_and_one_call_probes(keeper: PaceKeeper) -> None:
    refused = (PaceEvent("entered"), PaceEvent("rate_limited"), PaceEvent("retry_after", "", 5.0))
    keeper.note("a", PaceReport(True, 2, "k", first=0, events=refused), 1.0)
    keeper.note("a", PaceReport(True, 2, "k", first=3, events=refused), 1.0)
    assert keeper.decision(1.0).free.held_s == pytest.approx(5.0)
    keeper.note("b", waiting(10), 1.1)
    keeper.advance(5.9)
    assert granted(keeper, "b", 5.9) == 0
    keeper.advance(6.1)
    [grant] = keeper.decision(6.1).members["b"].grants
    answered = (PaceEvent("entered"), PaceEvent("ok", "", 0.1, grant.granted_at))
    keeper.note("b", PaceReport(True, 2, "k", 1, 0, answered, (WaitingCalls(1, "", 9),)), 6.4)
    assert keeper.decision(6.4).free.held_since_s is None


def test_probe_that_is_not_sent_leaves_its_turn_to_another(keeper: PaceKeeper) -> None:
    keeper.begin_at(PaceDecision(1, "old", 0.0, {}, PaceState(held_s=1.0, held_since_s=0.0)), 0.0, 0.0)
    keeper.note("a", waiting(2), 0.0)
    keeper.advance(1.1)
    [grant] = keeper.decision(1.1).members["a"].grants
    keeper.note("a", PaceReport(True, 2, "k", 1, 0, (PaceEvent("returned", "", 0.0, grant.granted_at),),
                                (WaitingCalls(1, "", 1),)), 1.2)  # fmt: skip
    keeper.advance(1.4)
    assert granted(keeper, "a", 1.4) == 1


def test_end_of_a_hold_and_a_reset_reach_the_keeper(keeper: PaceKeeper) -> None:
    keeper.begin_at(PaceDecision(1, "old", 0.0, {}, PaceState(held_s=9.0, held_since_s=0.0)), 0.0, 0.0)
    keeper.note("a", PaceReport(events=(PaceEvent("hold_ended"),)), 1.0)
    assert keeper.decision(1.0).free.held_s is None
    keeper.note("a", PaceReport(first=1, events=(PaceEvent("reset"),)), 1.0)
    assert not keeper.decision(1.0).is_limited
    assert not keeper.is_active


def test_headers_limit_all(keeper: PaceKeeper) -> None:
    window = RateLimitWindow("remaining-requests", False, 600.0, 0.0, 10.0, 60.0)
    keeper = PaceKeeper(CapacitySettings(), 1, "k", 0.0)
    keeper.note("a", PaceReport(events=(PaceEvent("hint", "", 0.1, None, RateHint((window,))),)), 1.0)
    state = keeper.decision(1.0).free
    assert state.rate == pytest.approx(10.0)
    assert state.cause == "headers"


def test_new_keeper_goes_on_at_the_published_rate_and_hold() -> None:
    keeper = PaceKeeper(CapacitySettings(), 2, "k", 100.0)
    keeper.begin_at(PaceDecision(1, "old", 0.0, {}, PaceState(8.0, "rate_limits", 5.0, held_s=3.0)), 1.0, 100.0)
    state = keeper.decision(100.0).free
    assert state.rate == 8.0
    assert state.held_s == pytest.approx(2.0)


def test_small_quota_stays_one() -> None:
    keeper = PaceKeeper(CapacitySettings(), 2, "k", 100.0)
    keeper.begin_at(PaceDecision(1, "old", 0.0, {}, PaceState(0.25, "rate_limits", 5.0)), 0.0, 100.0)
    state = keeper.decision(100.5).free
    assert (state.rate, state.is_probing) == (0.25, False)


def test_stop_stays_one() -> None:
    keeper = PaceKeeper(CapacitySettings(), 2, "k", 100.0)
    keeper.begin_at(PaceDecision(1, "old", 0.0, {}, PaceState(1.0, "rate_limits", 5.0, is_probing=True)), 0.0, 100.0)
    assert keeper.decision(100.5).free.is_probing


def test_parts_of_the_rate_are_added_up() -> None:
    keeper = PaceKeeper(CapacitySettings(), 1, "k", 0.0)
    for replica in "abc":
        for _ in range(2):
            keeper.note(replica, PaceReport(True, rate=2.0), 0.0)
    assert keeper.decision(0.0).free.rate == pytest.approx(6.0)


def test_callers_that_others_limit_stay_apart() -> None:
    keeper = PaceKeeper(CapacitySettings(), 2, "k", 0.0)
    keeper.begin_at(PaceDecision(1, "old", apart=PaceState(2.0, "rate_limits", 1.0), callers=("slow",)), 0.0, 0.0)
    keeper.note("a", PaceReport(True, waiting=(WaitingCalls(1, "slow", 9), WaitingCalls(1, "fast", 9))), 0.0)
    keeper.advance(1.0)
    decision = keeper.decision(1.0)
    sources = [grant.source for grant in decision.members["a"].grants]
    assert sources.count("fast") == 9
    assert sources.count("slow") <= 2
    assert decision.callers == ("slow",)
    assert decision.apart is not None
    assert decision.apart.rate == pytest.approx(2.0, rel=0.1)
