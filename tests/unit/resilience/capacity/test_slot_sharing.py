"""Slots that several gateways share, without a store: who gets how many, and what each may use meanwhile."""

from __future__ import annotations

import pytest

from llm_guard.resilience.capacity.slot_sharing import (
    SLOTS_HELD_S,
    SlotGrant,
    SlotRequest,
    SlotShare,
    fair_shares,
    granted,
)


@pytest.mark.parametrize(
    ("limit", "needs", "shares"),
    [
        (20, {"a": 0}, {"a": 20}),
        (20, {"a": 0, "b": 0, "c": 0}, {"a": 6, "b": 7, "c": 7}),
        (20, {"a": 50, "b": 50}, {"a": 10, "b": 10}),
        (20, {"a": 50, "b": 3}, {"a": 17, "b": 3}),
        (20, {"a": 1, "b": 5, "c": 99}, {"a": 1, "b": 5, "c": 14}),
        (20, {"a": 4, "b": 6}, {"a": 9, "b": 11}),
        (3, {"a": 9, "b": 9, "c": 9, "d": 9}, {"a": 0, "b": 1, "c": 1, "d": 1}),
        (1, {"a": 0, "b": 1}, {"a": 0, "b": 1}),
        (0, {"a": 1}, {"a": 0}),
    ],
)
def test_small_needs_are_met_first_and_the_rest_is_divided(
    limit: int, needs: dict[str, int], shares: dict[str, int]
) -> None:
    assert fair_shares(limit, needs) == shares


def test_gateway_gets_no_slot_that_another_one_holds() -> None:
    others = {"a": (15, 2), "b": (4, 1)}
    assert granted(SlotRequest(20, 0, 10), "c", others) == SlotGrant(1, 13)
    assert granted(SlotRequest(20, 1, 10), "c", {"a": (2, 2), "b": (1, 1)}) == SlotGrant(13, 13)


def test_slots_in_use_are_not_taken_away() -> None:
    assert granted(SlotRequest(10, 10, 10), "a", {"b": (0, 10)}) == SlotGrant(10, 5)


def test_gateway_gives_up_slots_before_it_says_so() -> None:
    share = SlotShare()
    share.request(20, 0, 0, 0.0)
    share.grant(SlotGrant(20, 20))
    share.request(20, 8, 0, 0.1)
    share.grant(SlotGrant(20, 5))
    assert share.usable(20, 2, 0.15, is_connected=True) == 20
    assert share.request(20, 8, 0, 0.2) == SlotRequest(20, 8, 8)
    assert share.usable(20, 2, 0.2, is_connected=True) == 8
    assert share.request(20, 3, 0, 0.3).holds == 5


def test_need_of_a_moment_ago_counts() -> None:
    share = SlotShare()
    assert share.request(20, 4, 5, 0.0).need == 9
    assert share.request(20, 1, 0, 2.0).need == 9
    assert share.request(20, 1, 0, 4.0).need == 9
    assert share.request(20, 1, 0, 7.0).need == 1
    assert share.request(20, 90, 0, 8.0).need == 20
    assert share.request(20, 2, 0, 60.0).need == 2


def test_limit_is_whole_until_a_store_has_answered() -> None:
    share = SlotShare()
    share.request(20, 0, 0, 0.0)
    assert share.usable(20, 1, 0.0, is_connected=True) is None
    assert share.usable(20, 1, 9.0, is_connected=False) is None


@pytest.mark.parametrize(("held", "at_first", "later"), [(12, 12, 5), (0, 1, 5)])
def test_without_the_store_a_gateway_keeps_its_slots_and_then_has_an_equal_part(
    held: int, at_first: int, later: int
) -> None:
    share = SlotShare()
    share.request(20, 0, 0, 100.0)
    share.grant(SlotGrant(held, held))
    assert share.usable(20, 4, 100.1, is_connected=False) == at_first
    assert share.usable(20, 4, 100.0 + SLOTS_HELD_S, is_connected=False) == later
    assert share.usable(20, 50, 100.0 + SLOTS_HELD_S, is_connected=False) == 1


def test_lowered_limit_holds_at_once() -> None:
    share = SlotShare()
    share.request(20, 0, 0, 0.0)
    share.grant(SlotGrant(20, 20))
    assert share.request(5, 1, 0, 1.0).holds == 5
