"""When a small quota is probed, and what follows."""

from __future__ import annotations

from llm_guard.policy.quota_probes import QuotaProbes


def test_calls_of_a_probe_are_counted_from_its_beginning() -> None:
    """They were counted from the end of its slow start: what it took too early was paid back only in part."""
    probes = QuotaProbes()
    probes.begin(0.25, 100, is_guess=False)
    assert probes.taken(115) == 15
    assert probes.end(115, 8.0, 0.25) is not None
    assert probes.taken(115) == 15


def test_probe_that_took_many_calls_has_found_that_the_quota_is_not_small() -> None:
    probes = QuotaProbes()
    probes.begin(0.25, 100, is_guess=True)
    assert probes.end(124, 8.0, 0.25) is None
