"""When a storm that refuses a part of all calls is on, and when it has ended."""

from __future__ import annotations

import random

import pytest

from llm_guard.resilience.capacity.partial_storm import PartialStorm


def storm_of(share: float, calls: int = 200, seed: int = 3) -> PartialStorm:
    """Returns a storm that has refused that share of so many calls."""
    storm, draw, accepted = PartialStorm(), random.Random(seed), 0
    storm.begin(0.0)
    for _ in range(calls):
        if draw.random() < share:
            storm.note_rate_limited(accepted)
            accepted = 0
        else:
            accepted += 1
    return storm


def calls_until_the_end(storm: PartialStorm) -> int:
    return next(accepted for accepted in range(1, 1000) if storm.ends(accepted, 1.0))


def test_429s_of_ten_minutes_are_due_to_the_storm() -> None:
    storm = PartialStorm()
    assert not storm.is_on(0.0)
    storm.begin(100.0)
    assert (storm.is_on(699.0), storm.is_on(700.0)) == (True, False)
    assert (storm.is_recent(699.0), storm.is_recent(700.0)) == (True, False)


@pytest.mark.parametrize(("share", "least", "most"), [(0.9, 3, 4), (0.7, 4, 7), (0.5, 7, 11), (0.3, 13, 20)])
def test_storm_has_ended_after_more_accepted_calls_in_a_row_than_chance_explains(
    share: float, least: int, most: int
) -> None:
    storm = storm_of(share)
    assert least <= calls_until_the_end(storm) <= most
    assert not storm.is_on(1.0)
    assert storm.is_recent(1.0), "its quota is still none"
    assert not storm.ends(100, 1.0), "it ends once"


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9])
def test_storm_seldom_appears_to_end(share: float) -> None:
    ended = calls = 0
    for seed in range(20):
        storm, draw, accepted = storm_of(share, seed=seed), random.Random(-seed - 1), 0
        for _ in range(500):
            calls += 1
            if draw.random() < share:
                storm.note_rate_limited(accepted)
                accepted = 0
            else:
                accepted += 1
                ended += storm.ends(accepted, 1.0)
    assert 0 < ended <= 0.01 * calls


def test_storm_that_goes_on_is_on_again() -> None:
    storm = storm_of(0.5)
    calls_until_the_end(storm)
    for _ in range(3):
        assert not storm.is_on(1.0)
        storm.note_rate_limited(1)
    storm.note_rate_limited(1)
    assert storm.is_on(1.0)


def test_429s_of_a_rate_that_grows_until_calls_are_refused_are_no_storm() -> None:
    storm = storm_of(0.5)
    calls_until_the_end(storm)
    for _ in range(100):
        storm.note_rate_limited(4)
    assert not storm.is_on(1.0)


def test_storm_that_nothing_is_known_of_does_not_end() -> None:
    storm = PartialStorm()
    assert not storm.ends(1000, 0.0)
    storm.begin(0.0)
    assert not storm.ends(1000, 600.0)
