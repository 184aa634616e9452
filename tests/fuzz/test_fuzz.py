"""A bounded, deterministic run of every target; the long run is `python -m benchmarks fuzz`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.effort import repeated
from tests.fuzz.mutation import CHANGES, DICE_BYTES, MOST_BYTES, cuts_of, minimal, mutated, random_steps, rolled
from tests.fuzz.targets import TARGETS

BROKEN_ONCE = [(name, path) for name, target in TARGETS.items() for path in target.cases(name)]
steps = st.lists(
    st.tuples(st.integers(0, len(CHANGES) - 1), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)), max_size=6
)


@pytest.mark.parametrize("name", TARGETS)
def test_invariants_hold_for_nearly_valid_input(name: str) -> None:
    target = TARGETS[name]

    @settings(
        max_examples=repeated(target.examples), deadline=None, derandomize=True, database=None,
        phases=[Phase.generate, Phase.shrink], suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    @given(dice=st.binary(min_size=4, max_size=4), seed=st.sampled_from(target.seeds) | st.binary(), changes=steps)
    def holds(dice: bytes, seed: bytes, changes: list[tuple[int, int, int]]) -> None:
        target.run(dice + mutated(seed, changes, target.seeds, target.words))

    holds()


@pytest.mark.parametrize("name", TARGETS)
def test_invariants_hold_for_valid_input(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds[: max(8, target.examples // 4)]:
        for number in range(1 if target.is_timed else 3):
            target.run(b"dic%d" % number + seed)


@pytest.mark.parametrize(("name", "case"), BROKEN_ONCE, ids=[f"{name}-{path.name}" for name, path in BROKEN_ONCE])
def test_earlier_failures_do_not_return(name: str, case: Path) -> None:
    TARGETS[name].run(case.read_bytes())


# the mutations


def test_same_steps_make_the_same_input_and_none_is_too_long() -> None:
    dice = random.Random(1)
    seed = b'data: {"a": "b", "c": 12}\n\n'
    for _ in range(500):
        changes = random_steps(dice)
        changed = mutated(seed, changes, [b"event: x\n\n"], [b"word"])
        assert changed == mutated(seed, changes, [b"event: x\n\n"], [b"word"])
        assert len(changed) <= MOST_BYTES


@pytest.mark.parametrize("kind", range(len(CHANGES)))
def test_every_change_changes_something(kind: int) -> None:
    seed = b'event: a\ndata: {"a": "b", "c": 12, "d": 3}\n\nid: 7\n'
    dice = random.Random(kind)
    other = b'x: "y"\nz: "v"\n'
    changed = {mutated(seed, [(kind, dice.getrandbits(16), dice.getrandbits(32))], [other]) for _ in range(60)}
    assert len(changed - {seed}) > 2


def test_pieces_are_the_whole() -> None:
    for number in range(200):
        dice, data = rolled(number.to_bytes(DICE_BYTES, "big") + b"0123456789")
        assert b"".join(cuts_of(dice, data)) == b"0123456789"


def test_minimal_input_still_fails_and_preserves_its_random_choices() -> None:
    def breaks(data: bytes) -> bool:
        return data[:DICE_BYTES] == b"dice" and b"A" in data[4:] and data.endswith(b"B")

    assert minimal(b"dice" + b"x" * 300 + b"A" + b"y" * 300 + b"B", breaks) == b"diceAB"
