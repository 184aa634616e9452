from __future__ import annotations

import pytest

from llm_guard.resilience.capacity.throttle_statistics import Background, ThrottleWindow


def test_call_that_is_put_back_at_the_instant_of_a_refusal_leaves_no_negative_count() -> None:
    recent = ThrottleWindow(0.0)
    recent.calls += 2
    recent.note_limited(5.0, 5.0)
    recent.uncount(5.0)
    assert not recent.is_spent(0.01)
    assert recent.is_more_than(0.01)
    assert recent.accepted == 0


@pytest.mark.parametrize("stray", [0, 1])
def test_stray_429s_do_not_show_that_epochs_were_in_vain(stray: int) -> None:
    background = Background(stray)
    found = []
    for _ in range(3):
        background.note_call(20)
        background.note_limited()
        found.append(background.is_in_vain(1.0, 1.0))
    assert found[-1] is not bool(stray)
