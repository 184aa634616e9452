from __future__ import annotations

from math import inf

import pytest

from llm_guard.outcome import Limit
from llm_guard.resilience.routing.candidates import (
    Latency,
    LearnedSettings,
    TimeoutSettings,
    attempt_ends_at,
    can_finish,
    deadline_at,
    earlier,
    first_token_s,
    reserve_s,
)


def taking(*durations_s: float, cut: int = 0) -> Latency:
    """Returns latency statistics of about a hundred exchanges, all observed at 0."""
    latency = Latency()
    for duration_s in durations_s:
        latency.note(duration_s, 0.0)
    for _ in range(cut):
        latency.note_cut(1e9, 0.0)
    return latency


def always(duration_s: float) -> Latency:
    return taking(*[duration_s] * 100)


def test_defaults_are_the_documented_ones() -> None:
    assert TimeoutSettings() == TimeoutSettings(connect=5.0, first_token=None, idle=30.0, attempt=None, total=600.0)


def test_attempt_without_a_limit_lasts_as_long_as_the_client_waits() -> None:
    unconfigured = TimeoutSettings()
    assert unconfigured.attempt_s(is_client_timeout_known=False) == 600.0
    assert unconfigured.attempt_s(is_client_timeout_known=True) == inf
    assert TimeoutSettings(attempt=45.0).attempt_s(is_client_timeout_known=True) == 45.0


def test_first_token_without_a_limit_may_take_two_minutes_however_fast_others_were() -> None:
    assert first_token_s(TimeoutSettings(), Latency(), 0.0) == 120.0
    assert first_token_s(TimeoutSettings(), always(0.5), 0.0) == 120.0


def test_first_token_without_a_limit_may_take_longer_where_it_usually_does() -> None:
    assert first_token_s(TimeoutSettings(), always(100.0), 0.0) == 300.0
    assert first_token_s(TimeoutSettings(), taking(*[100.0] * 90, cut=10), 0.0) == 120.0
    assert first_token_s(TimeoutSettings(), taking(*[1.0] * 600, 100.0), 0.0) == 120.0


@pytest.mark.parametrize("limit", ["attempt", "first_token"])
def test_limit_is_configured_where_the_file_names_it(limit: Limit) -> None:
    assert not TimeoutSettings().is_configured(limit)
    assert TimeoutSettings(attempt=45.0, first_token=10.0).is_configured(limit)
    assert TimeoutSettings(learned=LearnedSettings()).is_configured(limit) == (limit == "first_token")
    assert TimeoutSettings().is_configured("connect")


def test_nothing_is_reserved_at_the_cost_of_answers_as_long_as_one_before() -> None:
    own = taking(*[1.0] * 300, 500.0)
    assert reserve_s(600.0, 600.0, own, always(150.0), 0.0) == 150.0
    assert reserve_s(600.0, 600.0, own, always(150.0), 0.0, own.longest_s) == 0.0
    assert reserve_s(600.0, 600.0, own, always(50.0), 0.0, own.longest_s) == 50.0


def test_deadline_is_the_total_from_now() -> None:
    assert deadline_at(1000.0, 600.0, None) == 1600.0


def test_client_can_shorten_the_deadline_but_not_lengthen_it() -> None:
    assert deadline_at(1000.0, 600.0, 20.0) == 1020.0
    assert deadline_at(1000.0, 600.0, 9000.0) == 1600.0


def test_earlier_names_the_first_limit() -> None:
    assert earlier(10.0, "attempt", 20.0) == (10.0, "attempt")
    assert earlier(30.0, "attempt", 20.0) == (20.0, "total")


def test_limit_that_ends_with_the_deadline_is_the_deadline() -> None:
    assert earlier(20.0, "first_token", 20.0) == (20.0, "total")


def test_first_token_limit_is_learned_only_if_enabled() -> None:
    assert TimeoutSettings().learned is None
    assert first_token_s(TimeoutSettings(first_token=30.0), always(0.5), 0.0) == 30.0


@pytest.mark.parametrize(
    ("p99_s", "limit_s"),
    [(0.1, 1.0), (0.3, 1.0), (0.5, 1.5), (2.0, 6.0), (9.0, 27.0), (10.1, 30.0), (60.0, 30.0)],
)
def test_learned_first_token_is_three_times_p99_within_its_bounds(p99_s: float, limit_s: float) -> None:
    settings = TimeoutSettings(first_token=30.0, learned=LearnedSettings())
    assert first_token_s(settings, always(p99_s), 0.0) == pytest.approx(limit_s)


def test_learned_first_token_limit_uses_p99() -> None:
    settings = TimeoutSettings(learned=LearnedSettings(factor=2.0, min=0.1))
    latency = taking(*(i / 100 for i in range(1, 101)))
    assert first_token_s(settings, latency, 0.0) == pytest.approx(1.98)


