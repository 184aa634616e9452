"""Under any events, calls are no closer together than the rate allows, and the rate changes only for a reason."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from llm_guard.resilience.capacity.pacing import Pacer
from llm_guard.resilience.throttling.gcra import BURST_S, LOWEST_RATE
from tests.effort import repeated


def flood(pacer: Pacer, now: float) -> float:
    """Sends twelve calls that all get a 429: a pacer lowers its rate, unless it knows a background of 429s."""
    for i in range(12):
        pacer.take(now)
        pacer.note_rate_limited(now, now + 0.06 * i)
    return now + 0.66


steps = st.lists(
    st.tuples(st.sampled_from(["go", "go", "429", "flood"]), st.integers(0, 2000)), min_size=10, max_size=60
)


@settings(derandomize=True, deadline=None, max_examples=repeated(150))
@given(steps)
@example([("flood", 0)] + [("go", 0)] * 50)
@example([("flood", 0)] + [("go", 0), ("go", 0), ("go", 0), ("429", 400)] * 15)
def test_calls_stay_within_the_highest_rate_of_any_stretch(walk: list[tuple[str, int]]) -> None:
    pacer, now = Pacer(0.0), 0.0
    gone: list[float] = []
    rates: list[float] = []
    for what, passed_ms in walk:
        now += passed_ms / 1000
        while (at := pacer.opens_at(now)) > now:
            assert pacer.snapshot(now).rate is not None
            now = at
        pacer.take(now)
        before = pacer.snapshot(now).rate
        if what == "flood":
            now = flood(pacer, now)
            gone, rates = [], []
        if what == "429":
            pacer.note_rate_limited(now, now)
        after = pacer.snapshot(now).rate
        assert after is None or after >= LOWEST_RATE
        if what == "429" and before is not None:
            assert after is None or before / 2.3 <= after <= before or after == LOWEST_RATE
        rate = pacer.snapshot(now).rate
        if rate is None:
            gone, rates = [], []
            continue
        gone.append(now)
        rates.append(rate)
    for first in range(len(gone)):
        for last in range(first + 1, len(gone)):
            fastest = max(rates[first : last + 1])
            assert last - first <= (gone[last] - gone[first] + BURST_S) * fastest + 1 + 1e-6


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=100))
def test_rate_without_a_429_never_falls_but_to_nothing(gaps_ms: list[int]) -> None:
    pacer, now = Pacer(0.0), 0.0
    now = flood(pacer, now)
    before = pacer.snapshot(now).rate
    assert before is not None
    for gap_ms in gaps_ms:
        now = max(now + gap_ms / 1000, pacer.opens_at(now))
        pacer.take(now)
        after = pacer.snapshot(now).rate
        assert after is None or after >= before
        if after is None:
            break
        before = after
