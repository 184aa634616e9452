from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from llm_guard.outcome import Failure, FailureKind
from llm_guard.resilience.retry.key_selection import KeyState, choose, gives_way, is_free_of_charge

FREE = KeyState(has_failed=False, rests_until=0.0, wait_s=0.0, in_flight=0, last_use=0)
FAILED = replace(FREE, has_failed=True)
RESTS = replace(FREE, rests_until=100.0)
FULL = replace(FREE, wait_s=inf)


def pick(*keys: KeyState, is_ranked: bool = False) -> int:
    return choose(keys, is_ranked=is_ranked)


@pytest.mark.parametrize("worse", [FAILED, RESTS, FULL, replace(FREE, wait_s=0.5)])
def test_key_that_is_available_now_precedes_one_that_is_not(worse: KeyState) -> None:
    busy = replace(FREE, in_flight=9, last_use=9)
    assert (pick(worse, busy), pick(busy, worse)) == (1, 0)
    assert (pick(worse, busy, is_ranked=True), worse.is_free, busy.is_free) == (1, False, True)


def test_least_loaded_key_is_taken_and_of_equal_ones_the_least_recently_used() -> None:
    one, two = replace(FREE, in_flight=2, last_use=1), replace(FREE, in_flight=1, last_use=2)
    assert pick(one, two) == 1
    assert pick(replace(one, last_use=8), replace(one, last_use=7)) == 1
    assert pick(FREE, FREE) == 0


def test_ranked_keys_are_taken_in_their_order_for_any_load() -> None:
    assert pick(replace(FREE, in_flight=9, last_use=9), FREE, is_ranked=True) == 0


def test_with_all_in_cooldown_the_first_to_come_back_is_taken() -> None:
    assert pick(RESTS, replace(RESTS, rests_until=50.0), replace(RESTS, rests_until=70.0)) == 1


def test_where_none_has_room_the_shortest_wait_is_taken() -> None:
    assert pick(FULL, replace(FREE, wait_s=3.0), replace(FREE, wait_s=1.0, in_flight=5)) == 2


def test_key_that_failed_in_this_call_comes_after_one_in_cooldown() -> None:
    assert pick(FAILED, RESTS) == 1


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (FailureKind.AUTH, True),
        (FailureKind.QUOTA_EXHAUSTED, True),
        (FailureKind.WINDOW_EXHAUSTED, True),
        (FailureKind.ACCOUNT_BLOCKED, True),
        (FailureKind.RATE_LIMIT, True),
        (FailureKind.OVERLOADED, False),
        (FailureKind.SERVER_ERROR, False),
        (FailureKind.PERMISSION, False),
        (FailureKind.INVALID_REQUEST, False),
        (FailureKind.TIMEOUT, False),
    ],
)
def test_failure_of_the_key_leads_to_another(kind: FailureKind, expected: bool) -> None:
    assert gives_way(Failure(kind, ""), is_repeatable=True) is expected


def test_call_that_may_have_been_executed_is_not_sent_again() -> None:
    begun = Failure(FailureKind.AUTH, "", is_after_head=True)
    assert gives_way(Failure(FailureKind.AUTH, ""), is_repeatable=False)
    assert not gives_way(begun, is_repeatable=False)
    assert gives_way(begun, is_repeatable=True)


def test_only_a_rate_limit_costs_a_token() -> None:
    assert is_free_of_charge(Failure(FailureKind.AUTH, ""))
    assert is_free_of_charge(Failure(FailureKind.QUOTA_EXHAUSTED, ""))
    assert not is_free_of_charge(Failure(FailureKind.RATE_LIMIT, ""))
