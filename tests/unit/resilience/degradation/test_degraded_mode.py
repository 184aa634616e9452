from __future__ import annotations

import pytest

from llm_guard.resilience.degradation.degraded_mode import (
    MOST_CHARS,
    Degradation,
    DegradedSettings,
    ModeChange,
    RouteTotals,
    is_common,
    parse_answer,
)

RULES = DegradedSettings(
    static_response="later",
    enter_failure_rate=0.5,
    exit_failure_rate=0.1,
    window=60.0,
    min_calls=10,
    recovery_window=30.0,
    max_wait=10.0,
)


class Route:
    """A route and its call counters."""

    def __init__(self, rules: DegradedSettings = RULES, before: RouteTotals | None = None) -> None:
        self.now = 1000.0
        self.seen = before or RouteTotals()
        self.mode = Degradation(rules, self.seen, self.now)

    def calls(self, answered: int = 0, failed: int = 0, cut_short: int = 0) -> ModeChange | None:
        begun = self.seen.begun + answered + failed + cut_short
        self.seen = RouteTotals(begun, self.seen.answered + answered, self.seen.failed + failed)
        return self.mode.note(self.seen, self.now)

    def later(self, seconds: float) -> ModeChange | None:
        """Advances the clock without any calls."""
        self.now += seconds
        return self.mode.note(self.seen, self.now)


def outage(rules: DegradedSettings = RULES) -> Route:
    route = Route(rules)
    assert route.calls(failed=10) is not None
    return route


# entering degraded mode


@pytest.mark.parametrize(
    ("answered", "failed", "is_degraded"), [(5, 5, True), (6, 5, False), (0, 10, True), (0, 9, False), (90, 90, True)]
)
def test_route_is_degraded_from_its_share_and_its_number_of_calls_on(
    answered: int, failed: int, is_degraded: bool
) -> None:
    route = Route()
    turn = route.calls(answered, failed)
    assert (turn is not None, route.mode.is_degraded) == (is_degraded, is_degraded)


def test_mode_change_states_its_cause() -> None:
    assert Route().calls(4, 6) == ModeChange(True, "6 of 10 calls within 60 s failed")


def test_calls_counted_before_do_not_count() -> None:
    route = Route(before=RouteTotals(100, 0, 100))
    assert route.later(1) is None
    assert route.calls(failed=9) is None


def test_calls_older_than_the_window_are_forgotten() -> None:
    route = Route()
    route.calls(failed=9)
    route.later(30)
    route.later(31)
    assert route.calls(failed=1) is None
    assert route.mode.snapshot(route.now).failed == 1


def test_calls_within_the_window_add_up_over_many_checks() -> None:
    route = Route()
    turns = []
    for _ in range(10):
        route.now += 5
        turns.append(route.calls(failed=1))
    assert [turn is not None for turn in turns] == [False] * 9 + [True]


def test_state_does_not_grow_with_the_number_of_checks() -> None:
    route = Route()
    for _ in range(10_000):
        route.now += 0.25
        route.calls(answered=1)
    assert len(route.mode._at) < 130
    assert route.mode.snapshot(route.now).calls == pytest.approx(240, abs=3)


def test_calls_that_were_cut_short_do_not_count() -> None:
    assert Route().calls(answered=1, cut_short=100) is None


# leaving degraded mode


def test_it_is_left_once_enough_of_the_last_calls_were_answered() -> None:
    route = outage()
    route.now += 29
    assert route.calls(answered=9) is None  # the recovery window has not passed
    route.now += 2
    assert route.calls(answered=9, failed=1) == ModeChange(False, "18 of 19 calls within 30 s succeeded")


@pytest.mark.parametrize(("answered", "failed", "is_left"), [(9, 1, True), (8, 1, False), (1, 0, True), (0, 0, False)])
def test_it_is_left_at_its_share(answered: int, failed: int, is_left: bool) -> None:
    route = outage()
    route.now += 30
    assert (route.calls(answered, failed, cut_short=3) is not None) == is_left


def test_failures_before_the_calm_do_not_hold_it() -> None:
    route = outage()
    route.now += 20
    route.calls(failed=100)
    route.later(1)
    route.now += 30
    assert route.calls(answered=1) is not None


def test_cause_of_the_mode_does_not_end_it() -> None:
    route = outage()
    route.now += 31
    assert route.calls(answered=1) == ModeChange(False, "1 of 1 calls within 30 s succeeded")
    assert route.calls(failed=9) is None
    assert route.calls(failed=1) == ModeChange(True, "10 of 10 calls within 60 s failed")


def test_mode_ends_without_calls() -> None:
    route = outage()
    assert route.later(59) is None
    assert route.later(1) == ModeChange(False, "no calls for 60 s")


def test_it_is_not_left_while_calls_are_cut_short() -> None:
    route = outage()
    for _ in range(20):
        route.now += 10
        assert route.calls(cut_short=1) is None


# calls exempt from the short deadline


def test_one_call_in_many_waits_as_long_as_it_likes() -> None:
    route = outage()
    assert [route.mode.may_wait(route.now) for _ in range(22)] == [False] * 10 + [True] + [False] * 11
    route.now += 10
    assert route.mode.may_wait(route.now)


# snapshot


def test_snapshot_states_start_and_cause() -> None:
    route = Route()
    assert route.mode.snapshot(route.now).since is None
    route.calls(failed=10)
    snapshot = route.mode.snapshot(route.now + 5)
    assert (snapshot.is_degraded, snapshot.since) == (True, route.now)
    assert snapshot.why == "10 of 10 calls within 60 s failed"


def test_route_is_in_use_while_calls_arrive() -> None:
    route = Route()
    assert not route.mode.snapshot(route.now).is_in_use
    route.calls(cut_short=1)
    assert route.mode.snapshot(route.now).is_in_use
    route.later(30)
    route.later(31)
    assert not route.mode.snapshot(route.now).is_in_use


# whole gateway


@pytest.mark.parametrize(
    ("degraded", "in_use", "is_trouble_of_all"),
    [(0, 0, False), (1, 1, False), (2, 2, True), (2, 4, True), (2, 5, False), (3, 6, True)],
)
def test_half_of_the_routes_in_use_are_the_gateways_trouble(
    degraded: int, in_use: int, is_trouble_of_all: bool
) -> None:
    assert is_common(degraded, in_use) == is_trouble_of_all


# settings


@pytest.mark.parametrize("value", ["", "  \n", None, 5, ["x"], "x" * (MOST_CHARS + 1)])
def test_answer_is_a_text_of_some_length(value: object) -> None:
    with pytest.raises(ValueError, match=r"in quotes|at most 8000 characters, has 8001"):
        parse_answer(value)


def test_longest_answer_is_one() -> None:
    assert len(parse_answer("x" * MOST_CHARS)) == MOST_CHARS


@pytest.mark.parametrize(("enter", "leave"), [(0.1, 0.1), (0.1, 0.5), (0.0, 0.0)])
def test_entry_condition_does_not_cause_an_exit(enter: float, leave: float) -> None:
    with pytest.raises(ValueError, match="`exit_failure_rate` must be below `enter_failure_rate`"):
        DegradedSettings(enter_failure_rate=enter, exit_failure_rate=leave)
