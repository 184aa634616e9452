from __future__ import annotations

import random
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_guard.resilience.routing.candidates import Balance, LoadCandidate, arranged
from tests.effort import repeated

candidate_lists = st.lists(
    st.builds(
        LoadCandidate,
        group=st.integers(0, 3),
        weight=st.sampled_from([0.001, 0.5, 1.0, 3.0]),
        in_flight=st.integers(0, 5),
        cost_s=st.none() | st.sampled_from([0.0, 0.1, 1.0, 60.0]),
    ),
    max_size=8,
)
hows = st.sampled_from(get_args(Balance))


@given(candidate_lists, hows, st.integers(0, 99))
@settings(derandomize=True, deadline=None, max_examples=repeated(300))
def test_every_candidate_occurs_once_and_groups_are_in_order(
    found: list[LoadCandidate], how: Balance, seed: int
) -> None:
    order = arranged(found, how, random.Random(seed).random)
    assert sorted(order) == list(range(len(found)))
    groups = [found[index].group for index in order]
    assert groups == sorted(groups)


@given(candidate_lists, st.integers(0, 99))
@settings(derandomize=True, deadline=None, max_examples=repeated(300))
def test_least_loaded_is_sorted_and_latency_is_sorted_but_for_the_first(found: list[LoadCandidate], seed: int) -> None:
    for group in {candidate.group for candidate in found}:
        members = [candidate for candidate in found if candidate.group == group]
        order = [members[index] for index in arranged(members, "least_loaded", random.Random(seed).random)]
        loads = [candidate.in_flight / candidate.weight for candidate in order]
        assert loads == sorted(loads)
        best_s = min((member.cost_s for member in members if member.cost_s is not None), default=1.0)
        order = [members[index] for index in arranged(members, "latency", random.Random(seed).random)]
        loads = [
            (best_s if candidate.cost_s is None else candidate.cost_s) * (candidate.in_flight + 1) / candidate.weight
            for candidate in order
        ]
        assert loads[1:] == sorted(loads[1:])
        # The better of two random candidates is not the worst, unless several are equally bad.
        assert (
            len(loads) < 2 or loads[0] < max(loads) or loads[0] == loads[-1] == min(loads) or loads.count(loads[0]) > 1
        )


@given(candidate_lists, hows)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_same_draws_give_the_same_order(found: list[LoadCandidate], how: Balance) -> None:
    assert arranged(found, how, random.Random(7).random) == arranged(found, how, random.Random(7).random)
