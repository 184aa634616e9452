"""Whether 429s at a low rate are those of a small quota, or of a storm that refuses a part of all calls."""

from __future__ import annotations

import random

import pytest

from llm_guard.resilience.capacity.quota_evidence import QuotaEvidence


def known(rate: float = 1.0, now: float = 0.0) -> QuotaEvidence:
    evidence = QuotaEvidence()
    evidence.note_accepted_rate(rate, now)
    return evidence


def test_rate_within_a_quota_is_half_of_the_most_that_was_accepted_in_a_minute() -> None:
    evidence = known(0.2)
    evidence.note_accepted_rate(0.4, 30.0)
    evidence.note_accepted_rate(0.3, 60.0)
    assert evidence.least_quota() == pytest.approx(0.2)
    assert QuotaEvidence().least_quota() == 0.0


@pytest.mark.parametrize(("now", "least"), [(299.0, 0.5), (301.0, 0.5), (599.0, 0.5), (601.0, 0.1)])
def test_what_was_accepted_is_forgotten_after_five_to_ten_minutes(now: float, least: float) -> None:
    evidence = known()
    for at in range(10, int(now), 10):
        evidence.note_accepted_rate(0.2, float(at))
    evidence.note_accepted_rate(0.2, now)
    assert evidence.least_quota() == pytest.approx(least)


def test_what_was_accepted_long_ago_is_forgotten_at_once() -> None:
    evidence = known()
    evidence.note_accepted_rate(0.2, 700.0)
    assert evidence.least_quota() == pytest.approx(0.1)


def test_429s_that_no_quota_explains_refute_it() -> None:
    evidence = known()
    assert not evidence.note_rate_limited(0.5, 1)
    doubtful = [evidence.is_doubtful]
    assert not evidence.note_rate_limited(0.5, 2)
    doubtful.append(evidence.is_doubtful)
    assert doubtful == [False, True]
    evidence.note_accepted()
    assert not evidence.note_rate_limited(0.5, 1)
    assert evidence.note_rate_limited(0.5, 2)
    assert not evidence.is_doubtful


def test_429s_at_a_higher_rate_than_the_quota_may_have_prove_nothing() -> None:
    evidence = known()
    assert not any(evidence.note_rate_limited(0.51, 1) for _ in range(100))
    assert not evidence.is_doubtful


def test_further_429s_in_a_row_prove_nothing() -> None:
    """A fixed window that is spent refuses everything until it ends."""
    evidence = known()
    assert not any(evidence.note_rate_limited(0.5, in_a_row) for in_a_row in range(1, 100))


def test_accepted_calls_confirm_the_quota() -> None:
    evidence = known()
    for _ in range(100):
        assert not evidence.note_rate_limited(0.5, 1)
        for _ in range(4):
            evidence.note_accepted()
    assert not evidence.is_doubtful


@pytest.mark.parametrize("share", [0.4, 0.5, 0.7, 0.9])
def test_storm_that_refuses_a_part_of_the_calls_is_no_quota(share: float) -> None:
    needed = []
    for seed in range(50):
        draw, evidence, in_a_row, calls = random.Random(seed), known(), 0, 0
        is_refuted = False
        while not is_refuted:
            calls += 1
            if draw.random() < share:
                in_a_row += 1
                is_refuted = evidence.note_rate_limited(0.45, in_a_row)
            else:
                in_a_row = 0
                evidence.note_accepted()
        needed.append(calls)
    assert sorted(needed)[45] <= 40, "nine times of ten"


def test_doubt_ends_with_the_rate() -> None:
    evidence = known()
    evidence.note_rate_limited(0.5, 1)
    evidence.note_rate_limited(0.5, 2)
    evidence.drop_doubt()
    assert not evidence.note_rate_limited(0.5, 1)


def test_what_was_accepted_is_forgotten_although_nothing_is_accepted_any_more() -> None:
    evidence = known()
    for at in range(290, 1000, 100):
        evidence.note_accepted_rate(0.0, float(at))
    assert evidence.least_quota() == 0.0