def test_configured_first_token_is_the_longest_even_below_the_least_learned_one() -> None:
    settings = TimeoutSettings(first_token=0.5, learned=LearnedSettings(min=1.0))
    assert first_token_s(settings, always(0.1), 0.0) == 0.5


def test_first_token_is_as_configured_without_history_and_where_too_many_are_cut() -> None:
    settings = TimeoutSettings(first_token=30.0, learned=LearnedSettings())
    assert first_token_s(settings, Latency(), 0.0) == 30.0
    assert first_token_s(settings, taking(*[0.5] * 98, cut=2), 0.0) == 30.0
    assert first_token_s(settings, taking(*[0.5] * 99, cut=1), 0.0) == 1.5


def test_deadline_without_history_is_given_to_the_first_attempt() -> None:
    """Scenario A33: the client waits 10 s, the limits are 8 s. Attempts get 8 s and 2 s; no third one starts."""
    now, granted = 100.0, []
    end = deadline_at(now, 600.0, 10.0)
    for _ in range(3):
        kept_s = reserve_s(end - now, 8.0, Latency(), Latency(), now)
        ends_at = attempt_ends_at(now, 8.0, end, kept_s)
        granted.append(ends_at - now)
        assert can_finish(now, end, Latency()) is (ends_at > now)
        now = ends_at
    assert granted == [8.0, 2.0, 0.0]


def test_attempt_leaves_the_reserved_time() -> None:
    assert attempt_ends_at(100.0, 8.0, 110.0, 0.0) == 108.0
    assert attempt_ends_at(100.0, 8.0, 110.0, 1.5) == 108.0
    assert attempt_ends_at(100.0, 8.0, 110.0, 3.0) == 107.0
    assert attempt_ends_at(100.0, 8.0, 104.0, 1.0) == 103.0


def test_reserve_is_the_usual_need_of_the_next_one() -> None:
    following = taking(*(i / 100 for i in range(1, 101)))
    assert reserve_s(10.0, 8.0, always(1.0), following, 0.0) == 0.95


def test_nothing_is_reserved_without_a_further_attempt_or_history() -> None:
    own = always(1.0)
    assert reserve_s(10.0, 8.0, own, None, 0.0) == 0.0
    assert reserve_s(10.0, 8.0, own, Latency(), 0.0) == 0.0
    assert reserve_s(10.0, 8.0, own, taking(*[1.0] * 94, cut=6), 0.0) == 0.0


def test_attempt_gets_half_of_the_remaining_time() -> None:
    assert reserve_s(10.0, 8.0, always(1.0), always(5.0), 0.0) == 5.0
    assert reserve_s(10.0, 8.0, always(1.0), always(5.1), 0.0) == 0.0


def test_attempt_gets_its_own_p99() -> None:
    own = taking(*[1.0] * 98, *[7.0] * 2)
    assert reserve_s(10.0, 8.0, own, always(3.0), 0.0) == 3.0
    assert reserve_s(10.0, 8.0, own, always(3.1), 0.0) == 0.0
    assert reserve_s(10.0, 6.0, own, always(3.1), 0.0) == 3.1


def test_attempt_without_history_gets_its_whole_limit() -> None:
    assert reserve_s(10.0, 8.0, Latency(), always(2.0), 0.0) == 2.0
    assert reserve_s(10.0, 8.0, Latency(), always(2.1), 0.0) == 0.0


def test_last_useful_attempt_still_fits() -> None:
    """The first attempt hangs. Without the split it would take 8 of the 9 s, and the other one needs 3."""
    own, other = always(2.0), always(3.0)
    ends_at = attempt_ends_at(0.0, 8.0, 9.0, reserve_s(9.0, 8.0, own, other, 0.0))
    assert ends_at == 6.0
    assert can_finish(ends_at, 9.0, other)


def test_attempt_that_cannot_finish_is_not_started() -> None:
    latency = taking(*(i / 10 for i in range(1, 101)))
    assert can_finish(0.0, 0.5, latency)
    assert not can_finish(0.0, 0.49, latency)


def test_attempt_without_history_needs_some_time_left() -> None:
    assert can_finish(5.0, 5.001, Latency())
    assert not can_finish(5.0, 5.0, Latency())
    assert not can_finish(6.0, 5.0, always(0.0))
    assert not can_finish(5.0, 5.0, always(0.0))


def test_deployment_that_never_finished_may_be_tried() -> None:
    """Otherwise it would be excluded until its cut exchanges are forgotten."""
    assert can_finish(0.0, 1.0, taking(cut=100))
