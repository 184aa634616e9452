"""Breakers of several gateways: conclusions from shared evidence, and the lease for probes.

`benchmarks/storm/replicas.py` measures the same over whole outages and brown-outs.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from llm_guard.outcome import Signal
from llm_guard.resilience.circuit_breaker.breaker import BreakerSettings, ConsecutiveFailures, Permit
from llm_guard.resilience.circuit_breaker.history import BreakerState
from llm_guard.resilience.circuit_breaker.probe_lease import ProbeLease
from llm_guard.resilience.circuit_breaker.shared_breaker import SharedBreaker
from llm_guard.resilience.circuit_breaker.shared_evidence import (
    MOST_AGES,
    BreakerSummary,
    PooledRun,
    PooledWindow,
    SharedRate,
    ok_takes_s,
)

HEALTHY, UNHEALTHY = Signal.HEALTHY, Signal.UNHEALTHY


def acquire(breaker: SharedBreaker, now: float) -> Permit:
    permit = breaker.try_acquire(now)
    assert permit is not None
    return permit


def call(breaker: SharedBreaker, signal: Signal, sent_at: float, takes_s: float = 0.05) -> None:
    breaker.settle(acquire(breaker, sent_at), signal, sent_at + takes_s)


def summary(breaker: SharedBreaker, now: float) -> BreakerSummary:
    found = breaker.summary(now)
    assert found is not None
    return found


def healthy(
    count: int, begin: float = 0.0, settings: BreakerSettings | None = None, takes_s: float = 0.05
) -> SharedBreaker:
    """Returns a breaker after so many successes, one a second."""
    breaker = SharedBreaker(settings or BreakerSettings())
    for n in range(count):
        call(breaker, HEALTHY, begin + n, takes_s)
    return breaker


def exchange(*breakers: SharedBreaker, now: float) -> None:
    """Lets each conclude from the summaries of the others."""
    found = [summary(breaker, now) for breaker in breakers]
    for place, breaker in enumerate(breakers):
        others = found[:place] + found[place + 1 :]
        breaker.note_calls_elsewhere(sum(other.calls for other in others))
        breaker.conclude_with(others, now)


def down(count: int = 3, now: float = 100.0) -> list[SharedBreaker]:
    """Returns breakers that have found an outage together, at `now`."""
    breakers = [healthy(20, 60.0) for _ in range(count)]
    for n in range(6):
        call(breakers[n % count], UNHEALTHY, now - 6.0 + n)
    exchange(*breakers, now=now)
    exchange(*breakers, now=now + 0.1)
    assert {breaker.state for breaker in breakers} == {"open"}
    return breakers


# evidence


def test_failures_of_all_gateways_are_one_run() -> None:
    breakers = [healthy(20, 60.0) for _ in range(5)]
    for n, breaker in enumerate(breakers):
        call(breaker, UNHEALTHY, 90.0 + n)
        assert breaker.state == "closed"
    idle = SharedBreaker(BreakerSettings())
    exchange(*breakers, idle, now=96.0)
    assert {breaker.state for breaker in (*breakers, idle)} == {"open"}
    assert breakers[0].history.latest()[-1].why == "5 failures in a row at 5 gateways"


@pytest.mark.parametrize("only", [0, 2])
def test_success_anywhere_ends_the_run(only: int) -> None:
    breakers = [healthy(20, 60.0) for _ in range(6)]
    for n in range(24):
        call(breakers[n % 6], UNHEALTHY, 90.0 + n / 10)
    call(breakers[only], HEALTHY, 92.9)
    exchange(*breakers, now=93.5)
    assert {breaker.state for breaker in breakers} == {"closed"}


def test_success_that_was_sent_before_the_failures_does_not_end_the_run() -> None:
    """Where failures are quicker than successes, it says nothing about the provider now."""
    breakers = [healthy(20, 60.0) for _ in range(3)]
    slow = acquire(breakers[2], 89.0)
    for n in range(6):
        call(breakers[n % 2], UNHEALTHY, 90.0 + n)
    breakers[2].settle(slow, HEALTHY, 96.0)
    exchange(*breakers, now=96.5)
    assert {breaker.state for breaker in breakers} == {"open"}


def test_trouble_of_one_gateway_refuses_no_call_of_the_others() -> None:
    struck, *others = [healthy(20, 60.0) for _ in range(4)]
    for n in range(40):
        if (permit := struck.try_acquire(90.0 + n)) is not None:
            struck.settle(permit, UNHEALTHY, 90.05 + n)
        exchange(struck, *others, now=90.1 + n)
    assert struck.state in ("open", "half_open")
    assert {other.state for other in others} == {"closed"}


def test_call_that_outlives_the_failures_anywhere_speaks_against_an_outage() -> None:
    for is_in_flight in (True, False):
        breakers = [healthy(20, 60.0, takes_s=0.9) for _ in range(3)]
        if is_in_flight:
            acquire(breakers[2], 90.5)
        for n in range(6):
            call(breakers[n % 2], UNHEALTHY, 90.0 + n / 5)
        exchange(*breakers, now=91.5)
        assert {breaker.state for breaker in breakers} == {"closed" if is_in_flight else "open"}


def test_failures_that_are_usual_for_all_gateways_are_no_outage() -> None:
    draw = random.Random(5)
    breakers = [SharedBreaker(BreakerSettings()) for _ in range(10)]
    for n in range(6000):
        call(draw.choice(breakers), UNHEALTHY if draw.random() < 0.2 else HEALTHY, n / 10)
        exchange(*breakers, now=n / 10 + 0.06)
    assert [breaker.state for breaker in breakers] == ["closed"] * 10


def test_literal_numbers_hold_for_all_gateways_together() -> None:
    literal = BreakerSettings(sensitivity="literal")
    breakers = [healthy(20, 60.0, literal) for _ in range(2)]
    for n in range(5):
        call(breakers[n % 2], UNHEALTHY, 90.0 + n / 100)
    exchange(*breakers, now=90.2)
    assert {breaker.state for breaker in breakers} == {"open"}

    literal = replace(literal, consecutive_failures=100)
    breakers = [healthy(6, 60.0, literal) for _ in range(2)]
    for n in range(16):
        call(breakers[n % 2], UNHEALTHY if n // 2 % 4 else HEALTHY, 90.0 + n / 100)
    exchange(*breakers, now=91.0)
    assert {breaker.state for breaker in breakers} == {"closed"}, "12 of 28"
    for n in range(4):
        call(breakers[n % 2], UNHEALTHY, 92.0 + n / 100)
    exchange(*breakers, now=93.0)
    assert {breaker.state for breaker in breakers} == {"open"}, "16 of 32"
    assert breakers[0].history.latest()[-1].why == "16 of 32 calls failed within 60 s, at all gateways"


def test_state_that_an_operator_has_set_is_neither_shared_nor_changed() -> None:
    forced, *breakers = [healthy(20, 60.0) for _ in range(4)]
    forced.force("forced_closed", 89.0)
    assert forced.summary(89.0) is None
    for n in range(6):
        call(breakers[n % 3], UNHEALTHY, 90.0 + n)
    forced.conclude_with([summary(breaker, 96.0) for breaker in breakers], 96.0)
    assert forced.state == "forced_closed"


def test_stream_that_breaks_off_is_no_success() -> None:
    breakers = [healthy(20, 60.0) for _ in range(2)]
    for n in range(6):
        permit = acquire(breakers[n % 2], 90.0 + n)
        breakers[n % 2].settle(permit, HEALTHY, 90.1 + n)
        breakers[n % 2].revise_to_failure(permit, 90.2 + n)
    exchange(*breakers, now=96.0)
    assert {breaker.state for breaker in breakers} == {"open"}


# recovery


def test_recovery_at_one_gateway_lets_the_others_probe_at_once() -> None:
    first, *others = down()
    permit = None
    first.lease.grant(200.0, 101.0)
    permit = acquire(first, 101.0)
    first.settle(permit, HEALTHY, 101.5)
    assert first.state == "closed"
    exchange(first, *others, now=101.6)
    assert {other.state for other in others} == {"half_open"}
    assert all(other.lease.is_free(101.6) for other in others)
    for other in others:
        call(other, HEALTHY, 101.7)
    assert {other.state for other in others} == {"closed"}


def test_gateway_with_trouble_of_its_own_hears_of_a_recovery_once() -> None:
    first, struck = down(2)
    first.lease.grant(200.0, 101.0)
    first.settle(acquire(first, 101.0), HEALTHY, 101.5)
    exchange(first, struck, now=101.6)
    assert struck.state == "half_open"
    struck.settle(acquire(struck, 101.6), UNHEALTHY, 101.65)
    exchange(first, struck, now=101.7)
    assert {breaker.state for breaker in (first, struck)} == {"closed", "open"}


def test_recovery_before_the_outage_is_no_news() -> None:
    first, second = down(2)
    for breaker in (first, second):
        breaker.lease.free()
        breaker.settle(acquire(breaker, 102.0), HEALTHY, 102.1)
    struck = first
    for n in range(100):
        if (permit := struck.try_acquire(110.0 + n)) is not None:
            struck.settle(permit, UNHEALTHY, 110.05 + n)
    exchange(first, second, now=210.0)
    assert struck.state == "open"


# the right to probe


def test_one_gateway_at_a_time_probes() -> None:
    breakers = down()
    assert [breaker.try_acquire(101.0) for breaker in breakers] == [None] * 3
    assert {breaker.retry_after_s(101.0) for breaker in breakers} == {0.1}
    wanted = [breaker.lease.wanted_until(101.05) for breaker in breakers]
    assert wanted == [pytest.approx(101.45)] * 3
    breakers[1].lease.grant(101.45, 101.05)
    assert [breaker.try_acquire(101.1) is not None for breaker in breakers] == [False, True, False]
    assert breakers[0].refused == 0, "it waits, and may not be refused at all"
    breakers[0].lease.note_taken(102.0)
    assert not breakers[0].awaits_lease(101.2)
    assert breakers[0].try_acquire(101.2) is None
    assert breakers[0].refused == 1
    assert breakers[0].retry_after_s(101.2) == breakers[0].come_back_s(101.2) == pytest.approx(0.8)


def test_right_passes_on_although_its_holder_goes_on_probing() -> None:
    """The calls of a gateway with trouble of its own used to extend it forever."""
    lease = ProbeLease()
    now, held_until = 10.0, 10.0
    while now < 13.0:
        lease.restrict(now)
        lease.try_use(now)
        if (until := lease.wanted_until(now)) is not None:
            held_until = until
            lease.grant(until, now)
        elif now >= held_until:
            break
        now += 0.05
    assert now < 12.0


def test_every_gateway_probes_once_the_exchanges_have_ended() -> None:
    breaker = down()[0]
    assert breaker.try_acquire(101.5) is None
    assert breaker.try_acquire(102.2) is not None


def test_half_open_breaker_without_the_right_tells_clients_when_to_come_back() -> None:
    """With no probe in flight every call used to fail with an internal error."""
    breaker = down()[0]
    breaker.note_probe(True, 101.0)
    assert breaker.state == "half_open"
    assert breaker.try_acquire(101.0) is None
    assert breaker.come_back_s(101.0) == pytest.approx(0.1)
    breaker.lease.note_taken(101.7)
    assert breaker.come_back_s(101.0) == pytest.approx(0.7)


@pytest.mark.parametrize("by", ["reset", "force"])
def test_others_do_not_undo_what_an_operator_has_reset(by: str) -> None:
    first, *others = down(6)
    if by == "reset":
        first.reset(101.0, "an operator")
    else:
        first.force("forced_open", 100.5)
        first.force("auto", 101.0)
    exchange(first, *others, now=101.1)
    assert first.state == "closed"


def test_gateway_with_few_of_the_calls_keeps_its_part_of_the_share() -> None:
    for calls_per_own in (1.0, 100.0, 1e5, 1e12):
        rate = SharedRate(0.0, calls_per_own)
        for _ in range(100):
            rate.note_success(3)
        assert all(0.0 <= part <= 1.0 for part in rate.parts)


def test_without_other_gateways_everyone_probes() -> None:
    breaker = down()[0]
    breaker.conclude_with([], 101.0)
    assert breaker.try_acquire(101.0) is not None


def test_where_another_gateways_calls_are_served_everyone_probes() -> None:
    first, second = down(2)
    first.conclude_with([replace(summary(second, 101.0), state="closed")], 101.0)
    assert first.try_acquire(101.0) is not None


def test_right_is_wanted_only_while_calls_ask_for_it() -> None:
    lease = ProbeLease()
    lease.restrict(10.0)
    assert lease.wanted_until(10.0) is None
    assert not lease.try_use(10.0)
    assert lease.wanted_until(10.2) == pytest.approx(10.6)
    assert lease.wanted_until(10.3) is None


def test_right_that_was_used_is_kept_until_the_next_probe_may_go() -> None:
    lease = ProbeLease()
    lease.restrict(10.0)
    lease.grant(10.4, 10.0)
    assert lease.try_use(10.1)
    assert lease.wanted_until(10.1) == pytest.approx(11.6)
    lease.grant(11.6, 10.1)
    assert lease.wanted_until(10.5) == pytest.approx(11.6)
    assert not lease.is_held(11.5), "it could not be extended in time"
    assert lease.wanted_until(11.7) is None


def test_right_that_is_not_used_is_not_extended() -> None:
    lease = ProbeLease()
    lease.restrict(10.0)
    lease.try_use(9.9)
    lease.grant(10.4, 10.0)
    assert lease.wanted_until(10.3) is None


# the parts


def test_summary_grows_older() -> None:
    breaker = healthy(3)
    acquire(breaker, 3.0)
    call(breaker, UNHEALTHY, 4.0)
    now, later = summary(breaker, 5.0), summary(breaker, 7.0)
    assert now.aged(2.0) == later
    assert (now.calls, now.failures, now.counted) == (4, 1, 1)
    assert now.takes_s == pytest.approx(0.05)
    assert (now.ok_sent_s, now.first_sent_s, now.latest_sent_s, now.in_flight_s) == (3.0, 1.0, (1.0,), (2.0,))


def test_summary_has_few_ages_of_many_calls() -> None:
    breaker = SharedBreaker(BreakerSettings(consecutive_failures=1000))
    for n in range(100):
        acquire(breaker, n / 100)
        call(breaker, UNHEALTHY, n / 100)
    found = summary(breaker, 2.0)
    assert len(found.latest_sent_s) == MOST_AGES
    assert found.latest_sent_s[0] == pytest.approx(1.01)
    assert len(found.in_flight_s) <= MOST_AGES
    assert found.in_flight_s[0] == 2.0
    assert found.counted_within(3.0) == 100
    assert found.counted_within(1.5) == MOST_AGES


def test_one_gateway_alone_is_pooled_as_it_is() -> None:
    breaker, draw = SharedBreaker(BreakerSettings()), random.Random(3)
    for n in range(300):
        call(breaker, UNHEALTHY if draw.random() < 0.3 else HEALTHY, n / 4)
    for n in range(3):
        call(breaker, UNHEALTHY, 75.0 + n)
    now, own = 78.5, breaker._run
    found = [summary(breaker, now)]
    run, window = PooledRun(found, now), PooledWindow(found)
    assert (run.length, run.counted, run.gateways) == (own.length, own.counted, 1)
    assert run.began_at == pytest.approx(own.began_at)
    assert run.takes_s == pytest.approx(own.takes_s)
    assert run.lately() == pytest.approx(own.lately(), rel=0.05)
    for at in (74.0, 75.5, 76.5, 78.0):
        assert run.count_sent_by(at) == own.count_sent_by(at)
    assert (window.calls, window.failures) == (breaker._window.calls, breaker._window.failures)
    assert window.calls_per_s(now) == pytest.approx(breaker._window.calls_per_s(now))
    assert window.is_young(now) == breaker._window.is_young(now)
    assert ok_takes_s(found) == pytest.approx(0.05)


@pytest.mark.parametrize("gateways", [1, 3, 10])
def test_parts_of_the_share_of_failures_add_up_to_that_of_one_gateway(gateways: int) -> None:
    draw = random.Random(9)
    whole = ConsecutiveFailures()
    parts = [SharedRate(0.0, gateways) for _ in range(gateways)]
    failures = [0] * gateways
    wholes, sums = [], []
    for n in range(20_000):
        number = draw.randrange(gateways)
        if draw.random() < 0.4:
            whole.add_failure(float(n), float(n))
            failures[number] += 1
        else:
            whole.end()
            parts[number].note_success(failures[number])
            failures[number] = 0
            wholes.append(whole.recent_rate)
            sums.append(sum(part.parts[0] for part in parts))
    mean = sum(wholes) / len(wholes)
    assert 0.9 * mean <= sum(sums) / len(sums) <= 1.35 * mean


def test_breaker_is_well_without_failures_in_its_window() -> None:
    breaker = SharedBreaker(BreakerSettings())
    assert breaker.is_well(0.0)
    breaker.settle(acquire(breaker, 0.0), UNHEALTHY, 0.1)
    assert not breaker.is_well(0.2)
    assert not breaker.is_idle(0.2)
    assert breaker.is_well(100.0)  # the failure has left the window, and nothing is published any more
    assert breaker.is_idle(100.0)
    breaker.settle(acquire(breaker, 100.0), HEALTHY, 100.1)
    assert breaker.is_well(100.2)
    assert not breaker.is_idle(100.2)


@pytest.mark.parametrize(
    ("state", "is_well"),
    [("open", False), ("half_open", False), ("forced_open", True), ("disabled", True)],
)
def test_state_that_an_operator_has_set_is_no_news_for_other_gateways(state: BreakerState, is_well: bool) -> None:
    breaker = SharedBreaker(BreakerSettings())
    if state == "forced_open" or state == "disabled":
        breaker.force(state, 0.0)
    else:
        for at in range(20):
            if (permit := breaker.try_acquire(at / 10)) is not None:
                breaker.settle(permit, UNHEALTHY, at / 10 + 0.01)
        if state == "half_open":
            breaker.end_opening(3.0, "")
    assert breaker.state == state
    assert breaker.is_well(3.0) == is_well


def test_stream_that_breaks_off_leaves_the_rate_as_it_was_before_it() -> None:
    """Also if the success before it was of an earlier call, which ended a run of failures."""
    breaker = SharedBreaker(BreakerSettings())
    earlier, stream = acquire(breaker, 0.0), acquire(breaker, 0.1)
    breaker.settle(stream, HEALTHY, 0.2)
    breaker.settle(acquire(breaker, 0.3), UNHEALTHY, 0.4)
    breaker.settle(earlier, HEALTHY, 0.5)
    assert summary(breaker, 0.6).rates > (0.0, 0.0)
    breaker.revise_to_failure(stream, 0.7)
    assert summary(breaker, 0.8).rates == (0.0, 0.0)
