from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_guard.resilience.alerts.alert import QUIET_S, Alert, RuleFinding, RuleSettings, RuleVerdict
from llm_guard.resilience.alerts.baseline import Trend
from llm_guard.resilience.alerts.rules import SuccessRateSettings, evaluate_success
from llm_guard.webhooks.rate_limit import BURST, SendRate

steps_s = st.sampled_from([0.25, 1.0, 5.0, 30.0, QUIET_S / 2, QUIET_S])
verdicts = st.sampled_from(["bad", "bad", "between", "good", "good", None])
settings = st.builds(
    RuleSettings, for_=st.sampled_from([0.0, 1.0, 30.0]), resolve_after=st.sampled_from([0.0, 10.0, QUIET_S + 100])
)


def found(verdict: RuleVerdict | None) -> RuleFinding | None:
    return None if verdict is None else RuleFinding(verdict, 0.0, 0.0, verdict)


@given(settings, st.lists(st.tuples(steps_s, verdicts), min_size=10, max_size=60))
def test_alert_fires_and_resolves_in_turn_and_never_too_soon(
    rule: RuleSettings, walk: list[tuple[float, RuleVerdict | None]]
) -> None:
    alert, now = Alert(), 0.0
    stands: RuleVerdict | None = None
    since, heard_at = 0.0, -math.inf
    is_firing = False
    for step_s, verdict in walk:
        now += step_s
        if verdict is not None:
            if verdict != stands:
                since = now
            stands, heard_at = verdict, now
        elif now - heard_at >= QUIET_S:
            stands = None
        change = alert.note(found(verdict), rule, now)
        if change == "fired":
            assert not is_firing
            assert stands == "bad"
            assert now - since >= rule.for_
        elif change == "resolved":
            assert is_firing
            assert stands is None or (stands == "good" and now - since >= rule.resolve_after)
        elif is_firing:
            assert stands is not None
            assert stands != "good" or now - since < rule.resolve_after
        else:
            assert stands != "bad" or now - since < rule.for_
        is_firing = alert.is_firing
        assert alert.is_idle == (not is_firing and stands != "bad")


@given(st.lists(st.sampled_from([94, 95]), min_size=1, max_size=200))
def test_value_about_its_threshold_is_one_alert(shares: list[int]) -> None:
    alert, rule = Alert(), SuccessRateSettings()
    changes = [
        alert.note(evaluate_success("gpt", [True] * good + [False] * (100 - good), rule), rule, 10.0 * step)
        for step, good in enumerate(shares)
    ]
    assert changes.count("fired") == (94 in shares)
    assert "resolved" not in changes


@given(
    st.lists(st.tuples(st.floats(0.01, 50), st.integers(0, 20), st.floats(0.01, 10)), min_size=1, max_size=200),
    st.sampled_from([10.0, 60.0, 300.0]),
)
def test_trend_forgets_no_answer_and_counts_none_twice(walk: list[tuple[float, int, float]], over_s: float) -> None:
    """With an endless memory the recent and the usual answers together are all that were noted."""
    trend, now, total, weight = Trend(over_s, 1e12), 0.0, 0.0, 0.0
    trend.note(0.0, 0.0, 0.0)
    notes = []
    for step_s, count, each_s in walk:
        now += step_s
        total, weight = total + count * each_s, weight + count
        trend.note(total, weight, now)
        notes.append((now, count))
    assert trend.recent.weight + trend.usual.weight == pytest.approx(weight)
    assert trend.recent.total + trend.usual.total == pytest.approx(total)
    within = sum(count for at, count in notes if at > now - over_s)
    about = sum(count for at, count in notes if at > now - over_s - over_s / 30 - 50)
    assert within <= trend.recent.weight <= about


@given(st.floats(0.01, 50), st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.1, 1.0, 20.0]), min_size=8, max_size=100))
def test_caller_that_obeys_the_wait_never_exceeds_rate_plus_burst(per_second: float, gaps: list[float]) -> None:
    rate, now, sent = SendRate(per_second), 0.0, []
    for gap_s in gaps:
        now += gap_s
        now += rate.wait_s(now)
        rate.take(now)
        sent.append(now)
    for begin in range(len(sent)):
        for end in range(begin, len(sent)):
            assert end - begin + 1 <= BURST + (sent[end] - sent[begin]) * per_second + 1e-6
