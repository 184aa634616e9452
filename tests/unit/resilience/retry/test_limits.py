from __future__ import annotations

import random

import pytest

from llm_guard.resilience.retry.limits import MEMORY, FailureRate


def after(outcomes: str, *, every_s: float = 0.0) -> FailureRate:
    """Notes outcomes, F(ailure) or S(uccess), the last one at instant 0."""
    recent = FailureRate(-every_s * len(outcomes))
    for place, outcome in enumerate(outcomes, 1):
        recent.note(outcome == "F", every_s * (place - len(outcomes)))
    return recent


def test_unknown_rate_is_no_failure() -> None:
    assert FailureRate(5.0).failure_share(5.0) == 0
    assert FailureRate(5.0).failure_share(500.0) == 0


def test_first_failures_count_a_tenth_each() -> None:
    assert after("F").failure_share(0.0) == pytest.approx(0.1)
    assert after("FF").failure_share(0.0) == pytest.approx(0.2, abs=0.005)
    assert after("FFFFF").failure_share(0.0) == pytest.approx(0.5, abs=0.03)


def test_nothing_but_failures_is_one_and_nothing_but_successes_is_nothing() -> None:
    assert after("F" * 200).failure_share(0.0) == 1.0
    assert after("S" * 200).failure_share(0.0) == 0.0


@pytest.mark.parametrize("rate", [0.05, 0.4, 0.9])
@pytest.mark.parametrize("every_s", [0.0, 0.01, 1.0])
def test_share_is_on_average_the_failing_part(rate: float, every_s: float) -> None:
    dice = random.Random(7)
    recent = FailureRate(0.0)
    shares = []
    for i in range(20_000):
        recent.note(dice.random() < rate, i * every_s)
        shares.append(recent.failure_share(i * every_s))
    assert sum(shares[100:]) / len(shares[100:]) == pytest.approx(rate, abs=0.01)


def test_latest_attempts_outweigh_the_earlier_ones() -> None:
    assert after("S" * 40 + "F" * 40).failure_share(0.0) > 0.6
    assert after("F" * 40 + "S" * 40).failure_share(0.0) < 0.4


@pytest.mark.parametrize("attempts", [20, 50])
def test_memory_is_some_twenty_to_fifty_attempts(attempts: int) -> None:
    """The failure share halves within that many, after an outage of any length."""
    share = after("F" * 1000 + "S" * attempts).failure_share(0.0)
    assert 0.25 < share < 0.65


def test_silence_fades_the_share() -> None:
    recent = after("F" * 200)
    shares = [recent.failure_share(s) for s in (0.0, 10.0, 30.0, 60.0, 600.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[1] == 1.0
    assert 0.4 < shares[2] < 0.7
    assert shares[3] < 0.1
    assert shares[4] == pytest.approx(0.0, abs=1e-9)


def test_old_attempts_count_less_than_new_ones() -> None:
    recent = after("F" * 200)
    for _ in range(10):
        recent.note(False, 45.0)
    assert recent.failure_share(45.0) < 0.2


def test_one_failure_a_minute_proves_little() -> None:
    assert after("F" * 30, every_s=60.0).failure_share(0.0) < 0.15


def test_query_changes_nothing() -> None:
    recent = after("FSF")
    recent.failure_share(100.0)
    recent.snapshot(100.0)
    assert recent.failure_share(0.0) == after("FSF").failure_share(0.0)


def test_snapshot_has_the_evidence_of_the_share_and_cannot_be_changed() -> None:
    seen = after("F" * 1000).snapshot(0.0)
    assert seen.failure_share == 1.0
    assert seen.attempts == pytest.approx(MEMORY)
    assert after("FS").snapshot(15.0).attempts == pytest.approx(1.975 / 2.71828, rel=1e-4)
    with pytest.raises(AttributeError):
        seen.attempts = 0.0  # type: ignore[misc]


def test_steady_traffic_fades_as_it_does_in_silence() -> None:
    """Attempts less than a tenth of a second apart weigh like 20 a second, not like any number at once."""
    assert after("S" * 2000, every_s=0.05).snapshot(0.0).attempts == pytest.approx(35.4, rel=0.02)
    assert after("S" * 2000, every_s=0.0).snapshot(0.0).attempts == pytest.approx(40.0, rel=0.01)
