"""The sorted sample compared with a list that is filtered and sorted each time; the peak compared with its bounds."""

from __future__ import annotations

import math
from math import inf
from typing import ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from llm_guard.resilience.routing.candidates import CAPACITY, ENOUGH, FORGOTTEN_S, PENALTY, WINDOW_S, Latency, PeakEwma
from tests.effort import repeated

# Few values, so that equal ones meet: removing one of them must leave the others.
durations = st.sampled_from([0.0, 0.1, 0.1000001, 1.0, 2.5, 60.0])


class LatencyWalk(RuleBasedStateMachine):
    seen: ClassVar[dict[str, int]] = {"few": 0, "full": 0, "expired": 0, "cut": 0, "left_out": 0, "infinite": 0}

    @initialize()
    def begin(self) -> None:
        self.now = 1000.0
        self.latency = Latency()
        self.model: list[tuple[float, float]] = []

    def remembered(self) -> list[tuple[float, float]]:
        return [each for each in self.model if each[0] > self.now - WINDOW_S][-CAPACITY:]

    @rule(some=st.lists(durations, min_size=1, max_size=40))
    def exchanges_finish(self, some: list[float]) -> None:
        for duration_s in some:
            self.latency.note(duration_s, self.now)
            self.model.append((self.now, duration_s))

    @rule(duration_s=durations)
    def it_is_busy(self, duration_s: float) -> None:
        self.exchanges_finish([duration_s, 0.1] * (CAPACITY // 2))

    @rule(at_least_s=durations, times=st.sampled_from([1, 30]))
    def exchanges_are_cut(self, at_least_s: float, times: int) -> None:
        for _ in range(times):
            finished = sorted(each for _, each in self.remembered() if each < inf)
            self.latency.note_cut(at_least_s, self.now)
            if finished and at_least_s < finished[len(finished) // 2]:
                type(self).seen["left_out"] += 1
            else:
                self.model.append((self.now, inf))
                type(self).seen["cut"] += 1

    @rule(passed_s=st.sampled_from([0.5, 100.0, 150.0, WINDOW_S - 0.5, WINDOW_S]))
    def time_passes(self, passed_s: float) -> None:
        before = len(self.remembered())
        self.now += passed_s
        type(self).seen["expired"] += len(self.remembered()) < before

    @invariant()
    def every_quantile_is_that_of_the_model(self) -> None:
        kept = sorted(duration_s for _, duration_s in self.remembered())
        for percent in (1, 5, 50, 90, 95, 99, 100):
            expected = kept[-(-percent * len(kept) // 100) - 1] if len(kept) >= ENOUGH else None
            assert self.latency.quantile(percent / 100, self.now) == expected
            type(self).seen["infinite"] += expected == inf
        snapshot = self.latency.snapshot(self.now)
        assert (snapshot.count, snapshot.cut) == (len(kept), kept.count(inf))
        type(self).seen["few"] += 0 < len(kept) < ENOUGH
        type(self).seen["full"] += len(kept) == CAPACITY


def test_sample_holds_on_every_walk() -> None:
    run_state_machine_as_test(
        LatencyWalk,
        settings=settings(derandomize=True, deadline=None, max_examples=70, stateful_step_count=20),
    )
    assert min(LatencyWalk.seen.values()) > 20


events = st.lists(
    st.tuples(st.sampled_from(["good", "failure", "cut"]), st.floats(0.001, 600), st.floats(0, 40)), min_size=1
)


@given(events)
@settings(derandomize=True, deadline=None, max_examples=repeated(200))
def test_peak_is_never_below_what_was_just_seen_nor_above_all_that_was_ever_seen(
    seen: list[tuple[str, float, float]],
) -> None:
    ewma, now, highest_s = PeakEwma(), 0.0, 0.0
    for what, duration_s, passed_s in seen:
        now += passed_s
        before_s = ewma.cost_s(now) or 0.0
        if what == "good":
            ewma.note(duration_s, now)
        elif what == "failure":
            ewma.note_failure(duration_s, now)
        else:
            ewma.note_cut(duration_s, now)
        cost_s, usual_s = ewma.cost_s(now), ewma.snapshot(now).usual_s
        assert usual_s is None or 0 < usual_s <= highest_s + duration_s + 1e-9
        highest_s = max(highest_s, duration_s)
        least_s = max(duration_s, PENALTY * (usual_s or 1.0)) if what == "failure" else duration_s
        # A forgotten value that has not fully decayed may hide an even shorter cut.
        assert what == "cut" or (cost_s is not None and cost_s >= least_s * (1 - 1e-9))
        assert what != "cut" or (cost_s or 0.0) >= before_s * (1 - 1e-9)
        assert (cost_s or 0.0) <= max(10.0, PENALTY * highest_s) * (1 + 1e-9)


@given(durations, st.floats(0, FORGOTTEN_S))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_peak_decays_alone(duration_s: float, silent_s: float) -> None:
    ewma = PeakEwma()
    ewma.note(duration_s, 0.0)
    cost_s = ewma.cost_s(silent_s)
    assert cost_s is not None
    assert math.isclose(cost_s, duration_s * math.exp(-silent_s / 10.0))
