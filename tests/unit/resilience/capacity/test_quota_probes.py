"""When a small quota is probed, and the effects of a probe."""

from __future__ import annotations

import pytest

from llm_guard.resilience.capacity.quota_probes import QuotaProbes


def test_calls_of_a_probe_are_counted_from_its_beginning() -> None:
    """They used to be counted from the end of the slow start, so an excess before it was only partly paid back."""
    probes = QuotaProbes()
    probes.begin(0.25, 100, is_guess=False)
    assert probes.taken(115) == 15
    assert probes.end(115, 8.0, 0.25) is not None
    assert probes.taken(115) == 15


def test_probe_that_took_many_calls_has_found_that_the_quota_is_not_small() -> None:
    probes = QuotaProbes()
    probes.begin(0.25, 100, is_guess=True)
    assert probes.end(124, 8.0, 0.25) is None


@pytest.mark.parametrize(("taken", "expected"), [(12, 0.95), (13, 0.225), (14, 0.225), (15, 0.225), (16, 0.95)])
def test_guess_is_a_quota_once_as_many_calls_are_accepted_again(taken: int, expected: float) -> None:
    """The call that begins the probe is not among those taken. Other guesses may come of a storm."""
    probes = QuotaProbes()
    probes.guess(15 / 60)
    probes.begin(0.2, 100, is_guess=True)
    assert probes.end(100 + taken, 8.0, 0.5) == pytest.approx(expected)


def test_quota_whose_own_calls_were_refused_is_probed_after_a_row_without_refusals() -> None:
    """A storm that refused half of all calls used to leave a pace of 0.15/s for minutes."""
    probes = QuotaProbes()
    probes.begin(0.25, 100, is_guess=False)
    probes.end(101, 8.0, 0.25)
    for _ in range(9):
        probes.note_rate_limited(0)
    assert not probes.is_due(4, 4)
    assert probes.is_due(5, 5)
    probes.reset()
    assert not probes.is_due(3, 3)
