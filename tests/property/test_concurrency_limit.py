"""The adaptive concurrency limit under any sequence of outcomes."""

from __future__ import annotations

from math import inf
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_guard.resilience.capacity.gate import Ending, Limiter
from llm_guard.resilience.capacity.settings import LimiterSettings
from tests.effort import repeated

calls = st.tuples(
    st.sampled_from(get_args(Ending)),
    st.one_of(st.none(), st.sampled_from([0.0, 0.1, 0.2, 1.0, 9.0])),
    st.sampled_from([0.0, 0.05, 1.0]),
    st.floats(0.0, 1.0),
    st.sampled_from([0.0, 0.1, 100.0]),
)


@settings(derandomize=True, deadline=None, max_examples=repeated(300))
@given(st.integers(1, 30), st.integers(1, 30), st.sampled_from([None, 0.5]), st.lists(calls, max_size=150))
def test_limit_moves_by_the_law_and_within_its_bounds(
    lowest: int, highest: int, slow: float | None, walk: list[tuple[Ending, float | None, float, float, float]]
) -> None:
    law = Limiter(LimiterSettings("adaptive", lowest, highest, slow))
    lowest = min(lowest, highest)
    now, decreased_at, most = 0.0, -inf, 0
    for ending, latency_s, age_s, used, passed_s in walk:
        now += passed_s
        before = law.limit(now)
        assert before is not None
        in_flight = max(1, round(used * before))
        law.note(ending, now - age_s, now, latency_s, in_flight)
        after = law.limit(now)
        assert after is not None
        assert lowest <= after <= highest
        if after > before and ending == "ok":
            assert after == before + 1
            assert in_flight * 2 >= before
        elif after > before:  # a lower limit has not reduced overloads: back to the earlier one
            assert after <= most
        if after < before:
            assert ending in ("ok", "overloaded", "failed")
            assert now - age_s >= decreased_at, "one signal for all that entered before"
            assert after >= int(before / 4)
            decreased_at = now
        most = max(most, after)


@settings(derandomize=True, deadline=None, max_examples=repeated(200))
@given(
    st.integers(1, 50),
    st.integers(0, 30),
    st.lists(st.sampled_from(["ok", "failed", "an old one ends"]), max_size=60),
    st.sampled_from([None, 3, 40]),
)
def test_ramp_never_admits_more_than_four_and_the_successes(
    seconds: int, old: int, walk: list[str], concurrency: int | None
) -> None:
    """In addition to the calls in flight since before the ramp, however those end."""
    law = Limiter(LimiterSettings(concurrency))
    law.ramp(0.0, float(seconds), old)
    successes = 0
    for i, event in enumerate(walk):
        now = i / 2
        limit = law.limit(now)
        if now >= seconds:
            assert limit == concurrency
        else:
            expected = old + 4 + successes
            assert limit == (expected if concurrency is None else min(expected, concurrency))
            assert law.opens_at(expected, now) > now
        if event != "an old one ends":
            law.note("ok" if event == "ok" else "failed", now, now, 0.1, 1)
            successes += event == "ok"
        elif old:
            law.note("ok", -1.0, now, 0.1, 1)
            old -= 1
