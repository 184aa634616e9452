"""The verdict over a series of probes, compared with its definition on every walk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llm_guard.resilience.health.probe_policy import ProbeHistory, ProbeOutcome, ProbeResult

FINDINGS: list[ProbeOutcome] = ["ok", "answered", "failed", "failed", "failed", "unclear"]
looks = st.tuples(st.sampled_from(FINDINGS), st.integers(0, 5).map(lambda draw: draw == 0))


@given(st.lists(looks, max_size=40), st.integers(1, 4))
def test_record_is_down_exactly_after_so_many_failures_that_no_success_has_parted(
    walk: list[tuple[ProbeOutcome, bool]], max_failures: int
) -> None:
    history, told, in_a_row, was_ever_up = ProbeHistory(), "unknown", 0, False
    for finding, have_succeeded in walk:
        is_news = history.note(ProbeResult(finding, "why"), max_failures, have_calls_succeeded=have_succeeded)
        if finding == "failed" and not have_succeeded:
            in_a_row += 1
        elif finding != "unclear":
            in_a_row, was_ever_up = 0, True
        seen = history.snapshot(0.0)
        is_down = in_a_row >= max_failures
        assert seen.failures == in_a_row
        assert seen.state == ("down" if is_down else "up" if was_ever_up else "unknown")
        was_worth_telling = is_down != (told == "down")
        assert is_news == was_worth_telling
        told = seen.state
