"""When a small quota is probed, and the effects of a probe."""

from __future__ import annotations

import pytest

from llm_guard.resilience.capacity.quota_probes import QuotaProbes


def test_calls_of_a_probe_are_counted_from_its_beginning() -> None:
    """They used to be counted from the end of the slow start, so an excess before it was only partly paid back."""
    probes = QuotaProbes()
    probes.begin(0.25, 100, 0.0, is_guess=False)
    assert probes.taken(115) == 15
    assert probes.end(115, 8.0, 0.25, 4.0) is not None
    assert probes.taken(115) == 15


def test_probe_that_took_many_calls_has_found_that_the_quota_is_not_small() -> None:
    probes = QuotaProbes()
    probes.begin(0.25, 100, 0.0, is_guess=True)
    assert probes.end(124, 8.0, 0.25, 4.0) is None


@pytest.mark.parametrize(("taken", "expected"), [(12, 0.95), (13, 0.225), (14, 0.225), (15, 0.225), (16, 0.95)])
def test_guess_is_a_quota_once_as_many_calls_are_accepted_again(taken: int, expected: float) -> None:
    """The call that begins the probe is not among those taken. Other guesses may come of a storm."""
    probes = QuotaProbes()
    probes.guess(15 / 60, 0.0)
    probes.begin(0.2, 100, 60.0, is_guess=True)
    assert probes.end(100 + taken, 8.0, 0.5, 64.0) == pytest.approx(expected)


def test_guess_of_two_minutes_ago_is_not_confirmed() -> None:
    """After a storm of ten minutes, nine accepted calls in a row used to confirm what was guessed before it."""
    probes = QuotaProbes()
    probes.guess(15 / 60, 0.0)
    probes.begin(0.2, 100, 600.0, is_guess=True)
    assert probes.end(114, 8.0, 0.5, 604.0) == 0.95


def confirmed() -> tuple[QuotaProbes, float, float]:
    """Returns probes for which a guess was confirmed at 64.0, the rate to continue with, and the pause before."""
    probes = QuotaProbes()
    probes.guess(15 / 60, 0.0)
    probes.begin(0.2, 100, 60.0, is_guess=True)
    rate = probes.end(114, 8.0, 0.5, 64.0)
    assert rate is not None
    return probes, rate, probes.begin_pause(114, rate, 64.0)


def test_confirmed_guess_is_tested_after_five_seconds() -> None:
    """A guess that a storm confirmed by chance used to stop all calls for 55 seconds."""
    probes, rate, pause_s = confirmed()
    assert pause_s == 5.0
    assert probes.is_due(1, 1, rate, 69.5, is_doubtful=False), "a call was accepted although the quota should be spent"
    assert not probes.is_due(1, 1, rate, 120.0, is_doubtful=False)
    probes.begin(rate, 115, 69.5, is_guess=False)
    assert not probes.is_due(1, 1, rate, 70.0, is_doubtful=False), "the guess was wrong"


def test_call_that_is_refused_confirms_the_guess() -> None:
    probes, rate, _ = confirmed()
    assert probes.confirm_guess() == 64.0 + 55.0
    assert not probes.is_due(255, 255, rate, 120.0, is_doubtful=False)
    assert probes.is_due(256, 256, rate, 120.0, is_doubtful=False)


def test_calls_are_paid_back_whole_for_a_small_quota_and_by_their_excess_for_a_larger_one() -> None:
    probes = QuotaProbes()
    probes.begin(0.2, 100, 0.0, is_guess=False)
    assert probes.begin_pause(106, 0.2, 6.0) == pytest.approx(30.0), "a fixed window is spent until its end"
    assert probes.begin_pause(106, 0.5, 6.0) == pytest.approx((6 - 3) / 0.5)
    assert probes.begin_pause(106, 0.5, 60.0) == 0.0


def test_larger_quotas_are_probed_more_often() -> None:
    probes = QuotaProbes()
    probes.begin(0.5, 100, 0.0, is_guess=False)
    probes.end(106, 1.0, 0.5, 6.0)
    assert not probes.is_due(16, 16, 0.3, 50.0, is_doubtful=False)
    assert probes.is_due(16, 16, 0.5, 50.0, is_doubtful=False)


def test_two_accepted_calls_are_enough_where_no_quota_explains_the_429s() -> None:
    probes = QuotaProbes()
    assert not probes.is_due(2, 2, 0.2, 50.0, is_doubtful=False)
    assert not probes.is_due(2, 1, 0.2, 50.0, is_doubtful=True)
    assert probes.is_due(2, 2, 0.2, 50.0, is_doubtful=True)


def test_quota_whose_own_calls_were_refused_is_probed_after_a_row_without_refusals() -> None:
    """A storm that refused half of all calls used to leave a pace of 0.15/s for minutes."""
    probes = QuotaProbes()
    probes.begin(0.25, 100, 0.0, is_guess=False)
    probes.end(101, 8.0, 0.25, 2.0)
    for _ in range(9):
        probes.note_rate_limited(0)
    assert not probes.is_due(2, 2, 0.25, 50.0, is_doubtful=False)
    assert probes.is_due(3, 3, 0.25, 50.0, is_doubtful=False)
    probes.reset()
    assert not probes.is_due(3, 3, 0.25, 50.0, is_doubtful=False)


def test_quota_of_which_few_calls_were_refused_is_probed_after_a_longer_row() -> None:
    probes = QuotaProbes()
    probes.begin(0.25, 100, 0.0, is_guess=False)
    probes.end(101, 8.0, 0.25, 2.0)
    probes.note_rate_limited(0)
    for answers in (2, 4, 6):
        probes.note_rate_limited(answers)
    assert not probes.is_due(10, 10, 0.25, 50.0, is_doubtful=False), "4 of 11 refused: 3.6 due"
    assert probes.is_due(11, 11, 0.25, 50.0, is_doubtful=False)
