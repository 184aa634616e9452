"""Clients that retry until the end of an outage, on a virtual clock."""

from __future__ import annotations

import pytest

from benchmarks.frontier.limits import Returning
from benchmarks.frontier.measure import ALONE, MODEL, is_served
from benchmarks.virtual.clients import Load
from benchmarks.virtual.world import play
from tests.effort import some


@pytest.mark.parametrize("back_at", some([4.0, 4.4]))
def test_herd_is_served_within_a_tenth_more_than_the_provider_needs(back_at: float) -> None:
    """1,000 clients retry until they are answered. The provider returns with 20 slots of 100 ms, right after a
    probe or just before the next one."""
    provider = Returning(back_at, 20, 0.1)
    played = play(ALONE, provider, [Load(MODEL, 1000, 1.0, arrivals="even", asks_for_s=60.0)])
    assert all(is_served(call) for call in played.calls)
    assert max(call.ended_at for call in played.calls) <= 1.1 * (back_at + 5.0)
    assert len(played.requests) <= 1.3 * len(played.calls)
