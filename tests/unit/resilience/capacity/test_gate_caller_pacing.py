from __future__ import annotations

from random import Random

from llm_guard.resilience.capacity.fair_queue import Ticket
from llm_guard.resilience.capacity.gate import Paces
from llm_guard.resilience.capacity.pacing import Pace
from llm_guard.resilience.capacity.settings import CapacitySettings
from llm_guard.resilience.capacity.throttled_callers import MOST_CALLERS, ThrottledCallers

SETTINGS = CapacitySettings()


def refuse(paces: Paces, caller: str, *instants: float, hint_s: float = 30.0) -> None:
    """Notes calls that were refused at once with a Retry-After of `hint_s`."""
    for now in instants:
        paces.of(caller, now)
        paces.note_rate_limited(caller, now, SETTINGS, now, has_waited=False)
        paces.of_known(caller).note_retry_after(now + hint_s, now, now)
        paces.join_if_limited(now)


def accept(paces: Paces, caller: str, now: float) -> None:
    paces.of(caller, now)
    paces.note_accepted(caller, now, SETTINGS, 0, now, is_ok=True)


def is_held(paces: Paces, caller: str, now: float) -> bool:
    return paces.of(caller, now).hold_opens_at() > now


def test_limit_that_one_caller_has_begun_binds_no_other() -> None:
    paces = Paces(0.0)
    refuse(paces, "poisoner", 0.0, 0.1)
    assert not is_held(paces, "victim", 1.0)
    assert is_held(paces, "poisoner", 1.0)


def test_with_one_caller_there_is_one_pace() -> None:
    paces = Paces(0.0)
    refuse(paces, "poisoner", 0.0, 0.1)
    assert is_held(paces, "poisoner", 1.0)
    assert paces.apart is None


def test_callers_that_are_all_refused_share_one_pace() -> None:
    paces = Paces(0.0)
    refuse(paces, "one", 0.0, 0.1)
    refuse(paces, "two", 0.2, 0.3)
    assert is_held(paces, "two", 1.0)
    assert paces.of("one", 1.0) is paces.of("two", 1.0)
    assert not is_held(paces, "three", 1.0)


def test_forecast_isolates_no_caller() -> None:
    paces = Paces(0.0)
    refuse(paces, "poisoner", 0.0, 0.1)
    assert paces.forecast_of("victim") is None
    assert paces.forecast_of("poisoner") is paces.free
    assert paces.apart is None


def test_caller_that_was_accepted_since_its_refusal_is_not_bound_by_the_limit_of_another() -> None:
    paces = Paces(0.0)
    refuse(paces, "victim", 0.0)
    accept(paces, "victim", 0.5)
    refuse(paces, "poisoner", 1.0, 1.1)
    assert paces.of_known("poisoner").is_limited
    assert not paces.of("victim", 2.0).is_limited


def send(paces: Paces, caller: str, now: float, *, is_accepted: bool) -> None:
    paces.of(caller, now).take(SETTINGS, 0, now)
    if is_accepted:
        paces.note_accepted(caller, now, SETTINGS, 0, now, is_ok=True)
    else:
        paces.note_rate_limited(caller, now, SETTINGS, now, has_waited=False)


def paces_with_rate_of(caller: str) -> Paces:
    """Three of four calls of this caller got a 429 until 1.5 s. A rate at which calls are accepted has been learned."""
    paces = Paces(0.0)
    for call in range(60):
        send(paces, caller, call / 40, is_accepted=call % 4 == 0)
    assert paces.of_known(caller).is_accepting
    return paces


def test_limit_that_a_caller_of_few_calls_meets_as_well_is_that_of_all() -> None:
    paces = paces_with_rate_of("heavy")
    for now in (2.0, 2.1, 2.2):
        send(paces, "light", now, is_accepted=False)
    assert paces.of("light", 3.0) is paces.of("heavy", 3.0) is paces.of("new", 3.0)
    assert paces.shown()[1] is None
    waiting = Ticket(1, lambda: None, source="new")
    assert [paces.only(is_apart=is_apart).selects(waiting) for is_apart in (False, True)] == [False, True]


def test_caller_that_is_refused_by_chance_does_not_join_those_that_are_held() -> None:
    paces = Paces(0.0)
    refuse(paces, "poisoner", 0.0, 0.1)
    for now in (2.0, 2.1, 2.2):
        send(paces, "victim", now, is_accepted=False)
    assert not is_held(paces, "victim", 3.0)


def test_caller_that_is_seldom_refused_does_not_join() -> None:
    paces = paces_with_rate_of("heavy")
    for call in range(400):
        send(paces, "victim", 2.0 + call / 10, is_accepted=call % 20 != 0)
    assert paces.of("victim", 43.0) is not paces.of("heavy", 43.0)


def test_limit_is_not_that_of_all_any_more_once_one_of_them_leaves() -> None:
    apart = ThrottledCallers(Pace(0.0), ["poisoner"], 0.0)
    apart.has_all = True
    for second in range(30):
        apart.note_refused("poisoner", second, second)
        if apart.note_accepted("victim", second + 0.5):
            apart.leave("victim")
            break
    assert (apart.has("victim"), apart.has("new"), apart.has("poisoner")) == (False, False, True)


def test_reset_forgets_isolated_callers() -> None:
    paces = Paces(0.0)
    refuse(paces, "poisoner", 0.0, 0.1)
    assert not is_held(paces, "victim", 1.0)
    paces.reset(1.0)
    assert not is_held(paces, "poisoner", 1.0)
    assert paces.apart is None


def test_callers_are_together_again_a_minute_after_the_last_refusal() -> None:
    paces = Paces(0.0)
    refuse(paces, "poisoner", 0.0, 0.1, hint_s=5.0)
    accept(paces, "victim", 1.0)
    paces.of("poisoner", 6.0).take(SETTINGS, 0, 6.0)
    accept(paces, "poisoner", 6.0)
    assert paces.apart is not None
    accept(paces, "poisoner", 120.0)
    assert paces.apart is None


def test_caller_that_is_accepted_whenever_the_others_are_refused_leaves_them() -> None:
    apart = ThrottledCallers(Pace(0.0), ["poisoner", "victim"], 0.0)
    left_after = 0
    for second in range(30):
        apart.note_refused("poisoner", second, second)
        if apart.note_accepted("victim", second + 0.5):
            left_after = second + 1
            break
    assert left_after == 18


def test_callers_with_one_limit_stay_together() -> None:
    """The share of refused calls does not matter, nor that one caller sends nine times as many."""
    for share in (0.05, 0.5, 0.95):
        apart, draw = ThrottledCallers(Pace(0.0), ["hog", "light"], 0.0), Random("together").random
        for now in range(20_000):
            caller = "hog" if draw() < 0.9 else "light"
            if draw() < share:
                apart.note_refused(caller, now, now)
            else:
                assert not apart.note_accepted(caller, now)


def test_accepted_call_from_before_the_refusal_shows_nothing() -> None:
    apart = ThrottledCallers(Pace(0.0), ["poisoner", "victim"], 0.0)
    for second in range(100):
        apart.note_refused("poisoner", 1000.0 + second, 1000.0 + second)
        assert not apart.note_accepted("victim", 999.0)


def test_callers_that_are_remembered_are_bounded() -> None:
    paces = Paces(0.0)
    for number in range(3 * MOST_CALLERS):
        refuse(paces, f"key {number}", float(number), float(number))
    assert paces.apart is not None
    assert len(paces.apart.callers) <= MOST_CALLERS
    assert len(paces._refused) <= MOST_CALLERS
