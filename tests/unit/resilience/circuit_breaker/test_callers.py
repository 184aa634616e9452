from __future__ import annotations

from random import Random

import pytest

from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings
from llm_guard.resilience.circuit_breaker.callers import MOST_CALLERS, Callers, Suspect
from llm_guard.resilience.retry.limits import BudgetSettings, RetryBudget


def suspect() -> Suspect:
    return Suspect(Breaker(BreakerSettings()), RetryBudget(BudgetSettings(), 0.0))


def fail(callers: Callers, caller: str, times: int, now: float) -> int:
    """Fails `times` calls; returns how often the caller was found to fail alone. It is then judged by itself."""
    found = 0
    for _ in range(times):
        if callers.note_failure(caller, now):
            found += 1
            callers.begin(caller, suspect())
    return found


def alone() -> Callers:
    """Caller `a` has been failing alone since 3 s, while `b` succeeds."""
    callers = Callers()
    fail(callers, "a", 3, 1.0)
    callers.note_ok("b", 2.0, 2.5)
    assert fail(callers, "a", 3, 3.0) == 1
    return callers


def test_caller_that_fails_while_another_succeeds_is_judged_by_itself() -> None:
    callers = alone()
    assert callers.suspect("a") is not None
    assert callers.suspect("b") is None
    assert [caller for caller, _ in callers.suspects()] == ["a"]


def test_one_caller_is_never_judged_by_itself() -> None:
    callers = Callers()
    callers.note_ok("", 0.0, 0.5)
    assert fail(callers, "", 3, 1.0) == 0
    callers.note_ok("", 2.0, 2.5)
    assert fail(callers, "", 1000, 3.0) == 0


def test_success_of_a_call_that_began_before_the_failures_shows_nothing() -> None:
    """The call may have taken a minute, and all calls may have been failing since it began."""
    callers = Callers()
    callers.note_ok("b", 0.0, 0.5)
    assert fail(callers, "a", 100, 1.0) == 0
    callers.note_ok("b", 0.9, 61.0)
    assert fail(callers, "a", 100, 62.0) == 0


def test_caller_that_fails_as_often_as_the_others_is_judged_with_them() -> None:
    callers = Callers()
    draw = Random(1)
    for number in range(2000):
        at, caller = number * 0.1, draw.choice("abc")
        if draw.random() < 0.6:
            assert fail(callers, caller, 1, at) == 0
        else:
            callers.note_ok(caller, at, at)


def test_caller_that_succeeds_is_judged_with_the_others_again() -> None:
    callers = alone()
    for number in range(40):
        callers.note_ok("a", 4.0 + number, 4.0 + number)
    assert callers.suspect("a") is None


def test_caller_that_succeeds_now_and_then_is_still_judged_by_itself() -> None:
    callers = alone()
    for number in range(100):
        fail(callers, "a", 9, 4.0 + number)
        callers.note_ok("a", 4.0 + number, 4.0 + number)
    assert callers.suspect("a") is not None


def test_failures_of_a_suspect_do_not_count_against_the_others() -> None:
    callers = alone()
    fail(callers, "a", 1000, 4.0)
    fail(callers, "c", 3, 5.0)
    callers.note_ok("b", 6.0, 6.5)
    assert fail(callers, "c", 6, 7.0) == 1


def test_caller_that_has_not_failed_yet_probes_out_of_turn_once() -> None:
    callers = Callers()
    assert not callers.try_probe("b", 0.0), "nobody has failed"
    fail(callers, "a", 5, 1.0)
    assert callers.try_probe("b", 1.0)
    assert not callers.try_probe("a", 1.0)
    fail(callers, "b", 1, 2.0)
    assert not callers.try_probe("b", 31.0)
    assert callers.try_probe("b", 32.5)
    callers.note_ok("c", 33.0, 33.0)
    assert not callers.try_probe("b", 63.0), "somebody has succeeded since"


def test_extra_probe_in_flight_holds_back_the_next_one_for_five_seconds() -> None:
    callers = Callers()
    fail(callers, "a", 5, 1.0)
    assert callers.try_probe("b", 1.0)
    assert not callers.try_probe("b", 5.5)
    assert callers.try_probe("b", 6.0), "it hangs, or was cancelled"
    assert callers.try_probe("c", 6.0)


def test_extra_probes_in_flight_are_bounded() -> None:
    """Where a provider hangs, no caller has failed yet."""
    callers = Callers()
    fail(callers, "a", 5, 1.0)
    assert sum(callers.try_probe(f"caller {number}", 1.0 + number / 1000) for number in range(1000)) <= 16 + 8


def test_failures_of_a_suspect_allow_others_an_extra_probe() -> None:
    """While the common breaker is not closed, a suspect takes its probes too."""
    callers = alone()
    callers.note_ok("b", 4.0, 4.0)
    assert not callers.try_probe("b", 4.0), "nobody has failed since"
    fail(callers, "a", 1, 4.0)
    assert callers.try_probe("b", 4.0)


def test_callers_without_failures_probe_four_times_a_second_when_many_fail() -> None:
    callers = Callers()
    for number in range(20):
        fail(callers, str(number), 1, 1.0)
    assert not any(callers.try_probe(str(number), 100.0) for number in range(20))
    assert callers.try_probe("another", 100.0)
    assert not callers.try_probe("one more", 100.2)
    assert callers.try_probe("one more", 100.3)
    fail(callers, "one more", 1, 100.4)
    assert not callers.try_probe("one more", 101.0)


def test_caller_with_an_even_pace_does_not_always_probe_too_late() -> None:
    """Strangers that arrive every 50 ms do not take every probe from a caller that arrives every 250 ms."""
    callers = Callers()
    for number in range(20):
        fail(callers, str(number), 1, 0.0)
    looks = 0
    for turn in range(250):
        callers.try_probe(f"stranger {turn}", turn * 0.05)
        if turn % 5 == 0:
            looks += callers.try_probe("victim", turn * 0.05 + 0.02)
    assert looks >= 2


@pytest.mark.parametrize(("after_s", "is_accepted"), [(0.0, True), (3599.0, True), (3601.0, False)])
def test_key_is_known_for_an_hour_after_the_provider_accepted_it(after_s: float, is_accepted: bool) -> None:
    callers = Callers()
    callers.accept("digest", 10.0)
    assert callers.is_accepted("digest", 10.0 + after_s) is is_accepted
    assert not callers.is_accepted("another", 10.0)


def test_key_in_use_is_not_forgotten_for_a_thousand_new_ones() -> None:
    callers = Callers()
    for number in range(2 * MOST_CALLERS):
        callers.note_ok("", number / 10, number / 10, own_key="in use")
        callers.accept(str(number), number / 10)
    assert callers.is_accepted("in use", 2 * MOST_CALLERS / 10)


def test_callers_and_keys_above_1024_are_forgotten() -> None:
    callers = Callers()
    for number in range(2 * MOST_CALLERS):
        callers.accept(str(number), 1.0)
        callers.note_failure(str(number), 1.0)
    assert len(callers._accepted) == len(callers._records) == MOST_CALLERS
    assert callers.is_accepted(str(2 * MOST_CALLERS - 1), 1.0)


def test_caller_that_has_not_failed_for_minutes_costs_nothing() -> None:
    callers = Callers()
    fail(callers, "a", 1, 0.0)
    assert callers.has_failures
    for number in range(200):
        callers.note_ok("a", float(number), float(number))
    assert not callers.has_failures


def test_reset_judges_all_callers_together() -> None:
    callers = alone()
    callers.reset()
    assert callers.suspect("a") is None
    assert not callers.has_failures
