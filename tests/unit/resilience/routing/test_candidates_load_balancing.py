from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import get_args

import pytest

from llm_guard.resilience.routing.candidates import Balance, LoadCandidate, arranged, failing_last, parse_priority

HOWS: tuple[Balance, ...] = get_args(Balance)
each_how = pytest.mark.parametrize("how", HOWS)


def lots(*draws: float) -> Callable[[], float]:
    """Draws for candidates of equal weight: the one with the lowest draw comes first."""
    return iter(draws).__next__


def firsts(candidates: list[LoadCandidate], how: Balance, times: int = 20_000) -> list[float]:
    """Returns the share of arrangements in which each candidate comes first."""
    dice = random.Random(5)
    counted = Counter(arranged(candidates, how, dice.random)[0] for _ in range(times))
    return [counted[index] / times for index in range(len(candidates))]


@each_how
def test_none_or_a_single_one_needs_no_draw(how: Balance) -> None:
    assert arranged([], how, lots()) == ()
    assert arranged([LoadCandidate(3)], how, lots()) == (0,)


def test_order_is_as_written() -> None:
    candidates = [LoadCandidate(0, in_flight=9, cost_s=9.0), LoadCandidate(0), LoadCandidate(0, weight=9.0)]
    assert arranged(candidates, "order", lots()) == (0, 1, 2)


@each_how
def test_groups_are_never_mixed(how: Balance) -> None:
    """The worst candidate of group 0 comes before the best one of group 1."""
    bad, good = (0.001, 1000, 600.0), (1000.0, 0, 0.001)
    candidates = [
        LoadCandidate(1, *good),
        LoadCandidate(0, *bad),
        LoadCandidate(2, *good),
        LoadCandidate(0, *bad),
        LoadCandidate(1, *good),
    ]
    dice = random.Random(1)
    for _ in range(100):
        order = arranged(candidates, how, dice.random)
        assert [candidates[index].group for index in order] == [0, 0, 1, 1, 2]
        assert sorted(order) == [0, 1, 2, 3, 4]


def test_weights_are_shares_of_the_first_place() -> None:
    shares = firsts([LoadCandidate(0, weight) for weight in (6.0, 3.0, 1.0)], "weighted")
    assert shares == pytest.approx([0.6, 0.3, 0.1], abs=0.015)


def test_weights_hold_among_the_remaining_too() -> None:
    """When the first choice has failed, the remaining candidates are ordered by their weights."""
    dice = random.Random(5)
    candidates = [LoadCandidate(0, weight) for weight in (6.0, 3.0, 1.0)]
    orders = [arranged(candidates, "weighted", dice.random) for _ in range(20_000)]
    seconds = Counter(order[1] for order in orders if order[0] == 0)
    assert seconds[1] / seconds.total() == pytest.approx(0.75, abs=0.02)


def test_extreme_draws_and_weights_do_not_fail() -> None:
    candidates = [LoadCandidate(0, 0.001), LoadCandidate(0, 1e9)]
    assert sorted(arranged(candidates, "weighted", lots(0.0, 1 - 2**-53))) == [0, 1]


def test_least_loaded_is_first_for_its_weight() -> None:
    candidates = [LoadCandidate(0, 1.0, 3), LoadCandidate(0, 4.0, 8), LoadCandidate(0, 1.0, 1)]
    assert arranged(candidates, "least_loaded", lots(0.1, 0.2, 0.3)) == (2, 1, 0)


def test_equally_loaded_ones_are_in_random_order() -> None:
    candidates = [LoadCandidate(0), LoadCandidate(0), LoadCandidate(0)]
    assert arranged(candidates, "least_loaded", lots(0.5, 0.9, 0.1)) == (2, 0, 1)
    assert firsts(candidates, "least_loaded") == pytest.approx([1 / 3] * 3, abs=0.015)


def test_latency_takes_the_better_of_two_and_then_the_best() -> None:
    """The draws pick candidates 0 and 2. Candidate 1 is the best, but only among the remaining ones."""
    candidates = [LoadCandidate(0, cost_s=cost_s) for cost_s in (3.0, 1.0, 2.0, 4.0)]
    assert arranged(candidates, "latency", lots(0.1, 0.8, 0.2, 0.9)) == (2, 1, 0, 3)
    assert arranged(candidates, "latency", lots(0.2, 0.8, 0.1, 0.9)) == (2, 1, 0, 3)


def test_best_of_all_does_not_get_all() -> None:
    """Two of three candidates are drawn: the best is among them in two of three cases, and the worst never wins."""
    shares = firsts([LoadCandidate(0, cost_s=cost_s) for cost_s in (1.0, 2.0, 3.0)], "latency")
    assert shares == pytest.approx([2 / 3, 1 / 3, 0.0], abs=0.015)


def test_calls_in_flight_and_weight_count_with_latency() -> None:
    quick_but_busy, idle = LoadCandidate(0, in_flight=9, cost_s=0.2), LoadCandidate(0, cost_s=1.9)
    assert arranged([quick_but_busy, idle], "latency", lots(0.1, 0.2)) == (1, 0)
    large = LoadCandidate(0, weight=2.0, in_flight=9, cost_s=0.2)
    assert arranged([large, idle], "latency", lots(0.1, 0.2)) == (0, 1)


def test_unknown_one_counts_as_the_best_known_until_it_is_as_busy() -> None:
    known = [LoadCandidate(0, in_flight=2, cost_s=cost_s) for cost_s in (1.0, 5.0)]
    draws = (0.9, 0.1, 0.2)
    assert arranged([*known, LoadCandidate(0, in_flight=1)], "latency", lots(*draws)) == (2, 0, 1)
    assert arranged([*known, LoadCandidate(0, in_flight=3)], "latency", lots(*draws)) == (2, 0, 1)
    assert arranged([*known, LoadCandidate(0, in_flight=15)], "latency", lots(*draws)) == (1, 0, 2)


def test_without_history_the_load_decides() -> None:
    candidates = [LoadCandidate(0, in_flight=3), LoadCandidate(0, in_flight=1)]
    assert arranged(candidates, "latency", lots(0.1, 0.2)) == (1, 0)


def test_best_of_another_group_is_not_taken_for_the_own() -> None:
    """A candidate without measurements, in a group of slow ones, counts as being as slow as the best of its group."""
    candidates = [LoadCandidate(0, cost_s=0.01), LoadCandidate(1, cost_s=9.0), LoadCandidate(1, in_flight=1)]
    assert arranged(candidates, "latency", lots(0.1, 0.2)) == (0, 1, 2)


@pytest.mark.parametrize("value", [0, 1, 20])
def test_priority_is_a_whole_number(value: int) -> None:
    assert parse_priority(value) == value


@pytest.mark.parametrize("value", [-1, 0.5, True, "1", None])
def test_other_priorities_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not a priority"):
        parse_priority(value)


@pytest.mark.parametrize(
    ("shares", "order"),
    [
        ((0.0, 0.0, 0.0), (0, 1, 2)),
        ((0.5, 0.0, 0.0), (1, 0, 2)),
        ((0.0, 0.5, 0.0), (0, 1, 2)),
        ((0.1, 0.0, 0.0), (0, 1, 2)),
        ((0.5, 0.4, 0.9), (0, 1, 2)),
        ((0.5, 0.1, 0.9), (1, 0, 2)),
    ],
)
def test_those_that_fail_much_more_than_the_best_of_their_group_are_last_in_it(
    shares: tuple[float, ...], order: tuple[int, ...]
) -> None:
    """The third candidate is alone in its group."""
    assert failing_last((0, 1, 2), (0, 0, 1), shares) == order
