from __future__ import annotations

from llm_guard.resilience.capacity.throttle_statistics import ThrottleWindow


def test_call_that_is_put_back_at_the_instant_of_a_refusal_leaves_no_negative_count() -> None:
    recent = ThrottleWindow(0.0)
    recent.calls += 2
    recent.note_limited(5.0, 5.0)
    recent.uncount(5.0)
    assert not recent.is_spent(0.01)
    assert recent.is_more_than(0.01)
    assert recent.accepted == 0
