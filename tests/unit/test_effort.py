"""`tests.effort`: seeds in batches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.effort import SEEDS_AT_A_TIME, each_seed


def batches_of(test: Any) -> list[range]:
    (mark,) = test.pytestmark
    assert mark.args[0] == "seeds"
    return list(mark.args[1])


@pytest.mark.parametrize("times", [1, SEEDS_AT_A_TIME, SEEDS_AT_A_TIME + 1, 3 * SEEDS_AT_A_TIME - 1])
def test_test_is_called_once_with_each_seed(times: int) -> None:
    called: list[tuple[int, str]] = []

    def calls(seed: int, model: str) -> None:
        called.append((seed, model))

    test = each_seed(1, least=times)(calls)
    for seeds in batches_of(test):
        assert len(seeds) <= SEEDS_AT_A_TIME
        test(seeds=seeds, model="gpt")
    assert called == [(seed, "gpt") for seed in range(times)]


def test_failure_names_its_seed() -> None:
    def fails(seed: int) -> None:
        assert seed < 7

    test = each_seed(1, least=20)(fails)
    with pytest.raises(AssertionError) as raised:
        test(seeds=batches_of(test)[0])
    assert raised.value.__notes__ == ["with seed 7"]


@each_seed(1, least=3)
@pytest.mark.parametrize("model", ["gpt", "claude"])
def test_seeds_are_combined_with_other_parameters(model: str, seed: int) -> None:
    assert (model in ("gpt", "claude"), seed in range(3)) == (True, True)
