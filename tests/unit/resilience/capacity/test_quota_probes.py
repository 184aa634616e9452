"""When a small quota is probed, and the effects of a probe."""

from __future__ import annotations

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
